"""Pre-training objectives as pure JAX functions on token ids."""

from pretrax.objectives import layouts
from pretrax.objectives.annealing import annealed
from pretrax.objectives.autoencoding import (
    bart,
    document_rotation,
    sentence_permutation,
    text_infilling,
    token_deletion,
    token_masking,
)
from pretrax.objectives.blanks import blank_infilling
from pretrax.objectives.contract import (
    Builder,
    Labels,
    Member,
    Objective,
    Outputs,
    PromptForm,
    Row,
    Term,
    TokenIds,
    batched,
    bitmap,
    check_token_ids,
    members_of,
)
from pretrax.objectives.contrastive_learning import (
    contrastive,
    contrastive_pairs,
    info_nce,
    nt_xent,
)
from pretrax.objectives.denoising import deshuffling, iid_denoising, span_corruption
from pretrax.objectives.infilling import causal_masking, fill_in_the_middle
from pretrax.objectives.language_modeling import causal_lm, prefix_lm
from pretrax.objectives.masked_diffusion import masked_diffusion
from pretrax.objectives.masked_language_modeling import (
    masked_lm,
    masked_next_token,
    replaced_token_detection,
)
from pretrax.objectives.mixtures import mixture, turns, ul2
from pretrax.objectives.multi_token_prediction import multi_token_prediction
from pretrax.objectives.packed_rows import each_document
from pretrax.objectives.planning import RowGroup, packed_lengths, plan, raw_length
from pretrax.objectives.selection import geometric_lengths, inverse_lengths
from pretrax.objectives.sentence_pairs import (
    next_sentence_prediction,
    sentence_order_prediction,
    then,
)
from pretrax.objectives.standalone import corruptor
from pretrax.objectives.supervised import (
    dialogue,
    sequence_classification,
    sequence_regression,
    text_to_text,
    token_classification,
)

__all__ = [
    "Builder",
    "Labels",
    "Member",
    "Objective",
    "Outputs",
    "PromptForm",
    "Row",
    "RowGroup",
    "Term",
    "TokenIds",
    "annealed",
    "bart",
    "batched",
    "bitmap",
    "blank_infilling",
    "causal_lm",
    "causal_masking",
    "check_token_ids",
    "contrastive",
    "contrastive_pairs",
    "corruptor",
    "deshuffling",
    "dialogue",
    "document_rotation",
    "each_document",
    "fill_in_the_middle",
    "geometric_lengths",
    "iid_denoising",
    "info_nce",
    "inverse_lengths",
    "layouts",
    "masked_diffusion",
    "masked_lm",
    "masked_next_token",
    "members_of",
    "mixture",
    "multi_token_prediction",
    "next_sentence_prediction",
    "nt_xent",
    "packed_lengths",
    "plan",
    "prefix_lm",
    "raw_length",
    "replaced_token_detection",
    "sentence_order_prediction",
    "sentence_permutation",
    "sequence_classification",
    "sequence_regression",
    "span_corruption",
    "text_infilling",
    "text_to_text",
    "then",
    "token_classification",
    "token_deletion",
    "token_masking",
    "turns",
    "ul2",
]
