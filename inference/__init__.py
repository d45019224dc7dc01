"""Inference with a trained model: generation, filling, scoring, classification and embeddings."""

from . import modes as _modes  # noqa: F401  (registers them)
from .answering.answers import answer
from .answering.classifying import classify, judge, tag
from .answering.continued_blocks import continue_blocks
from .answering.embeddings import embed
from .answering.generation import Answer, generate
from .answering.infill import Infilled, greedy_targets, infill
from .answering.insertions import Written, insert
from .answering.masks import Guess, fill_masks
from .answering.next_tokens import next_tokens
from .answering.options import Decoding, Options
from .answering.scoring import Scored, score
from .answering.unmasking import unmask
from .decoding.batching import Batching
from .decoding.beam_search import Beams, beam_search
from .decoding.decoding import (
    Decoded,
    Prompts,
    decode,
    decode_stream,
    decoder_prompts,
    decoding_form,
    encoder_decoder_prompts,
)
from .decoding.sampling import Sampling
from .decoding.speculation import Draft, masked_drafter, model_drafter, own_drafts, speculate
from .prompting.prompts import few_shot_prompt
from .reporting.passages import show_passages
from .trained import (
    MODES,
    Mode,
    Trained,
    mode_of,
    register_mode,
)

__all__ = [
    "MODES",
    "Answer",
    "Batching",
    "Beams",
    "Decoded",
    "Decoding",
    "Draft",
    "Guess",
    "Infilled",
    "Mode",
    "Options",
    "Prompts",
    "Sampling",
    "Scored",
    "Trained",
    "Written",
    "answer",
    "beam_search",
    "classify",
    "continue_blocks",
    "decode",
    "decode_stream",
    "decoder_prompts",
    "decoding_form",
    "embed",
    "encoder_decoder_prompts",
    "few_shot_prompt",
    "fill_masks",
    "generate",
    "greedy_targets",
    "infill",
    "insert",
    "judge",
    "mode_of",
    "masked_drafter",
    "model_drafter",
    "next_tokens",
    "own_drafts",
    "register_mode",
    "score",
    "show_passages",
    "speculate",
    "tag",
    "unmask",
]
