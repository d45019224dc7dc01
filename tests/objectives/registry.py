"""Every objective that has to keep the laws, with example settings.

A new objective is added to `CASES` with the inverse that undoes it; `test_laws.py` fails as long
as a builder exported by `objectives` is not here.
"""

import functools
import re
from collections.abc import Callable, Sequence
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
    bart,
    batched,
    blank_infilling,
    causal_lm,
    causal_masking,
    contrastive,
    contrastive_pairs,
    deshuffling,
    dialogue,
    document_rotation,
    fill_in_the_middle,
    geometric_lengths,
    iid_denoising,
    masked_diffusion,
    masked_lm,
    masked_next_token,
    members_of,
    mixture,
    multi_token_prediction,
    next_sentence_prediction,
    prefix_lm,
    replaced_token_detection,
    sentence_order_prediction,
    sentence_permutation,
    sequence_classification,
    sequence_regression,
    span_corruption,
    text_infilling,
    text_to_text,
    then,
    token_classification,
    token_deletion,
    token_masking,
    ul2,
)
from tests.objectives.inverse import undo_copy, undo_spans, undo_split
from tests.objectives.undo_infilling import undo_blanks, undo_causal_masking, undo_middle
from tests.objectives.undo_masking import undo_masks, undo_masks_before
from tests.objectives.undo_noising import (
    infilled,
    left_out,
    permuted_and_infilled,
    replaced,
    rotated,
    sentences_permuted,
    shuffled,
    undo_pieces,
    undo_whole,
)
from tests.objectives.undo_pairs import undo_masked_order, undo_order

# T5's sentinels descend from the top; more follow elsewhere, so that order is no arithmetic.
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
        word_starts=objectives.bitmap(np.arange(33_000) % 5 < 3),  # words of 1 2/3 tokens
        sentence_ends=objectives.bitmap(np.arange(33_000) % 7 == 3),  # sentences of 7 tokens
    )
)
R, S, X = (IDS.mode(name) for name in "RSX")


# What a law's test is called in the table, and in `exempt`.
LAWS = (
    "nothing is lost",  # the inverse gives the document back
    "every target counts",
    "batch = loop",  # and jit = no jit
    "sharded = unsharded",
    "other key, other bits",
    "more padding changes nothing",
    "padding gives padding",
    "int32 of the planned lengths",
    "lengths never decrease",
    "lengths are kept",  # exactly, or as a bound
    "lengths are reached",
)


class Case(NamedTuple):
    builder: str  # the exported function that builds it
    objective: Objective
    inverses: tuple[Callable, ...]  # one for each member
    exact: bool  # `lengths` is what every row takes, not a bound on what is drawn
    exempt: dict[str, str]  # law that cannot hold -> why


def _case(
    build: Callable,
    *inverses: Callable,
    exact: bool = False,
    exempt: dict[str, str] | None = None,
    **settings,
) -> Case:
    exempt = exempt or {}
    assert inverses or "nothing is lost" in exempt, "give the inverse, or say why there is none"
    return Case(build.__name__, build(IDS, **settings), inverses or (None,), exact, exempt)


def cases_under(law: str) -> list[str]:
    """Names of the cases that have to keep a law."""
    assert law in LAWS, law
    return [name for name, case in CASES.items() if law not in case.exempt]


def documented(name: str) -> dict[str, Any]:
    """What the README's block that opens with the comment `# name` defines."""
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

FAR = {"lengths are reached": "the bound lies six standard deviations away"}

UNCUT = {
    "lengths are reached": "a document of one token has no pair to be judged",
}
EDGES = {"nothing is lost": "sentences that the row cuts are left out"}
PAIRED = UNCUT | {
    "nothing is lost": "text that follows is not shown where other text stands in its place",
}
VIEWS = {
    "nothing is lost": "a text becomes several segments: test_contrastive_learning undoes them",
    "lengths are reached": "only documents with separators have several texts",
}

NOTHING_DRAWN = {"other key, other bits": "nothing is drawn"}
UNANSWERED = NOTHING_DRAWN | {
    "every target counts": "a document without an answer does not count",
    "nothing is lost": "test_supervised divides documents that have answers",
    "lengths are reached": "only documents with answers have targets",
}

