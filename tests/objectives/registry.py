"""All objectives that must keep the laws, with example settings.

Add a new objective to `CASES` together with its inverse. `test_laws.py` fails if a builder that
`objectives` exports is missing.
"""

import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pretrax import objectives
from pretrax.objectives import (
    Objective,
    Row,
    causal_lm,
    geometric_lengths,
    laws,
    masked_diffusion,
    masked_lm,
    packed_lengths,
    prefix_lm,
    sentence_order_prediction,
    span_corruption,
    superposed_lm,
)
from pretrax.objectives.laws import DOCUMENTS, RAW_LENGTH, quick_jit
from tests.objectives.inverse import undo_bags, undo_copy, undo_spans, undo_split
from tests.objectives.undo_infilling import undo_blanks, undo_causal_masking, undo_middle
from tests.objectives.undo_masking import (
    undo_blocks,
    undo_edits,
    undo_fragment,
    undo_groups,
    undo_hybrid,
    undo_insertions,
    undo_masked_blocks,
    undo_masks,
    undo_masks_after_bos,
    undo_masks_before,
    undo_noised_embeddings,
    undo_permutation,
    undo_permuted_masks,
    undo_registers,
    undo_replaced,
    undo_restored,
    undo_shuffled,
    undo_stand_ins,
    undo_tail,
)
from tests.objectives.undo_noising import (
    infilled,
    left_out,
    permuted_and_infilled,
    replaced,
    rotated,
    sentences_permuted,
    shuffled,
    undo_gaps,
    undo_pieces,
    undo_whole,
)
from tests.objectives.undo_pairs import undo_masked_order, undo_order
from tests.objectives.undo_supervised import undo_answer, undo_frame, undo_turns
from tests.objectives.vocabulary import IDS, R, S, X

# In addition to the names that this file defines.
__all__ = ["DOCUMENTS", "IDS", "packed_lengths", "quick_jit"]

# Names of the laws in the table and in `exempt`: the laws of the package, and laws whose test needs
# an inverse, several devices or many draws.
LAWS = (
    "nothing is lost",  # The inverse returns the document.
    "sharded = unsharded",
    "lengths are kept",  # Lengths are exact, or upper bounds.
    "lengths are reached",
    *laws.LAWS,
    *laws.USUAL,
)


class Case(NamedTuple):
    builder: str  # name of the exported builder
    objective: Objective
    inverses: tuple[Callable, ...]  # one inverse for each member
    exact: bool  # whether `lengths` is exact rather than an upper bound
    exempt: dict[str, str]  # laws that cannot hold, with the reason
    parts: int  # largest number of parts of a document


def _case(
    builder: str | Callable,
    /,
    *inverses: Callable,
    exact: bool = False,
    exempt: dict[str, str] | None = None,
    parts: int = 2,
    **settings,
) -> Case:
    """Returns the case of an exported builder, by its name, or of another builder."""
    exempt = exempt or {}
    assert inverses or "nothing is lost" in exempt, "give the inverse, or say why there is none"
    build = getattr(objectives, builder) if isinstance(builder, str) else builder
    return Case(build.__name__, build(IDS, **settings), inverses or (None,), exact, exempt, parts)


def cases_under(law: str) -> list[str]:
    """Returns the names of the cases that must keep a law."""
    assert law in LAWS, law
    return [name for name, case in CASES.items() if law not in case.exempt]


def documented(name: str) -> dict[str, Any]:
    """Returns what the README's code block that begins with the comment `# name` defines."""
    blocks = re.findall(r"^```python\n(.*?)^```$", Path("README.md").read_text(), re.S | re.M)
    (block,) = [b for b in blocks if b.startswith(f"# {name}\n")]
    defined: dict[str, Any] = {"__name__": name}
    exec(compile(block, name, "exec"), defined)
    return defined


THREE_KINDS = {
    "span": (span_corruption, 2),
    "prefix": (partial(prefix_lm, mode="S"), 1),
    "causal": (causal_lm, 1),
}

FAR = {"lengths are reached": "the bound is six standard deviations above the mean"}

UNCUT = {
    "lengths are reached": "a document of one token does not make a pair",
}
EDGES = {"nothing is lost": "sentences that are cut off by the row are left out"}
PAIRED = UNCUT | {
    "nothing is lost": "a random text may replace the text that follows",
}
VIEWS = {
    "nothing is lost": "a text becomes several segments (see test_contrastive_learning)",
    "lengths are reached": "a document of one token does not make two texts",
}

