"""What a trained model can do."""

from pretrax.inference.answers import Options, answer
from pretrax.inference.beam_search import Beams, beam_search
from pretrax.inference.classifying import classify, judge, tag
from pretrax.inference.decoding import (
    Decoded,
    Prompts,
    decode,
    decode_stream,
    decoder_prompts,
    decoding_form,
    encoder_decoder_prompts,
)
from pretrax.inference.embeddings import embed
from pretrax.inference.generation import Answer, Decoding, Draft, generate
from pretrax.inference.infill import Infilled, fill_in_place, greedy_targets, infill
from pretrax.inference.masks import Guess, fill_masks, unmask
from pretrax.inference.passages import show_passages
from pretrax.inference.prompts import few_shot_prompt
from pretrax.inference.sampling import Sampling
from pretrax.inference.scoring import Scored, score
from pretrax.inference.speculation import model_drafter, own_drafts, speculate
from pretrax.inference.trained import MODES, Trained, mode_of

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