CASES = {
    "causal": _case(
        causal_lm,
        undo_copy,
        exact=True,
        exempt={"other key, other bits": "nothing is drawn"},
    ),
    "readme": _case(
        documented("my_objectives.py")["backward_lm"],
        lambda document: undo_copy(document)[::-1],
        exact=True,
        exempt={"other key, other bits": "nothing is drawn"},
    ),
    "prefix": _case(prefix_lm, undo_split(IDS)),
    "prefix_quarter": _case(prefix_lm, undo_split(IDS, S), suffix_share=0.25, mode="S"),
    "span": _case(span_corruption, undo_spans(IDS), exact=True),
    "span_dense": _case(
        span_corruption,
        undo_spans(IDS, X),
        exact=True,
        noise_density=0.5,
        mean_span_length=1.5,
        mode="X",
    ),
    "span_single": _case(
        span_corruption,
        undo_spans(IDS),
        exact=True,
        mean_span_length=64,
        exempt={"other key, other bits": "one span of a fixed length, at the end"},
    ),
    "span_infeasible": _case(  # too few tokens to separate the spans
        span_corruption, undo_spans(IDS), exact=True, noise_density=0.9, mean_span_length=1
    ),
    "span_anywhere": _case(
        span_corruption, undo_pieces(IDS), exact=True, noise_density=0.4, placement="anywhere"
    ),
    "iid": _case(iid_denoising, undo_pieces(IDS, R), exempt=FAR, noise_density=0.3, mode="R"),
    "iid_bert": _case(
        iid_denoising,
        undo_whole(IDS, replaced(lambda token: token == IDS.mask or 2 <= token < 32_000)),
        exact=True,
        replace="mask_or_random",
        predict="everything",
    ),
    "deshuffling": _case(deshuffling, undo_whole(IDS, shuffled), exact=True),
    "token_masking": _case(
        token_masking, undo_whole(IDS, replaced(lambda token: token == IDS.mask)), exact=True
    ),
    "token_deletion": _case(token_deletion, undo_whole(IDS, left_out)),
    "text_infilling": _case(text_infilling, undo_whole(IDS, infilled(IDS)), exempt=FAR),
    "sentence_permutation": _case(
        sentence_permutation, undo_whole(IDS, sentences_permuted(IDS)), exact=True
    ),
    "document_rotation": _case(document_rotation, undo_whole(IDS, rotated), exact=True),
    "bart": _case(bart, undo_whole(IDS, permuted_and_infilled(IDS)), exempt=FAR),
    "span_drawn_mean": _case(
        span_corruption, undo_spans(IDS, R), noise_density=0.3, mean_span_length=(1, 4), mode="R"
    ),
    "middle": _case(fill_in_the_middle, undo_middle(IDS)),
    "middle_always": _case(
        fill_in_the_middle, undo_middle(IDS, "spm"), exact=True, rate=1, spm_rate=0.75, spm="spm"
    ),
    "causal_masking": _case(
        causal_masking,
        undo_causal_masking(IDS),
        exempt={
            "every target counts": "sentinels stand at random places: no loss",
            "lengths are reached": "eight spans are drawn once in a hundred thousand documents",
        },
    ),
    "causal_masking_single": _case(
        causal_masking,
        undo_causal_masking(IDS, 1),
        exact=True,
        max_spans=1,
        exempt={"every target counts": "sentinels stand at random places: no loss"},
    ),
    "blanks": _case(blank_infilling, undo_blanks(IDS)),
    "blanks_dense": _case(blank_infilling, undo_blanks(IDS), density=0.6, mean_span_length=1.5),
    "masked_lm": _case(masked_lm, undo_masks(IDS), exact=True),
    "masked_lm_drawn": _case(
        masked_lm,
        undo_masks(IDS),
        selection="bernoulli",
        exempt={"lengths are reached": "six standard deviations above the mean are never drawn"},
    ),
    "masked_lm_static": _case(
        masked_lm, undo_masks(IDS), exact=True, static_copies=3, max_predictions=20
    ),
    "masked_words": _case(masked_lm, undo_masks(IDS), rate=0.3, whole_words=True),
    "masked_spans": _case(
        masked_lm,
        undo_masks(IDS),
        whole_words=True,
        span_lengths=geometric_lengths(),
        replace_together=True,
    ),
    "masked_next": _case(masked_next_token, undo_masks_before(IDS), exact=True),
    "replaced": _case(replaced_token_detection, undo_masks(IDS, only_masks=True), exact=True),
    "diffusion": _case(masked_diffusion, undo_masks(IDS, only_masks=True)),
    "next_other": _case(next_sentence_prediction, exempt=PAIRED),
    "next_same": _case(
        next_sentence_prediction,
        exempt=PAIRED,
        negatives="same",
        at_sentence_ends=False,
    ),
    "order": _case(
        sentence_order_prediction, undo_order(IDS), exempt=UNCUT, at_sentence_ends=False
    ),
    "order_of_sentences": _case(sentence_order_prediction, exempt=UNCUT | EDGES),
    "order_masked": _case(
        then,
        undo_masked_order(IDS),
        exempt=UNCUT,
        first=functools.partial(sentence_order_prediction, at_sentence_ends=False),
        second=functools.partial(masked_lm, rate=0.3),
    ),
    "ahead": _case(
        multi_token_prediction,
        undo_copy,
        exact=True,
        exempt={"other key, other bits": "nothing is drawn"},
    ),
    "contrastive_dropout": _case(
        contrastive,
        exact=True,
        exempt=VIEWS | {"other key, other bits": "the model's dropout tells the views apart"},
    ),
    "contrastive_cropping": _case(contrastive, exempt=VIEWS, views="cropping"),
    "contrastive_deletion": _case(contrastive, exempt=VIEWS, views="deletion"),
    "contrastive_pairs": _case(
        contrastive_pairs,
        exempt=VIEWS | {"other key, other bits": "nothing is drawn"},
    ),
    "text_to_text": _case(text_to_text, exempt=UNANSWERED, longest_answer=8, mode="S"),
    "dialogue": _case(dialogue, exempt=UNANSWERED),
    "sequence_classification": _case(sequence_classification, exempt=UNANSWERED, num_classes=3),
    "sequence_regression": _case(sequence_regression, exempt=UNANSWERED),
    "token_classification": _case(token_classification, exempt=UNANSWERED, num_classes=5),
    "mixture": _case(mixture, undo_spans(IDS), undo_split(IDS, S), undo_copy, members=THREE_KINDS),
    "ul2": _case(ul2, *(undo_spans(IDS, mode) for mode in (R, R, X, X, X, X)), undo_split(IDS, S)),
    "ul2_tutorial": _case(ul2, *(undo_spans(IDS, mode) for mode in (R, S, X)), preset="tutorial"),
}
PLAIN = [name for name, case in CASES.items() if len(case.inverses) == 1]
MIXTURES = [name for name in CASES if name not in PLAIN]

