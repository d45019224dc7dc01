"""What a trained model can do."""

from .answers import Options, answer
from .beam_search import Beams, beam_search
from .classifying import classify, judge, tag
from .decoding import (
    Decoded,
    Prompts,
    decode,
    decode_stream,
    decoder_prompts,
    decoding_form,
    encoder_decoder_prompts,
)
from .embeddings import embed
from .generation import Answer, Decoding, Draft, generate
from .infill import Infilled, fill_in_place, greedy_targets, infill
from .masks import Guess, fill_masks, unmask
from .passages import show_passages
from .prompts import few_shot_prompt
from .sampling import Sampling
from .scoring import Scored, score
from .speculation import model_drafter, own_drafts, speculate
from .trained import MODES, Trained, mode_of

__all__ = [
    "MODES",
    "Answer",
    "Beams",
    "Decoded",
    "Decoding",
    "Draft",
    "Guess",
    "Infilled",
    "Options",
    "Prompts",
    "Sampling",
    "Scored",
    "Trained",
    "answer",
    "beam_search",
    "classify",
    "decode",
    "decode_stream",
    "decoder_prompts",
    "decoding_form",
    "embed",
    "encoder_decoder_prompts",
    "few_shot_prompt",
    "fill_in_place",
    "fill_masks",
    "generate",
    "greedy_targets",
    "infill",
    "judge",
    "mode_of",
    "model_drafter",
    "own_drafts",
    "score",
    "show_passages",
    "speculate",
    "tag",
    "unmask",
]
