"""Pre-training objectives as pure JAX functions on token ids."""

from objectives import layouts
from objectives.contract import (
    Member,
    Objective,
    Outputs,
    Row,
    Term,
    TokenIds,
    batched,
    bitmap,
    check_token_ids,
    members_of,
)
from objectives.denoising import span_corruption
from objectives.language_modeling import causal_lm, prefix_lm
from objectives.mixtures import mixture, ul2
from objectives.planning import RowGroup, plan, raw_length

__all__ = [
    "Member",
    "Objective",
    "Outputs",
    "Row",
    "RowGroup",
    "Term",
    "TokenIds",
    "batched",
    "bitmap",
    "causal_lm",
    "check_token_ids",
    "layouts",
    "members_of",
    "mixture",
    "plan",
    "prefix_lm",
    "raw_length",
    "span_corruption",
    "ul2",
]