SENTENCES = {"lengths are reached": "few of the selected sentences have only one token"}
STATES = {"every target counts": "the [CLS] state among the targets is only read"}

NOTHING_DRAWN = {"noise is drawn": "the objective has no randomness"}

CASES = {
    "causal": _case("causal_lm", undo_copy, exact=True, exempt=NOTHING_DRAWN),
    "masked_inputs": _case("masked_input_next_token", undo_stand_ins, exact=True),
    "masked_tail": _case("causal_diffusion", undo_tail, exact=True),
    "masked_again": _case(
        "masked_input_regularization",
        exempt={
            "nothing is lost": "a document becomes two segments (see test_language_modeling)",
            "lengths are reached": "pools only count the segments",
        },
    ),
    "belief": _case(
        "belief_state",
        exempt={
            "nothing is lost": "a document becomes two segments (see test_belief_states)",
            "every target counts": "tokens from right to left are only read",
            "lengths are reached": "pools only count the segments",
        },
        pairs=2,
    ),
    "readme": _case(
        documented("my_objectives.py")["backward_lm"],
        lambda document: undo_copy(document)[::-1],
        exact=True,
        exempt=NOTHING_DRAWN,
    ),
    "prefix": _case("prefix_lm", undo_split),
    "prefix_quarter": _case("prefix_lm", partial(undo_split, mode=S), suffix_share=0.25, mode="S"),
    "prefix_short": _case("prefix_lm", undo_split, suffix_share=0.8),
    "span": _case("span_corruption", undo_spans, exact=True),
    "span_dense": _case(
        "span_corruption",
        partial(undo_spans, mode=X),
        exact=True,
        noise_density=0.5,
        mean_span_length=1.5,
        mode="X",
    ),
    "span_single": _case(
        "span_corruption",
        undo_spans,
        exact=True,
        mean_span_length=64,
        exempt={"noise is drawn": "a single span of fixed length is always at the end"},
    ),
    "span_infeasible": _case(  # too few tokens to separate the spans
        "span_corruption", undo_spans, exact=True, noise_density=0.9, mean_span_length=1
    ),
    "span_anywhere": _case("span_corruption", undo_pieces, noise_density=0.4, placement="anywhere"),
    "span_unclosed": _case(
        "span_corruption",
        partial(undo_pieces, closes=False),
        exact=True,
        noise_density=0.4,
        placement="anywhere",
        closing_sentinel=False,
    ),
    "iid_unclosed": _case(
        "iid_denoising",
        partial(undo_pieces, closes=False),
        exempt=FAR,
        noise_density=0.3,
        closing_sentinel=False,
    ),
    "iid": _case(
        "iid_denoising", partial(undo_pieces, mode=R), exempt=FAR, noise_density=0.3, mode="R"
    ),
    "iid_bert": _case(
        "iid_denoising",
        partial(
            undo_whole,
            possible=partial(
                replaced, allowed=lambda token: token == IDS.mask or 2 <= token < 32_000
            ),
        ),
        exact=True,
        replace="mask_or_random",
        predict="everything",
    ),
    "deshuffling": _case("deshuffling", partial(undo_whole, possible=shuffled), exact=True),
    "token_masking": _case(
        "token_masking",
        partial(undo_whole, possible=partial(replaced, allowed=lambda token: token == IDS.mask)),
        exact=True,
    ),
    "token_deletion": _case("token_deletion", partial(undo_whole, possible=left_out)),
    "text_infilling": _case("text_infilling", partial(undo_whole, possible=infilled), exempt=FAR),
    "sentence_permutation": _case(
        "sentence_permutation", partial(undo_whole, possible=sentences_permuted), exact=True
    ),
    "document_rotation": _case(
        "document_rotation", partial(undo_whole, possible=rotated), exact=True
    ),
    "bart": _case("bart", partial(undo_whole, possible=permuted_and_infilled), exempt=FAR),
    "span_drawn": _case(
        "span_corruption",
        partial(undo_spans, mode=R),
        noise_density=0.3,
        mean_span_length=(1, 3),
        mode="R",
    ),
    "span_one_length": _case(
        "span_corruption",
        partial(undo_spans, mode=R),
        noise_density=0.3,
        mean_span_length=(1, 3),
        length_drawn_per="document",
        mode="R",
    ),
    "middle": _case("fill_in_the_middle", undo_middle),
    "middle_always": _case(
        "fill_in_the_middle",
        partial(undo_middle, spm="spm"),
        exact=True,
        rate=1,
        spm_rate=0.75,
        spm="spm",
    ),
    "causal_masking": _case(
        "causal_masking",
        undo_causal_masking,
        exempt={
            "every target counts": "sentinels at random positions have no loss",
            "lengths are reached": "only one document in 100,000 has eight spans",
        },
    ),
    "causal_masking_single": _case(
        "causal_masking",
        partial(undo_causal_masking, max_spans=1),
        exact=True,
        max_spans=1,
        exempt={"every target counts": "sentinels at random positions have no loss"},
    ),
    "blanks": _case("blank_infilling", undo_blanks),
    "blanks_dense": _case("blank_infilling", undo_blanks, density=0.6, mean_span_length=1.5),
    "mass": _case("mass", undo_fragment, exact=True),
    "gap_sentences": _case("gap_sentences", undo_gaps, exempt=NOTHING_DRAWN | SENTENCES),
    "gap_sentences_random": _case("gap_sentences", undo_gaps, selection="random", exempt=SENTENCES),
    "gap_sentences_lead": _case(
        "gap_sentences", undo_gaps, selection="lead", exempt=NOTHING_DRAWN | SENTENCES
    ),
    "masked_lm": _case("masked_lm", undo_masks, exact=True),
    "masked_lm_drawn": _case(
        "masked_lm",
        partial(undo_masks, framed=False),
        framed=False,
        selection="bernoulli",
        exempt=FAR,
    ),
    "masked_lm_adaptive": _case("adaptive_masked_lm", undo_masks, exempt=FAR),
    "masked_lm_static": _case(
        "masked_lm",
        undo_masks,
        exact=True,
        static_copies=3,
        max_predictions=20,
        exempt={"documents stay apart": "the masks of a row depend on all of its text"},
    ),
    "masked_words": _case("masked_lm", undo_masks, rate=0.3, whole_words=True),
    "masked_spans": _case(
        "masked_lm",
        undo_masks,
        whole_words=True,
        span_lengths=geometric_lengths(),
        replace_together=True,
    ),
    "masked_next": _case("masked_next_token", undo_masks_before, exact=True),
    "masked_permuted": _case("masked_permuted_lm", undo_permuted_masks, exact=True, rate=0.3),
    "replaced": _case("replaced_token_detection", partial(undo_masks, only_masks=True), exact=True),
    "diffusion": _case("masked_diffusion", partial(undo_masks, only_masks=True, framed=False)),
    "diffusion_complementary": _case(
        "complementary_diffusion",
        exempt={
            "nothing is lost": "a document becomes two segments (see test_complementary_masks)",
            "lengths are reached": "pools only count the segments",
        },
    ),
    "diffusion_informed": _case(
        "frequency_informed_diffusion", partial(undo_masks, only_masks=True, framed=False)
    ),
    "diffusion_shifted": _case("shifted_diffusion", undo_masks_before),
    "diffusion_ahead": _case(
        "shifted_diffusion", partial(undo_masks_before, ahead=0.25), ahead_share=0.25
    ),
    "diffusion_hybrid": _case("hybrid_diffusion", undo_hybrid, exact=True, random_share=0.2),
    "diffusion_uniform": _case("uniform_diffusion", undo_replaced, exact=True),
    "diffusion_mixed": _case("mixed_diffusion", undo_hybrid, exact=True, random_share=0.4),
    "edits": _case("token_editing", undo_edits),
    "edits_whole": _case("token_editing", undo_edits, builder=masked_diffusion, wrong_share=0.5),
    "unrolled": _case("unrolled_denoising", undo_replaced, exact=True),
    "embeddings": _case("embedding_diffusion", undo_noised_embeddings, exact=True),
    "insertions": _case("insertion_lm", undo_insertions),
    "insertions_and_masks": _case(
        "flexible_masked_diffusion",
        undo_masks_after_bos,
        exempt={
            "nothing is lost": "missing tokens are only counted (see test_flexible_diffusion)",
            "lengths are reached": "few documents are masked completely",
        },
    ),
    "block_diffusion": _case(
        "block_diffusion", partial(undo_blocks, size=8, rates=(0.001, 1)), block_size=8
    ),
    "block_diffusion_clipped": _case(
        "block_diffusion",
        partial(undo_blocks, size=16, rates=(0.3, 0.8)),
        lowest_rate=0.3,
        highest_rate=0.8,
        exempt={"lengths are reached": "only short blocks are masked completely"},
    ),
    "retromae": _case(
        "retromae",
        partial(undo_restored, states=2, visible=lambda n: (n - 1) // 2),
        exact=True,
        exempt=STATES,
    ),
    "retromae_sparse": _case(
        "retromae",
        partial(undo_restored, states=3, visible=lambda n: 3 * (n - 1) // 10),
        exact=True,
        exempt=STATES,
        decoder_rate=0.7,
    ),
    "permutation": _case("permutation_lm", undo_permutation, exact=True),
    "permutation_of_tokens": _case(
        "permutation_lm", undo_permutation, exact=True, rate=0.5, span_lengths=None
    ),
    "any_subset": _case("any_subset_lm", partial(undo_groups, size=8), exact=True),
    "any_subset_in_line": _case(
        "any_subset_lm",
        partial(undo_groups, size=4, shuffled=False),
        exact=True,
        group_size=4,
        shuffled=False,
        exempt=NOTHING_DRAWN,
    ),
    "shuffled": _case("shuffled_lm", undo_shuffled, exact=True),
    "next_other": _case("next_sentence_prediction", exempt=PAIRED),
    "next_same": _case(
        "next_sentence_prediction", exempt=PAIRED, negatives="same", at_sentence_ends=False
    ),
    "order": _case("sentence_order_prediction", undo_order, exempt=UNCUT, at_sentence_ends=False),
    "order_of_sentences": _case("sentence_order_prediction", exempt=UNCUT | EDGES),
    "order_masked": _case(
        "then",
        undo_masked_order,
        exempt=UNCUT,
        first=partial(sentence_order_prediction, at_sentence_ends=False),
        second=partial(masked_lm, rate=0.3, framed=False),
    ),
    "ahead": _case("multi_token_prediction", undo_copy, exact=True, exempt=NOTHING_DRAWN),
    "ahead_annealed": _case(
        "annealed_multi_token_prediction", undo_copy, exact=True, exempt=NOTHING_DRAWN
    ),
    "prefix_tokens": _case(
        "prefix_token_prediction",
        undo_copy,
        exact=True,
        exempt=NOTHING_DRAWN,
        ahead_scales=(0.5, 0.25),
    ),
    "goldfish": _case(
        "goldfish_loss",
        undo_copy,
        exact=True,
        exempt=NOTHING_DRAWN
        | {"every target counts": "the tokens that a hash of their context chooses are left out"},
        width=3,
    ),
    "order_of_tokens": _case("token_order_prediction", undo_copy, exact=True, exempt=NOTHING_DRAWN),
    "summary": _case("future_summary", undo_copy, exact=True, exempt=NOTHING_DRAWN),
    "distilled": _case("distilled_lm", undo_copy, exact=True, exempt=NOTHING_DRAWN, top_k=2),
    "numbers": _case("number_token_loss", undo_copy, exact=True, exempt=NOTHING_DRAWN),
    "jepa": _case(
        "llm_jepa",
        exempt=NOTHING_DRAWN
        | {
            "nothing is lost": "a document becomes several segments (see test_joint_embedding)",
            "every target counts": "the user's turns are only read",
            "lengths are reached": "few documents have a turn for every token",
        },
        predictors=2,
    ),
    "tidar": _case(
        "tidar", partial(undo_masked_blocks, size=8), exact=True, exempt=NOTHING_DRAWN, block_size=8
    ),
    "tidar_causal": _case(  # I-DLM's blocks
        "tidar",
        partial(undo_masked_blocks, size=3, bidirectional=False, shifted=True),
        exact=True,
        exempt=NOTHING_DRAWN,
        block_size=3,
        bidirectional=False,
        shifted=True,
    ),
    "mutor": _case("mutor", partial(undo_registers, max_offset=4), exact=True),
    "mutor_far": _case("mutor", partial(undo_registers, max_offset=30), exact=True, max_offset=30),
    "superposed": _case(
        "superposed_lm",
        partial(undo_bags, bag_size=3),
        exact=True,
        exempt=NOTHING_DRAWN,
        bag_size=3,
    ),
    "implicit_token": _case("next_implicit_token", undo_copy, exact=True, exempt=NOTHING_DRAWN),
    "next_latent": _case("next_latent", undo_copy, exact=True, exempt=NOTHING_DRAWN),
    "contrastive_dropout": _case(
        "contrastive",
        exact=True,
        exempt=VIEWS | {"noise is drawn": "only the model's dropout distinguishes the views"},
    ),
    "contrastive_cropping": _case("contrastive", exempt=VIEWS, views="cropping"),
    "contrastive_deletion": _case("contrastive", exempt=VIEWS, views="deletion"),
    "contrastive_pairs": _case("contrastive_pairs", exempt=VIEWS | NOTHING_DRAWN),
    "text_to_text": _case(
        "text_to_text",
        partial(undo_answer, mode=S),
        exempt=NOTHING_DRAWN,
        longest_answer=1000,
        mode="S",
    ),
    "dialogue": _case(
        "dialogue",
        undo_turns,
        parts=5,
        exempt=NOTHING_DRAWN
        | {
            "every target counts": "the user's turns are only read",
            "lengths are reached": "few documents have a turn for every token",
        },
    ),
    "sequence_classification": _case(
        "sequence_classification", undo_frame, exact=True, exempt=NOTHING_DRAWN, num_classes=3
    ),
    "sequence_regression": _case(
        "sequence_regression", undo_frame, exact=True, exempt=NOTHING_DRAWN
    ),
    "token_classification": _case(
        "token_classification", undo_frame, exact=True, exempt=NOTHING_DRAWN, num_classes=3
    ),
    "mixture": _case(
        "mixture", undo_spans, partial(undo_split, mode=S), undo_copy, members=THREE_KINDS
    ),
    "phases": _case(
        "phases",
        partial(undo_bags, bag_size=6),
        undo_copy,
        exempt=NOTHING_DRAWN,
        members={"superposed": (superposed_lm, 0.3), "causal": (causal_lm, 0.7)},
    ),
    "annealed": _case(
        "annealed",
        *[undo_spans] * 3,
        builder=span_corruption,
        setting="noise_density",
        first=0.5,
        last=0.15,
        steps=100,
        stages=3,
    ),
    "ul2": _case(
        "ul2",
        *(partial(undo_spans, mode=mode) for mode in (R, R, X, X, X, X)),
        partial(undo_split, mode=S),
    ),
    "ul2_tutorial": _case(
        "ul2", *(partial(undo_spans, mode=mode) for mode in (R, S, X)), preset="tutorial"
    ),
}
PLAIN = [name for name, case in CASES.items() if len(case.inverses) == 1]
MIXTURES = [name for name in CASES if name not in PLAIN]


def _file_of(builder: str) -> str:
    """Returns the module of a builder that `objectives` exports, else the builder's name."""
    return getattr(getattr(objectives, builder, None), "__module__", builder)


# The name of the first case of each builder, and of each file of builders.
FIRST_OF_BUILDER = {case.builder: name for name, case in reversed(CASES.items())}
FIRST_OF_FILE = {_file_of(case.builder): name for name, case in reversed(CASES.items())}

text_row = partial(laws.text_row, IDS)


@cache
def example_batch(name: str, raw_length: int = RAW_LENGTH) -> laws.LawExamples:
    """Returns the test rows of a case: all sets of documents for all members."""
    case = CASES[name]
    return laws.examples(case.objective, IDS, raw_length, parts=case.parts)


def compiled(name: str) -> Callable:
    """Returns the compiled function (keys, rows) -> features for `example_batch(name)`."""
    batch = example_batch(name)
    return lambda keys, rows: laws.corrupted(batch, keys=keys, rows=rows)


@cache
def corrupted(name: str) -> dict[str, np.ndarray]:
    """Returns the features of `example_batch(name)`."""
    return laws.corrupted(example_batch(name))


def features_of(features, row: int) -> dict[str, np.ndarray]:
    return {key: value[row] for key, value in features.items()}


def row_and_partner(rows: Row, i: int) -> tuple[Row, Row]:
    return jax.tree.map(lambda x: x[i], rows), jax.tree.map(lambda x: x[i ^ 1], rows)


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for key in expected:
        np.testing.assert_array_equal(np.asarray(got[key]), np.asarray(expected[key]), key)
        assert jnp.asarray(got[key]).dtype == jnp.asarray(expected[key]).dtype
