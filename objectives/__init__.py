"""Pre-training objectives as pure JAX functions on token ids.

A builder takes the token ids of a vocabulary and returns an objective. It raises ValueError if a
setting is out of range or the vocabulary lacks a special token. Its docstring lists the special
tokens and all other errors.

The keys of an objective's `lengths` are the names of its streams. `corrupt` returns the columns of
each stream, i32 (`objectives.streams.STREAMS`):

    inputs    inputs, inputs_segments                        [I]
    targets   targets, targets_segments, targets_weights     [T]
    labels    labels, labels_slots, labels_weights           [K]
    pools     pools_slots, pools_labels, pools_weights       [P]
    rates     rates, as 24-bit integers                      [D]

Builders choose tokens with `selection` and `span_lengths`, apply noise from `noising`, and write
features with `splicing`. `contract` defines what they return, and `laws` checks it.
`arithmetic.kernel` turns settings into arrays: members of a mixture that differ only in numbers
then share a kernel.
"""

from . import layouts as layouts
from .adaptive_masking import adaptive_masked_lm as adaptive_masked_lm
from .annealed_targets import annealed_multi_token_prediction as annealed_multi_token_prediction
from .annealed_targets import prefix_token_prediction as prefix_token_prediction
from .annealing import annealed as annealed
from .attention_masks import attention_mask as attention_mask
from .attention_masks import causal_mask as causal_mask
from .attention_masks import prefix_mask as prefix_mask
from .autoencoding import bart as bart
from .autoencoding import document_rotation as document_rotation
from .autoencoding import sentence_permutation as sentence_permutation
from .autoencoding import text_infilling as text_infilling
from .autoencoding import token_deletion as token_deletion
from .autoencoding import token_masking as token_masking
from .belief_states import belief_state as belief_state
from .blanks import blank_infilling as blank_infilling
from .block_diffusion import block_diffusion as block_diffusion
from .causal_diffusion import causal_diffusion as causal_diffusion
from .contract import Adaptation as Adaptation
from .contract import BatchLoss as BatchLoss
from .contract import Builder as Builder
from .contract import Facts as Facts
from .contract import Labels as Labels
from .contract import Member as Member
from .contract import ModelOutputs as ModelOutputs
from .contract import Objective as Objective
from .contract import ProgressSchedule as ProgressSchedule
from .contract import Row as Row
from .contract import Rows as Rows
from .contract import Term as Term
from .contract import members_of as members_of
from .contrastive_learning import contrastive as contrastive
from .contrastive_learning import contrastive_pairs as contrastive_pairs
from .contrastive_learning import info_nce as info_nce
from .contrastive_learning import nt_xent as nt_xent
from .corrupted_batches import batched as batched
from .denoising import deshuffling as deshuffling
from .denoising import iid_denoising as iid_denoising
from .denoising import span_corruption as span_corruption
from .distillation import distilled_lm as distilled_lm
from .embedding_diffusion import embedding_diffusion as embedding_diffusion
from .flexible_diffusion import flexible_masked_diffusion as flexible_masked_diffusion
from .frequency_masking import frequency_informed_diffusion as frequency_informed_diffusion
from .gap_sentences import gap_sentences as gap_sentences
from .goldfish import goldfish_loss as goldfish_loss
from .hybrid_diffusion import hybrid_diffusion as hybrid_diffusion
from .implicit_tokens import next_implicit_token as next_implicit_token
from .infilling import causal_masking as causal_masking
from .infilling import fill_in_the_middle as fill_in_the_middle
from .insertion import insertion_lm as insertion_lm
from .joint_embedding import llm_jepa as llm_jepa
from .language_modeling import causal_lm as causal_lm
from .language_modeling import masked_input_next_token as masked_input_next_token
from .language_modeling import masked_input_regularization as masked_input_regularization
from .language_modeling import prefix_lm as prefix_lm
from .masked_autoencoding import retromae as retromae
from .masked_diffusion import complementary_diffusion as complementary_diffusion
from .masked_diffusion import masked_diffusion as masked_diffusion
from .masked_diffusion import shifted_diffusion as shifted_diffusion
from .masked_language_modeling import masked_lm as masked_lm
from .masked_language_modeling import masked_next_token as masked_next_token
from .masked_language_modeling import masked_permuted_lm as masked_permuted_lm
from .masked_language_modeling import replaced_token_detection as replaced_token_detection
from .mass import mass as mass
from .mixtures import mixture as mixture
from .mixtures import phases as phases
from .mixtures import turns as turns
from .multi_token_prediction import multi_token_prediction as multi_token_prediction
from .mutor import mutor as mutor
from .next_latent import next_latent as next_latent
from .number_tokens import number_token_loss as number_token_loss
from .packed_rows import each_document as each_document
from .permutation import any_subset_lm as any_subset_lm
from .permutation import permutation_lm as permutation_lm
from .permutation import shuffled_lm as shuffled_lm
from .prompt_forms import PromptForm as PromptForm
from .selection import geometric_lengths as geometric_lengths
from .selection import inverse_lengths as inverse_lengths
from .sentence_pairs import next_sentence_prediction as next_sentence_prediction
from .sentence_pairs import sentence_order_prediction as sentence_order_prediction
from .sentence_pairs import then as then
from .standalone import corruptor as corruptor
from .static_lengths import RowGroup as RowGroup
from .static_lengths import packed_lengths as packed_lengths
from .static_lengths import raw_length as raw_length
from .static_lengths import row_groups as row_groups
from .superposition import superposed_lm as superposed_lm
from .supervised import dialogue as dialogue
from .supervised import sequence_classification as sequence_classification
from .supervised import sequence_regression as sequence_regression
from .supervised import text_to_text as text_to_text
from .supervised import token_classification as token_classification
from .tidar import tidar as tidar
from .token_editing import token_editing as token_editing
from .token_ids import TokenIds as TokenIds
from .token_ids import TokenTexts as TokenTexts
from .token_ids import bitmap as bitmap
from .token_ids import check_token_ids as check_token_ids
from .ul2 import ul2 as ul2
from .uniform_diffusion import mixed_diffusion as mixed_diffusion
from .uniform_diffusion import uniform_diffusion as uniform_diffusion
from .unrolled_denoising import unrolled_denoising as unrolled_denoising
from .upcoming_tokens import future_summary as future_summary
from .upcoming_tokens import token_order_prediction as token_order_prediction
from .worked_examples import hide as hide
