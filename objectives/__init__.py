"""Pre-training objectives as pure JAX functions on token ids.

A builder takes the token ids of a vocabulary and returns an objective. It raises ValueError for a
setting that its annotation excludes, and for token ids without a special token that it needs. Its
docstring names these special tokens, and lists all other errors.

The keys of an objective's `lengths` are the names of its streams. `corrupt` returns the columns of
each stream, i32 (`objectives.streams.STREAMS`):

    inputs    inputs, inputs_segments                        [I]
    targets   targets, targets_segments, targets_weights     [T]
    labels    labels, labels_slots, labels_weights           [K]
    pools     pools_slots, pools_labels, pools_weights       [P]
    rates     rates, as 24-bit integers                      [D]

The builders are imported below, each from the file of its family. They choose tokens with
`selection` and `span_lengths`, apply noise from `noising`, and write features with `splicing`.
`contract` defines what they return, and `laws` checks it. Their kernels get settings as arrays, in
a `jax.tree_util.Partial`: members of a mixture that differ only in numbers then share a kernel.
"""

from . import layouts
from .adaptive_masking import adaptive_masked_lm
from .annealed_targets import annealed_multi_token_prediction, prefix_token_prediction
from .annealing import annealed
from .attention_masks import attention_mask, causal_mask, prefix_mask
from .autoencoding import (
    bart,
    document_rotation,
    sentence_permutation,
    text_infilling,
    token_deletion,
    token_masking,
)
from .belief_states import belief_state
from .blanks import blank_infilling
from .block_diffusion import block_diffusion
from .causal_diffusion import causal_diffusion
from .contract import (
    Adaptation,
    BatchLoss,
    Builder,
    Facts,
    Labels,
    Member,
    ModelOutputs,
    Objective,
    ProgressSchedule,
    Row,
    Rows,
    Term,
    members_of,
)
from .contrastive_learning import contrastive, contrastive_pairs, info_nce, nt_xent
from .corrupted_batches import batched
from .denoising import deshuffling, iid_denoising, span_corruption
from .distillation import distilled_lm
from .flexible_diffusion import flexible_masked_diffusion
from .frequency_masking import frequency_informed_diffusion
from .gap_sentences import gap_sentences
from .goldfish import goldfish_loss
from .hybrid_diffusion import hybrid_diffusion
from .implicit_tokens import next_implicit_token
from .infilling import causal_masking, fill_in_the_middle
from .insertion import insertion_lm
from .joint_embedding import llm_jepa
from .language_modeling import (
    causal_lm,
    masked_input_next_token,
    masked_input_regularization,
    prefix_lm,
)
from .masked_autoencoding import retromae
from .masked_diffusion import complementary_diffusion, masked_diffusion, shifted_diffusion
from .masked_language_modeling import (
    masked_lm,
    masked_next_token,
    masked_permuted_lm,
    replaced_token_detection,
)
from .mass import mass
from .mixtures import mixture, phases, turns
from .multi_token_prediction import multi_token_prediction
from .mutor import mutor
from .next_latent import next_latent
from .number_tokens import number_token_loss
from .packed_rows import each_document
from .permutation import any_subset_lm, permutation_lm, shuffled_lm
from .prompt_forms import PromptForm
from .selection import geometric_lengths, inverse_lengths
from .sentence_pairs import next_sentence_prediction, sentence_order_prediction, then
from .standalone import corruptor
from .static_lengths import RowGroup, packed_lengths, raw_length, row_groups
from .superposition import superposed_lm
from .supervised import (
    dialogue,
    sequence_classification,
    sequence_regression,
    text_to_text,
    token_classification,
)
from .tidar import tidar
from .token_editing import token_editing
from .token_ids import TokenIds, TokenTexts, bitmap, check_token_ids
from .ul2 import ul2
from .uniform_diffusion import mixed_diffusion, uniform_diffusion
from .unrolled_denoising import unrolled_denoising
from .upcoming_tokens import future_summary, token_order_prediction
from .worked_examples import hide

__all__ = [
    "Adaptation",
    "BatchLoss",
    "Builder",
    "Facts",
    "Labels",
    "Member",
    "Objective",
    "ModelOutputs",
    "ProgressSchedule",
    "PromptForm",
    "Row",
    "Rows",
    "RowGroup",
    "Term",
    "TokenIds",
    "TokenTexts",
    "adaptive_masked_lm",
    "annealed",
    "annealed_multi_token_prediction",
    "any_subset_lm",
    "attention_mask",
    "bart",
    "batched",
    "belief_state",
    "bitmap",
    "blank_infilling",
    "block_diffusion",
    "causal_diffusion",
    "causal_lm",
    "causal_mask",
    "causal_masking",
    "check_token_ids",
    "complementary_diffusion",
    "contrastive",
    "contrastive_pairs",
    "corruptor",
    "deshuffling",
    "dialogue",
    "distilled_lm",
    "document_rotation",
    "each_document",
    "fill_in_the_middle",
    "flexible_masked_diffusion",
    "frequency_informed_diffusion",
    "future_summary",
    "gap_sentences",
    "geometric_lengths",
    "goldfish_loss",
    "hide",
    "hybrid_diffusion",
    "iid_denoising",
    "info_nce",
    "insertion_lm",
    "inverse_lengths",
    "layouts",
    "llm_jepa",
    "masked_diffusion",
    "masked_input_next_token",
    "masked_input_regularization",
    "masked_lm",
    "masked_next_token",
    "mass",
    "masked_permuted_lm",
    "members_of",
    "mixed_diffusion",
    "mixture",
    "multi_token_prediction",
    "mutor",
    "next_implicit_token",
    "next_latent",
    "next_sentence_prediction",
    "nt_xent",
    "number_token_loss",
    "packed_lengths",
    "permutation_lm",
    "phases",
    "prefix_lm",
    "prefix_mask",
    "prefix_token_prediction",
    "raw_length",
    "replaced_token_detection",
    "retromae",
    "row_groups",
    "sentence_order_prediction",
    "sentence_permutation",
    "sequence_classification",
    "sequence_regression",
    "shifted_diffusion",
    "shuffled_lm",
    "span_corruption",
    "superposed_lm",
    "text_infilling",
    "text_to_text",
    "then",
    "tidar",
    "token_classification",
    "token_deletion",
    "token_editing",
    "token_masking",
    "token_order_prediction",
    "turns",
    "ul2",
    "uniform_diffusion",
    "unrolled_denoising",
]