# Documents of each test row. The shortest lengths are where masks degenerate.
DOCUMENTS = (
    (1,),
    (2,),
    (3,),
    (50,),
    (1, 2, 3, 20),
    (3, 1, 1, 2),
    (30, 17),
    (2, 40, 1, 5),
)
RAW_LENGTH = 56


def text_row(document_lengths: Sequence[int], raw_length: int, seed: int = 0, member: int = 0):
    """(Row of NumPy arrays, documents as lists) of random text."""
    random = np.random.default_rng([seed, *document_lengths])
    documents = [random.integers(*IDS.text, n).tolist() for n in document_lengths]
    tokens, segments = np.zeros((2, raw_length), np.int32)
    used = sum(document_lengths)
    tokens[:used] = np.concatenate(documents)
    segments[:used] = np.repeat(np.arange(len(documents)) + 1, document_lengths)
    return Row(tokens, segments, np.int32(member)), documents


def packed_lengths(objective: Objective, document_lengths: Sequence[int]) -> dict[str, int]:
    """Planned lengths of a row of several documents, whichever member it belongs to."""
    planned: dict[str, int] = {}
    for member in members_of(objective):
        each = [member.objective.lengths(n) for n in document_lengths]
        for key in each[0]:
            total = max if key == "sentinels" else sum
            planned[key] = max(planned.get(key, 0), total(n[key] for n in each))
    planned.pop("both", None)
    return planned


class Batch(NamedTuple):
    """Test rows of one case: every set of documents through every member."""

    keys: jax.Array
    rows: Row
    documents: list[list[list[int]]]
    lengths: dict[str, int]
    max_documents: int


@functools.cache
def example_batch(name: str, raw_length: int = RAW_LENGTH) -> Batch:
    case = CASES[name]
    rows, documents = zip(
        *(
            text_row(lengths, raw_length, seed, member)
            for member in range(len(case.inverses))
            for seed in range(2)
            for lengths in DOCUMENTS
        )
    )
    planned = [packed_lengths(case.objective, lengths) for lengths in DOCUMENTS]
    return Batch(
        keys=jax.random.split(jax.random.key(7), len(rows)),
        rows=jax.tree.map(lambda *x: np.stack(x), *rows),
        documents=list(documents),
        lengths={key: max(each[key] for each in planned) for key in planned[0]},
        max_documents=max(map(len, DOCUMENTS)),
    )


def quick_jit(f: Callable) -> Callable:
    """Jit that compiles in half the time, for programs that run once: integers are exact."""
    return jax.jit(f, compiler_options={"xla_backend_optimization_level": 0})


@functools.cache
def compiled(name: str) -> Callable:
    """Jitted corruption of `example_batch(name)`."""
    batch = example_batch(name)
    return jax.jit(batched(CASES[name].objective, batch.lengths, batch.max_documents))


@functools.cache
def corrupted(name: str) -> dict[str, np.ndarray]:
    """Features of `example_batch(name)`."""
    batch = example_batch(name)
    return jax.tree.map(np.asarray, compiled(name)(batch.keys, batch.rows))


def features_of(features, row: int) -> dict[str, np.ndarray]:
    return {key: value[row] for key, value in features.items()}


def row_and_partner(rows: Row, i: int) -> tuple[Row, Row]:
    return Row(*(x[i] for x in rows)), Row(*(x[i ^ 1] for x in rows))


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for key in expected:
        np.testing.assert_array_equal(np.asarray(got[key]), np.asarray(expected[key]), key)
        assert jnp.asarray(got[key]).dtype == jnp.asarray(expected[key]).dtype
