"""Inference with a trained model: generation, filling, scoring, classification and embeddings.

`decode` and `speculate`, for token ids, are in `inference.decoding.decoding` and
`inference.decoding.speculation`.
"""

from . import modes as _modes  # noqa: F401  (registers them)
from .answering.answers import answer
from .answering.classifying import classify, judge, tag
from .answering.continued_blocks import continue_blocks
from .answering.embeddings import embed
from .answering.generation import Answer, generate
from .answering.infill import infill
from .answering.insertions import Written, insert
from .answering.masks import Guess, fill_masks
from .answering.next_tokens import next_tokens
from .answering.options import Decoding, Options
from .answering.scoring import Scored, score
from .answering.unmasking import unmask
from .decoding.batching import Batching
from .prompting.prompts import few_shot_prompt
from .reporting.passages import show_passages
from .trained import MODES, Mode, Trained, mode_of, register_mode

__all__ = [
    "MODES",
    "Answer",
    "Batching",
    "Decoding",
    "Guess",
    "Mode",
    "Options",
    "Scored",
    "Trained",
    "Written",
    "answer",
    "classify",
    "continue_blocks",
    "embed",
    "few_shot_prompt",
    "fill_masks",
    "generate",
    "infill",
    "insert",
    "judge",
    "mode_of",
    "next_tokens",
    "register_mode",
    "score",
    "show_passages",
    "tag",
    "unmask",
]
