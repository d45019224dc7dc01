"""All objectives that must keep the laws, with example settings.

Add a new objective to `CASES` together with its inverse. `test_laws.py` fails if a builder that
`objectives` exports is missing.
"""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pretrax import objectives
from pretrax.objectives import (
    Objective,
    Row,
    TokenIds,
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

# In addition to the names that this file defines.
__all__ = ["DOCUMENTS", "packed_lengths", "quick_jit"]

# T5's sentinels descend from the largest id. Further sentinels have other ids, so that their order
# cannot be computed.
IDS = objectives.check_token_ids(
    TokenIds(
        size=33_000,
        text=(2, 32_000),
        mask=32_103,
        cls=32_104,
        sep=32_105,
        sentinels=(*range(32_099, 31_999, -1), *range(32_200, 32_900)),
        modes=(("R", 32_100), ("S", 32_101), ("X", 32_102)),
        fim=(32_106, 32_107, 32_108),
        digits=tuple((17 + value, value) for value in range(10)),
        word_starts=objectives.bitmap(np.arange(33_000) % 5 < 3),  # words of 1 2/3 tokens
        sentence_ends=objectives.bitmap(np.arange(33_000) % 7 == 3),  # sentences of 7 tokens
        texts=objectives.TokenTexts(
            lambda: [str(i) if 2 <= i < 32_000 else "" for i in range(33_000)]
        ),
    )
)
R, S, X = (IDS.mode(name) for name in "RSX")


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
    "prefix": (functools.partial(prefix_lm, mode="S"), 1),
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
    "masked_inputs": _case("masked_input_next_token", undo_stand_ins(IDS), exact=True),
    "masked_tail": _case("causal_diffusion", undo_tail(IDS), exact=True),
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
    "prefix": _case("prefix_lm", undo_split(IDS)),
    "prefix_quarter": _case("prefix_lm", undo_split(IDS, S), suffix_share=0.25, mode="S"),
    "prefix_short": _case("prefix_lm", undo_split(IDS), suffix_share=0.8),
    "span": _case("span_corruption", undo_spans(IDS), exact=True),
    "span_dense": _case(
        "span_corruption",
        undo_spans(IDS, X),
        exact=True,
        noise_density=0.5,
        mean_span_length=1.5,
        mode="X",
    ),
    "span_single": _case(
        "span_corruption",
        undo_spans(IDS),
        exact=True,
        mean_span_length=64,
        exempt={"noise is drawn": "a single span of fixed length is always at the end"},
    ),
    "span_infeasible": _case(  # There are too few tokens to separate the spans.
        "span_corruption", undo_spans(IDS), exact=True, noise_density=0.9, mean_span_length=1
    ),
    "span_anywhere": _case(
        "span_corruption", undo_pieces(IDS), noise_density=0.4, placement="anywhere"
    ),
    "span_unclosed": _case(
        "span_corruption",
        undo_pieces(IDS, closes=False),
        exact=True,
        noise_density=0.4,
        placement="anywhere",
        closing_sentinel=False,
    ),
    "iid_unclosed": _case(
        "iid_denoising",
        undo_pieces(IDS, closes=False),
        exempt=FAR,
        noise_density=0.3,
        closing_sentinel=False,
    ),
    "iid": _case("iid_denoising", undo_pieces(IDS, R), exempt=FAR, noise_density=0.3, mode="R"),
    "iid_bert": _case(
        "iid_denoising",
        undo_whole(IDS, replaced(lambda token: token == IDS.mask or 2 <= token < 32_000)),
        exact=True,
        replace="mask_or_random",
        predict="everything",
    ),
    "deshuffling": _case("deshuffling", undo_whole(IDS, shuffled), exact=True),
    "token_masking": _case(
        "token_masking", undo_whole(IDS, replaced(lambda token: token == IDS.mask)), exact=True
    ),
    "token_deletion": _case("token_deletion", undo_whole(IDS, left_out)),
    "text_infilling": _case("text_infilling", undo_whole(IDS, infilled(IDS)), exempt=FAR),
    "sentence_permutation": _case(
        "sentence_permutation", undo_whole(IDS, sentences_permuted(IDS)), exact=True
    ),
    "document_rotation": _case("document_rotation", undo_whole(IDS, rotated), exact=True),
    "bart": _case("bart", undo_whole(IDS, permuted_and_infilled(IDS)), exempt=FAR),
    "span_drawn": _case(
        "span_corruption", undo_spans(IDS, R), noise_density=0.3, mean_span_length=(1, 3), mode="R"
    ),
    "span_one_length": _case(
        "span_corruption",
        undo_spans(IDS, R),
        noise_density=0.3,
        mean_span_length=(1, 3),
        length_drawn_per="document",
        mode="R",
    ),
    "middle": _case("fill_in_the_middle", undo_middle(IDS)),
    "middle_always": _case(
        "fill_in_the_middle", undo_middle(IDS, "spm"), exact=True, rate=1, spm_rate=0.75, spm="spm"
    ),
    "causal_masking": _case(
        "causal_masking",
        undo_causal_masking(IDS),
        exempt={
            "every target counts": "sentinels at random positions have no loss",
            "lengths are reached": "only one document in 100,000 has eight spans",
        },
    ),
    "causal_masking_single": _case(
        "causal_masking",
        undo_causal_masking(IDS, 1),
        exact=True,
        max_spans=1,
        exempt={"every target counts": "sentinels at random positions have no loss"},
    ),
    "blanks": _case("blank_infilling", undo_blanks(IDS)),
    "blanks_dense": _case("blank_infilling", undo_blanks(IDS), density=0.6, mean_span_length=1.5),
    "mass": _case("mass", undo_fragment(IDS), exact=True),
    "gap_sentences": _case("gap_sentences", undo_gaps(IDS), exempt=NOTHING_DRAWN | SENTENCES),
    "gap_sentences_random": _case(
        "gap_sentences", undo_gaps(IDS), selection="random", exempt=SENTENCES
    ),
    "gap_sentences_lead": _case(
        "gap_sentences", undo_gaps(IDS), selection="lead", exempt=NOTHING_DRAWN | SENTENCES
    ),
    "masked_lm": _case("masked_lm", undo_masks(IDS), exact=True),
    "masked_lm_drawn": _case(
        "masked_lm", undo_masks(IDS, framed=False), framed=False, selection="bernoulli", exempt=FAR
    ),
    "masked_lm_adaptive": _case("adaptive_masked_lm", undo_masks(IDS), exempt=FAR),
    "masked_lm_static": _case(
        "masked_lm",
        undo_masks(IDS),
        exact=True,
        static_copies=3,
        max_predictions=20,
        exempt={"documents stay apart": "the masks of a row depend on all of its text"},
    ),
    "masked_words": _case("masked_lm", undo_masks(IDS), rate=0.3, whole_words=True),
    "masked_spans": _case(
        "masked_lm",
        undo_masks(IDS),
        whole_words=True,
        span_lengths=geometric_lengths(),
        replace_together=True,
    ),
    "masked_next": _case("masked_next_token", undo_masks_before(IDS), exact=True),
    "masked_permuted": _case("masked_permuted_lm", undo_permuted_masks(IDS), exact=True, rate=0.3),
    "replaced": _case("replaced_token_detection", undo_masks(IDS, only_masks=True), exact=True),
    "diffusion": _case("masked_diffusion", undo_masks(IDS, only_masks=True, framed=False)),
    "diffusion_complementary": _case(
        "complementary_diffusion",
        exempt={
            "nothing is lost": "a document becomes two segments (see test_complementary_masks)",
            "lengths are reached": "pools only count the segments",
        },
    ),
    "diffusion_informed": _case(
        "frequency_informed_diffusion", undo_masks(IDS, only_masks=True, framed=False)
    ),
    "diffusion_shifted": _case("shifted_diffusion", undo_masks_before(IDS)),
    "diffusion_ahead": _case("shifted_diffusion", undo_masks_before(IDS, 0.25), ahead_share=0.25),
    "diffusion_hybrid": _case("hybrid_diffusion", undo_hybrid(IDS), exact=True, random_share=0.2),
    "diffusion_uniform": _case("uniform_diffusion", undo_replaced(IDS), exact=True),
    "diffusion_mixed": _case("mixed_diffusion", undo_hybrid(IDS), exact=True, random_share=0.4),
    "edits": _case("token_editing", undo_edits(IDS)),
    "edits_whole": _case(
        "token_editing", undo_edits(IDS), builder=masked_diffusion, wrong_share=0.5
    ),
    "unrolled": _case("unrolled_denoising", undo_replaced(IDS), exact=True),
    "insertions": _case("insertion_lm", undo_insertions(IDS)),
    "insertions_and_masks": _case(
        "flexible_masked_diffusion",
        undo_masks_after_bos(IDS),
        exempt={
            "nothing is lost": "missing tokens are only counted (see test_flexible_diffusion)",
            "lengths are reached": "few documents are masked completely",
        },
    ),
    "block_diffusion": _case("block_diffusion", undo_blocks(IDS, 8, (0.001, 1)), block_size=8),
    "block_diffusion_clipped": _case(
        "block_diffusion",
        undo_blocks(IDS, 16, (0.3, 0.8)),
        lowest_rate=0.3,
        highest_rate=0.8,
        exempt={"lengths are reached": "only short blocks are masked completely"},
    ),
    "retromae": _case(
        "retromae",
        undo_restored(IDS, states=2, visible=lambda n: (n - 1) // 2),
        exact=True,
        exempt=STATES,
    ),
    "retromae_sparse": _case(
        "retromae",
        undo_restored(IDS, states=3, visible=lambda n: 3 * (n - 1) // 10),
        exact=True,
        exempt=STATES,
        decoder_rate=0.7,
    ),
    "permutation": _case("permutation_lm", undo_permutation(IDS), exact=True),
    "permutation_of_tokens": _case(
        "permutation_lm", undo_permutation(IDS), exact=True, rate=0.5, span_lengths=None
    ),
    "any_subset": _case("any_subset_lm", undo_groups(IDS, 8), exact=True),
    "any_subset_in_line": _case(
        "any_subset_lm",
        undo_groups(IDS, 4, shuffled=False),
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
    "order": _case(
        "sentence_order_prediction", undo_order(IDS), exempt=UNCUT, at_sentence_ends=False
    ),
    "order_of_sentences": _case("sentence_order_prediction", exempt=UNCUT | EDGES),
    "order_masked": _case(
        "then",
        undo_masked_order(IDS),
        exempt=UNCUT,
        first=functools.partial(sentence_order_prediction, at_sentence_ends=False),
        second=functools.partial(masked_lm, rate=0.3, framed=False),
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
    "distilled": _case("distilled_lm", undo_copy, exact=True, exempt=NOTHING_DRAWN, likeliest=2),
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
        "tidar", undo_masked_blocks(IDS, 8), exact=True, exempt=NOTHING_DRAWN, block_size=8
    ),
    "tidar_causal": _case(  # I-DLM's blocks
        "tidar",
        undo_masked_blocks(IDS, 3, bidirectional=False, shifted=True),
        exact=True,
        exempt=NOTHING_DRAWN,
        block_size=3,
        bidirectional=False,
        shifted=True,
    ),
    "mutor": _case("mutor", undo_registers(IDS, 4), exact=True),
    "mutor_far": _case("mutor", undo_registers(IDS, 30), exact=True, max_offset=30),
    "superposed": _case(
        "superposed_lm", undo_bags(3), exact=True, exempt=NOTHING_DRAWN, bag_size=3
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
        "text_to_text", undo_answer(IDS, S), exempt=NOTHING_DRAWN, longest_answer=1000, mode="S"
    ),
    "dialogue": _case(
        "dialogue",
        undo_turns(IDS),
        parts=5,
        exempt=NOTHING_DRAWN
        | {
            "every target counts": "the user's turns are only read",
            "lengths are reached": "few documents have a turn for every token",
        },
    ),
    "sequence_classification": _case(
        "sequence_classification", undo_frame(IDS), exact=True, exempt=NOTHING_DRAWN, num_classes=3
    ),
    "sequence_regression": _case(
        "sequence_regression", undo_frame(IDS), exact=True, exempt=NOTHING_DRAWN
    ),
    "token_classification": _case(
        "token_classification", undo_frame(IDS), exact=True, exempt=NOTHING_DRAWN, num_classes=3
    ),
    "mixture": _case(
        "mixture", undo_spans(IDS), undo_split(IDS, S), undo_copy, members=THREE_KINDS
    ),
    "phases": _case(
        "phases",
        undo_bags(6),
        undo_copy,
        exempt=NOTHING_DRAWN,
        members={"superposed": (superposed_lm, 0.3), "causal": (causal_lm, 0.7)},
    ),
    "annealed": _case(
        "annealed",
        *[undo_spans(IDS)] * 3,
        builder=span_corruption,
        setting="noise_density",
        first=0.5,
        last=0.15,
        steps=100,
        stages=3,
    ),
    "ul2": _case(
        "ul2", *(undo_spans(IDS, mode) for mode in (R, R, X, X, X, X)), undo_split(IDS, S)
    ),
    "ul2_tutorial": _case("ul2", *(undo_spans(IDS, mode) for mode in (R, S, X)), preset="tutorial"),
}
PLAIN = [name for name, case in CASES.items() if len(case.inverses) == 1]
MIXTURES = [name for name in CASES if name not in PLAIN]

text_row = functools.partial(laws.text_row, IDS)


@functools.cache
def example_batch(name: str, raw_length: int = RAW_LENGTH) -> laws.LawExamples:
    """Returns the test rows of a case: all sets of documents for all members."""
    case = CASES[name]
    return laws.examples(case.objective, IDS, raw_length, parts=case.parts)


def compiled(name: str) -> Callable:
    """Returns the compiled function (keys, rows) -> features for `example_batch(name)`."""
    batch = example_batch(name)
    return lambda keys, rows: laws.corrupted(batch, keys=keys, rows=rows)


@functools.cache
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
