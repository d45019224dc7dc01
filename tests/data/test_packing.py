"""Packing documents into rows: no token is lost, plans are kept, and rows are well filled."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.packing import MODELS, filled, log_normal
from pretrax.data import packing
from pretrax.data.corpus import Document, in_parts
from pretrax.data.packing import (
    POOL,
    Packing,
    ShardReader,
    document_for_rows,
    max_documents_per_row,
    plan_packing,
    rows_of_documents,
    stacked,
)
from pretrax.objectives import (
    Rows,
    batched,
    causal_lm,
    fill_in_the_middle,
    layouts,
    members_of,
    mixture,
    row_groups,
    sentence_order_prediction,
    span_corruption,
    text_to_text,
    ul2,
)
from pretrax.objectives.contract import NO_LABEL
from tests.objectives.inverse import corrupted_documents
from tests.objectives.registry import CASES, IDS, quick_jit
from tests.refusals import refuses
from tests.training import tiny

POLICIES = ("concatenate", "isolate", "whole", "single")
LAYOUTS = {
    "encoder_decoder": (layouts.encoder_decoder, {"encoder": 48, "decoder": 40}),
    "decoder": (layouts.decoder, {"decoder": 64}),
}
EOS = 1
UL2 = ul2(IDS)


class Documents:
    """A stream that repeats documents of these lengths. Token p of document d is 1000 d + p."""

    def __init__(self, lengths):
        self.lengths, self.number = lengths, 0

    def next_document(self):
        start, n = 1000 * self.number, self.lengths[self.number % len(self.lengths)]
        self.number += 1
        return Document(np.arange(start, start + n, dtype=np.int32), ends_document=True)

    def state(self):
        return {"number": np.int64(self.number)}

    def restore(self, state):
        self.number = int(state["number"])


@functools.cache
def ul2_groups(layout, policy, documents=4):
    planned_for = max_documents_per_row(policy, documents)
    return row_groups(UL2, LAYOUTS[layout][0], IDS, [LAYOUTS[layout][1]], planned_for)


@functools.cache
def ul2_packing(layout, policy):
    return plan_packing(policy, UL2, LAYOUTS[layout][0], ul2_groups(layout, policy))


def causal_packing(policy, length, documents=16, **fields):
    groups = row_groups(
        causal_lm(IDS),
        layouts.decoder,
        IDS,
        [{"decoder": length}],
        max_documents_per_row(policy, documents),
    )
    return plan_packing(policy, causal_lm(IDS), layouts.decoder, groups)._replace(**fields)


def packed_document(document, rows=Rows(), end=None) -> Document:  # noqa: B008
    return document_for_rows(document, Packing("single", {}, rows, end_of_document=end))


def documents_of(row) -> list[list[int]]:
    """Returns the documents of a row by its segments."""
    assert (np.diff(row.segments) >= 0).all() and row.tokens.size == row.segments.size
    assert row.tokens.dtype == row.segments.dtype == np.int32
    return [row.tokens[row.segments == d].tolist() for d in range(1, row.segments.max() + 1)]


def tokens_by_document(rows) -> dict[int, list[int]]:
    """Returns the tokens of each document in the order of the rows."""
    found: dict[int, list[int]] = {}
    for row in rows:
        for token in row.tokens.tolist():
            found.setdefault(token // 1000, []).append(token)
    return found


# --- no token is lost or repeated ---------------------------------------------------------------

LENGTHS = st.lists(st.one_of(st.integers(1, 20), st.integers(1, 400)), min_size=1, max_size=40)
LAYOUTS_AND_POLICIES = [(layout, policy) for layout in LAYOUTS for policy in POLICIES]


@pytest.mark.sampled
@pytest.mark.parametrize("layout, policy", LAYOUTS_AND_POLICIES)
@settings(derandomize=True, deadline=None, max_examples=25)
@given(lengths=LENGTHS, pool=st.sampled_from([1, 5, POOL]))
def test_tokens_are_packed_once_and_in_order(layout, policy, lengths, pool):
    stream = Documents(lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "POOL", pool)
        reader = ShardReader(stream, ul2_packing(layout, policy))
    rows = [reader.row(i % len(UL2.facts.members)) for i in range(60)]
    served = tokens_by_document(rows)
    waiting_document = Document(reader.state()["waiting.tokens"])
    for d, waiting in tokens_by_document([waiting_document]).items():
        served[d] = served.get(d, []) + waiting
    assert sorted(served) == list(range(stream.number))
    for d, tokens in served.items():
        n = lengths[d % len(lengths)]
        assert tokens == list(range(1000 * d, 1000 * d + n))
    if policy != "concatenate":  # No segment has text of two documents, or text with a gap.
        for row in rows:
            for document in documents_of(row):
                assert document == list(range(document[0], document[0] + len(document)))
                assert document[0] // 1000 == document[-1] // 1000


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("tokens", [None, 0, 1, 157, 158, 10**6])
def test_finite_documents_are_packed_completely(policy, tokens):
    stream = Documents([3, 150, 1, 64, 65, 2] + [7] * 40)
    pieces = [stream.next_document()._replace(ends_document=i != 1) for i in range(46)]
    planned = causal_packing(policy, 64, end_of_document=EOS)
    rows = rows_of_documents(pieces, planned, tokens=tokens)
    text = np.concatenate([document_for_rows(piece, planned).tokens for piece in pieces])[:tokens]
    got = np.concatenate([np.zeros(0, int), *(row.tokens for row in rows)])
    np.testing.assert_array_equal(np.sort(got), np.sort(text))
    assert all(0 < row.tokens.size <= 64 for row in rows)
    if policy in ("concatenate", "isolate"):
        np.testing.assert_array_equal(got, text)


# --- rows fit the plan --------------------------------------------------------------------------


def assert_fits(row, member, layout, group):
    """Checks the contract: streams add up over a row, and each document reuses the sentinels."""
    lengths = [UL2.facts.members[member].objective.lengths(len(d)) for d in documents_of(row)]
    for name in ("inputs", "targets"):
        assert sum(n[name] for n in lengths) <= group.features[name]
    assert max(n.get("sentinels", 0) for n in lengths) <= group.features["sentinels"]
    if layout == "encoder_decoder":
        assert sum(n["inputs"] for n in lengths) <= group.stacks["encoder"]
        assert sum(n["targets"] for n in lengths) <= group.stacks["decoder"]
    else:
        joint_lengths = [n.get("both", n["inputs"] + n["targets"]) for n in lengths]
        assert sum(joint_lengths) <= group.stacks["decoder"]
        assert sum(n["targets"] for n in lengths) <= group.stacks["predict"]
    assert len(lengths) <= group.max_documents
    assert row.tokens.size <= group.row_length


@pytest.mark.sampled
@pytest.mark.parametrize("layout, policy", LAYOUTS_AND_POLICIES)
@settings(derandomize=True, deadline=None, max_examples=25)
@given(lengths=LENGTHS)
def test_packed_rows_fit_planned_lengths_of_ul2(layout, policy, lengths):
    (group,) = ul2_groups(layout, policy)
    reader = ShardReader(Documents(lengths), ul2_packing(layout, policy))
    for i in range(60):
        member = i % len(UL2.facts.members)
        assert_fits(reader.row(member), member, layout, group)


@pytest.mark.parametrize("n", [1, 2, 7, 60, 100])
def test_rows_respect_feature_lengths_shorter_than_stacks(n):
    objective, layout, shape = MODELS["span corruption, 512 + 128"]
    (group,) = row_groups(objective, layout, IDS, [shape], 500)
    assert group.features["targets"] == 114 < group.stacks["decoder"]
    row = ShardReader(Documents([n]), plan_packing("whole", objective, layout, [group])).row()
    lengths, documents = objective.lengths(n), row.segments.max()
    assert documents == min(512 // lengths["inputs"], 114 // lengths["targets"], 568 // n)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_rows_survive_corruption_and_layout(layout):
    (group,) = ul2_groups(layout, "whole")
    inverses = CASES["ul2"].inverses
    lengths = np.random.default_rng(0).choice([1, 2, 3, 5, 9, 14, 30, 60], 300)
    reader = ShardReader(Documents(lengths), ul2_packing(layout, "whole"))
    members = np.arange(56) % len(UL2.facts.members)
    rows = [reader.row(member) for member in members.tolist()]
    rows = [row._replace(tokens=row.tokens % 30_000 + 2) for row in rows]  # ids of text
    keys = jax.random.split(jax.random.key(0), len(rows))
    batch = stacked(rows, group.row_length)
    features = jax.device_get(
        quick_jit(batched(UL2, group.features, group.max_documents))(keys, batch)
    )
    arrange = LAYOUTS[layout][0].arrange
    arranged = jax.vmap(lambda row: arrange(row, group.stacks, IDS.bos, group.max_documents))(
        features
    )
    for i, row in enumerate(rows):
        row_features = {name: column[i] for name, column in features.items()}
        corrupted = corrupted_documents(row_features)
        restored = [inverses[members[i]](corrupted[d]) for d in sorted(corrupted)]
        assert restored == documents_of(row)
        given, written = ((row_features[f"{s}_segments"] > 0).sum() for s in ("inputs", "targets"))
        stacks = [(column[i] > 0).sum() for k, column in arranged.items() if "segment_ids" in k]
        assert sorted(stacks) == sorted([given, written] if len(stacks) == 2 else [given + written])
    assert max(row.segments.max() for row in rows) == 4


# --- policies by hand ---------------------------------------------------------------------------


def first_rows(policy, lengths, rows, length=10, documents=16):
    """Returns the first rows as lists of (document, number of tokens)."""
    reader = ShardReader(Documents(lengths), causal_packing(policy, length, documents))
    return [
        [(number, len(tokens)) for number, tokens in tokens_by_document([reader.row()]).items()]
        for _ in range(rows)
    ]


def test_isolate_cuts_documents_at_row_end(monkeypatch):
    monkeypatch.setattr(packing, "POOL", 1)
    assert first_rows("isolate", [4, 9, 3, 25], 4) == [
        [(0, 4), (1, 6)],
        [(1, 3), (2, 3), (3, 4)],
        [(3, 10)],
        [(3, 10)],
    ]
    assert first_rows("isolate", [2], 2, documents=3) == [
        [(0, 2), (1, 2), (2, 2)],
        [(3, 2), (4, 2), (5, 2)],
    ]


@pytest.mark.parametrize("policy", ["concatenate", "isolate"])
def test_rows_start_with_oldest_piece_then_unread_documents(policy, monkeypatch):
    monkeypatch.setattr(packing, "POOL", 2)
    assert first_rows(policy, [25, 4, 7, 8], 6) == [
        [(0, 10)],
        [(1, 4), (2, 6)],
        [(0, 10)],
        [(2, 1), (3, 8), (4, 1)],
        [(0, 5), (5, 4), (6, 1)],
        [(4, 10)],
    ]


def test_isolate_and_concatenate_give_same_tokens():
    a, b = (
        ShardReader(tiny.Stream(0, 1), causal_packing(policy, 32, end_of_document=EOS))
        for policy in ("isolate", "concatenate")
    )
    for _ in range(20):
        np.testing.assert_array_equal(a.row().tokens, b.row().tokens)


def test_whole_documents_are_chosen_by_best_fit(monkeypatch):
    monkeypatch.setattr(packing, "POOL", 6)
    assert first_rows("whole", [4, 7, 5, 2, 5, 3, 9, 1, 9, 9, 9, 9], 3) == [
        # The older of two documents with 5 tokens. The document with 1 token does not wait yet.
        [(0, 4), (2, 5)],
        [(1, 7), (5, 3)],  # Not document 2, which is smaller.
        [(3, 2), (4, 5), (7, 1)],
    ]
    assert first_rows("whole", [2, 2, 2, 2, 3, 3], 1, documents=3) == [[(0, 2), (4, 3), (5, 3)]]


def test_whole_cuts_only_documents_longer_than_a_row(monkeypatch):
    monkeypatch.setattr(packing, "POOL", 3)
    assert first_rows("whole", [23, 10, 8, 6], 6) == [
        [(0, 10)],
        [(1, 10)],
        [(2, 8)],
        [(0, 10)],
        [(3, 6), (0, 3)],
        [(4, 10)],
    ]


class Epochs(Documents):
    """A stream with the same documents in every epoch, in alternating directions."""

    def next_document(self):
        epoch, at = divmod(self.number, len(self.lengths))
        self.number += 1
        d = at if epoch % 2 == 0 else -1 - at
        start = 1000 * (d % len(self.lengths))
        return Document(
            np.arange(start, start + self.lengths[d], dtype=np.int32), ends_document=True
        )


def test_single_policy_repeats_rows_every_epoch(monkeypatch):
    """Static masks (`static_copies`) require this."""
    monkeypatch.setattr(packing, "POOL", 4)
    different = {}
    for policy in POLICIES:
        reader = ShardReader(Epochs([25, 4, 17, 10]), causal_packing(policy, 10))
        rows = [reader.row() for _ in range(70)]
        different[policy] = len({tuple(row.tokens.tolist()) for row in rows})
    assert different.pop("single") == 7 < min(different.values())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("lengths", [[300, 300, 1], [16_384], [2000, 3, 3]])
def test_consecutive_rows_share_no_document(policy, lengths):
    # Documents have up to 16,384 tokens, so all tokens of a document are its number.
    class Long(Documents):
        def next_document(self):
            piece = super().next_document()
            return piece._replace(tokens=np.full(piece.tokens.size, self.number, np.int32))

    reader = ShardReader(Long(lengths), causal_packing(policy, 64))
    rows = [set(reader.row().tokens.tolist()) for _ in range(1000)]
    if policy == "single":
        assert all(len(row) == 1 for row in rows)
    assert not any(a & b for a, b in zip(rows, rows[1:]))


# --- best fit -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_best_fit_fills_rows_better_than_greedy_packing(model):
    objective, layout, shape = MODELS[model]
    (single, greedy, best_fit), _ = filled(objective, layout, shape, log_normal()[:4000])
    assert single < greedy - 0.2
    assert greedy < best_fit - 0.1
    assert best_fit > 0.96


@pytest.mark.parametrize("lengths", [[60, 4, 60, 4, 33], [64], [1], [5, 700, 9, 31, 64]])
def test_pieces_wait_fewer_rows_than_pool_size(lengths):
    class Watched(Documents):
        def next_document(self):
            arrived[self.number] = row
            return super().next_document()

    arrived, row = {}, 0
    reader = ShardReader(Watched(lengths), causal_packing("whole", 64))
    for row in range(1500):  # noqa: B007
        for document in documents_of(reader.row()):
            number = document[0] // 1000
            # The rest of a cut document counts as a new arrival.
            assert row - arrived[number] < POOL
            arrived[number] = row + 1


def test_saved_position_stays_small_for_long_documents():
    reader = ShardReader(Documents([16_384]), causal_packing("whole", 64))
    for _ in range(200):
        reader.row()
    assert reader.state()["waiting.tokens"].size <= packing.POOL_TOKENS + 16_384


# --- position -----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_resuming_from_position_is_exact(policy):
    lengths = np.random.default_rng(3).integers(1, 300, 501).tolist()

    def reader():
        return ShardReader(Documents(lengths), causal_packing(policy, 64, end_of_document=EOS))

    def rows(reader, n):
        return [reader.row() for _ in range(n)]

    first = reader()
    for n in (0, 1, 400):
        rows(first, n)
        position = first.state()
        assert list(position) == ["order", "waiting.lengths", "waiting.tokens", "stream.number"]
        resumed = reader()
        rows(resumed, 5)  # at any previous position
        resumed.restore(position)
        jax.tree.map(np.testing.assert_array_equal, resumed.state(), position)
        jax.tree.map(np.testing.assert_array_equal, rows(resumed, 300), rows(first, 300))
        jax.tree.map(np.testing.assert_array_equal, resumed.state(), first.state())


class PartedDocuments(Documents):
    """The same documents. The last digit of a token is its part, and the rest is its label."""

    def next_document(self):
        piece = super().next_document()
        return piece._replace(parts=piece.tokens % 10, labels=piece.tokens // 10)


@pytest.mark.parametrize("policy", packing.SUITED_POLICIES["parts"])
@pytest.mark.parametrize("column", ["parts", "labels"])
def test_columns_follow_tokens_and_are_resumed(policy, column):
    lengths = np.random.default_rng(4).integers(1, 64, 101).tolist()
    planned = causal_packing(policy, 64, rows=Rows(column))

    def reader():
        return ShardReader(PartedDocuments(lengths), planned)

    first, resumed = reader(), reader()
    for _ in range(40):
        row = first.row()
        expected = row.tokens % 10 if column == "parts" else row.tokens // 10
        np.testing.assert_array_equal(getattr(row, column), expected)
        assert (row.parts is None) != (row.labels is None)
    resumed.row()
    resumed.restore(first.state())
    for _ in range(20):
        expected_row, resumed_row = first.row(), resumed.row()
        jax.tree.map(np.testing.assert_array_equal, expected_row, resumed_row)
    pieces = [PartedDocuments(lengths).next_document()]
    (row, *_) = rows_of_documents(pieces, planned._replace(end_of_document=EOS))
    batch = stacked([row, packing.empty_row({"tokens": ()} | ({column: ()} if column else {}))], 70)
    np.testing.assert_array_equal(
        getattr(batch, column)[0, : row.tokens.size], getattr(row, column)
    )
    assert not getattr(batch, column)[1].any()


def test_mixture_with_conflicting_document_ends_raises():
    joint = mixture(IDS, {"causal": (causal_lm, 1), "middle": (fill_in_the_middle, 1)})
    with refuses(ValueError, "causal", "mark_document_ends"):
        packing.resolve_packing(joint)
    assert packing.resolve_packing(joint, mark_document_ends=True) == ("whole", True)
    open_ended = lambda ids: causal_lm(ids).with_facts(rows=Rows("documents"))  # noqa: E731
    joint = mixture(IDS, {"causal": (causal_lm, 1), "apart": (open_ended, 1)})
    assert packing.resolve_packing(joint) == ("whole", True)
    stream = mixture(IDS, {"causal": (causal_lm, 1), "span": (span_corruption, 1)})
    assert packing.resolve_packing(stream) == ("concatenate", True)


@pytest.mark.parametrize("policy", packing.SUITED_POLICIES["parts"])
def test_cutting_a_document_with_parts_raises(policy):
    reader = ShardReader(PartedDocuments([64, 65]), causal_packing(policy, 64, rows=Rows("parts")))
    with refuses(ValueError, "65", "64"):
        [reader.row() for _ in range(2)]
    half = Document(np.arange(3), False, parts=np.arange(3))
    with refuses(ValueError, "parts", 3):
        packed_document(half, Rows("parts"))


def test_classes_and_parts_out_of_range_raise():
    tokens = np.arange(5, 9)
    labeled = Document(tokens, labels=np.array([1, 2, 3, NO_LABEL]))
    assert (
        packed_document(labeled, Rows("labels", num_classes=4), EOS).labels.tolist()[-2:]
        == [NO_LABEL] * 2
    )
    with refuses(ValueError, "3", "0", "2"):
        packed_document(labeled, Rows("labels", num_classes=3), EOS)
    four = in_parts([5, 6], [7], [8], [9])
    for num_parts in (None, 4):
        assert packed_document(four, Rows("parts", num_parts=num_parts)).parts.max() == 3
    with refuses(ValueError, "4", "2"):
        packed_document(four, text_to_text(IDS).facts.rows)


def test_missing_column_raises():
    reader = ShardReader(Documents([3]), causal_packing("single", 64, rows=Rows("parts")))
    with refuses(ValueError, "seqio_pairs"):
        reader.row()


def test_packing_policy_may_change_on_resume():
    before = ShardReader(Documents([150, 5]), causal_packing("whole", 64))
    before.row()
    after = ShardReader(Documents([150, 5]), causal_packing("concatenate", 64))
    after.restore(before.state())
    jax.tree.map(np.testing.assert_array_equal, after.state(), before.state())


def test_position_of_other_order_version_raises():
    reader = ShardReader(Documents([150, 5]), causal_packing("concatenate", 64))
    position = reader.state()
    for order in (None, np.array(packing.ORDER + 1)):
        other_position = {k: v for k, v in position.items() if k != "order"} | (
            {"order": order} if order else {}
        )
        with refuses(ValueError, "order", "version"):
            reader.restore(other_position)
    reader.restore(position)


# --- settings -----------------------------------------------------------------------------------


def small(**settings):
    return tiny.plan(tiny.decoder(), span_corruption(tiny.IDS), {"decoder": 32}, **settings)


def test_invalid_packing_settings_raise():
    with refuses(ValueError, "packing", "concatenate", "hole"):
        small(packing="hole")
    for wrong in (0, -3, 2.5):
        with refuses(ValueError, "max_documents", 1, wrong):
            small(packing="whole", max_documents=wrong)


def test_max_documents_applies_only_to_multi_document_policies():
    for policy in POLICIES:
        plan = small(packing=policy, max_documents=5)
        (group,) = plan.recipe.groups
        several = policy in ("isolate", "whole")
        assert group.max_documents == (5 if several else 1)
        assert plan.packing.limits[0].documents == (5 if several else 1)
        assert plan.packing.limits[0].raw == group.raw_lengths[0]
    assert small().packing.policy == "concatenate"


@pytest.mark.parametrize(
    "build, policy, marked",
    [
        (causal_lm, "concatenate", True),
        (span_corruption, "concatenate", False),
        (fill_in_the_middle, "whole", False),
        (sentence_order_prediction, "single", False),
        (text_to_text, "single", False),
    ],
)
def test_each_objective_has_a_default_packing(build, policy, marked):
    objective = build(IDS)
    assert packing.resolve_packing(objective) == (policy, marked)
    assert packing.resolve_packing(objective, "whole", not marked) == ("whole", not marked)


@pytest.mark.parametrize(
    "build, policy, values",
    [
        (fill_in_the_middle, "concatenate", ["packing='concatenate'", "'whole'"]),
        (text_to_text, "isolate", ["parts", "packing='isolate'", "['single', 'whole']"]),
        (causal_lm, "hole", ["policy", "'concatenate'", "'hole'"]),
    ],
)
def test_unsuited_packing_policy_raises(build, policy, values):
    with refuses(ValueError, *values):
        packing.resolve_packing(build(IDS), policy)


def test_duplicate_packing_limits_are_merged():
    limits = causal_packing("whole", 64).limits[0]
    assert limits.taken == (tuple(range(65)),) and limits.longest == (list(range(65)),)
    members = members_of(UL2)
    for number, member_limits in ul2_packing("encoder_decoder", "whole").limits.items():
        assert len(member_limits.taken) == 3, members[number].name  # tokens, inputs, targets
