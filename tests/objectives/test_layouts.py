"""Layouts: attention patterns as key intervals, without leaks, and positions."""

import functools
from unittest import mock

import jax
import numpy as np
import pytest

from pretrax.objectives import (
    batched,
    blank_infilling,
    block_diffusion,
    causal_lm,
    layouts,
    masked_next_token,
    members_of,
    mixture,
    tidar,
)
from pretrax.objectives.mixtures import joint_lengths
from pretrax.objectives.streams import STREAMS
from tests.objectives.inverse import corrupted_documents
from tests.objectives.registry import (
    CASES,
    DOCUMENTS,
    IDS,
    RAW_LENGTH,
    corrupted,
    example_batch,
    features_of,
    packed_lengths,
    quick_jit,
    text_row,
)
from tests.refusals import refuses

BOS = 31_999  # not the padding id, so that a missing `bos` is noticed
SLACK = 5  # number of stack slots that no feature fills
MAX_DOCUMENTS = max(map(len, DOCUMENTS))

# A layout depends on streams, not on objectives. Each set of streams has a case.
NAMES = [
    "causal",
    "masked_inputs",
    "span",
    "blanks",
    "masked_lm",
    "diffusion",
    "diffusion_ahead",
    "insertions",
    "insertions_and_masks",
    "block_diffusion",
    "tidar",
    "permutation",
    "order",
    "order_masked",
    "contrastive_cropping",
    "mixture",
]


def streams_of(name):
    return {s for s in CASES[name].objective.lengths(9) if s not in ("sentinels", "both")}


WRITING = [name for name in NAMES if "targets" in streams_of(name)]
ENCODERS = [name for name in NAMES if name not in WRITING]
ENCODER_DECODERS = [
    name
    for name in WRITING
    if all(
        {"inputs", "targets"} == m.objective.lengths(2).keys() & STREAMS.keys()
        for m in members_of(CASES[name].objective)
    )
]
SINGLE_STACKS = [(name, "decoder") for name in [*NAMES, "on one decoder"]]
SINGLE_STACKS += [(name, "encoder") for name in ENCODERS if "noised" not in streams_of(name)]
OWN_INTERVALS = ("block_diffusion", "permutation", "diffusion_ahead")
ONE_INTERVAL = [x for x in SINGLE_STACKS if x[0] not in OWN_INTERVALS]
single_stacks = pytest.mark.parametrize("name, stack", SINGLE_STACKS)
every_arrangement = pytest.mark.parametrize(
    "name, kind", SINGLE_STACKS + [(name, "encoder_decoder") for name in ENCODER_DECODERS]
)


MIXTURES = {
    # GPT-BERT's two members, and targets at other positions
    "on one decoder": (masked_next_token, causal_lm, blank_infilling),
    "copies of several members": (block_diffusion, tidar, blank_infilling),
}


def test_every_set_of_streams_is_tested():
    elsewhere = [
        "retromae",
        "masked_permuted",
        "jepa",
        "masked_again",
        "diffusion_complementary",
        "shuffled",
        "superposed",
        "distilled",
        "belief",
        "embeddings",
        "phases",
    ]  # They have separate test files.
    found = {frozenset(streams_of(x)) for x in [*NAMES, *elsewhere]}
    assert {frozenset(streams_of(x)) for x in CASES} == found


@functools.cache
def examples(name):
    """Returns (features of packed rows, lengths) of a case or of one of `MIXTURES`."""
    if name in CASES:
        return corrupted(name), example_batch(name).lengths
    objective = mixture(IDS, {builder.__name__: (builder, 1) for builder in MIXTURES[name]})
    packed = [d for d in DOCUMENTS if len(d) == 4] * 2  # Rows come in pairs.
    rows = [text_row(d, RAW_LENGTH, i, i % 3) for i, d in enumerate(packed)]
    lengths = joint_lengths(packed_lengths(objective, d) for d in (*packed, (RAW_LENGTH,)))
    lengths["positions"] = lengths["targets"]  # one for each target of any member
    stacked = jax.tree.map(lambda *x: np.stack(x), *(row for row, _ in rows))
    corrupt = quick_jit(batched(objective, lengths, MAX_DOCUMENTS))
    features = corrupt(jax.random.split(jax.random.key(0), len(rows)), stacked)
    return jax.tree.map(np.asarray, features), lengths


@functools.cache
def arranged_examples(name, kind):
    """Returns (stack lengths, features of the layout) of the examples."""
    (features, planned), layout = examples(name), layouts.LAYOUTS[kind]
    stacks = {stack: slots and slots + SLACK for stack, slots in layout.lengths(planned).items()}
    arrange = quick_jit(
        jax.vmap(lambda features: layout.arrange(features, stacks, BOS, MAX_DOCUMENTS))
    )
    return stacks, jax.tree.map(np.asarray, arrange(features))


def rows(name, kind):
    """Returns ({document or view: its features}, features of the layout) of each row."""
    features, _ = examples(name)
    for i in range(len(features["member"])):
        yield (
            corrupted_documents(features_of(features, i)),
            features_of(arranged_examples(name, kind)[1], i),
        )


def dense(intervals, keys: int):
    """Returns the mask bool[Q, K] of key intervals i32[2, Q]."""
    key = np.arange(keys)[None, :]
    return (key >= intervals[0][:, None]) & (key < intervals[1][:, None])


def padded(values, size):
    return [*values, *[0] * (size - len(values))]


def self_mask(lengths, size, bidirectional):
    """Returns a block mask of documents. All tokens attend to the first `bidirectional` tokens."""
    mask = np.eye(size, dtype=bool)
    start = 0
    for n, prefix in zip(lengths, bidirectional):
        mask[start : start + n, start : start + n] = np.tri(n, dtype=bool)
        mask[start : start + n, start : start + prefix] = True
        start += n
    return mask


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["permutation", "copies of several members"])
def test_registration_order_does_not_matter(name):
    """A noised copy has the positions and intervals that other streams give its slot."""
    _, expected = arranged_examples(name, "decoder")
    with mock.patch.dict(STREAMS, dict(reversed(STREAMS.items())), clear=True):
        _, got = arranged_examples.__wrapped__(name, "decoder")
    assert got.keys() == expected.keys()
    for column, values in got.items():
        np.testing.assert_array_equal(values, expected[column], err_msg=column)


# --- encoder-decoder ----------------------------------------------------------------------------

encoder_decoders = pytest.mark.parametrize("name", ENCODER_DECODERS)


@pytest.mark.sampled
@encoder_decoders
def test_encoder_decoder_tokens_positions_and_segments(name):
    stacks, _ = arranged_examples(name, "encoder_decoder")
    for documents, got in rows(name, "encoder_decoder"):
        for stack, stream, tokens in (
            ("encoder", "inputs", "encoder_input_tokens"),
            ("decoder", "targets", "decoder_target_tokens"),
        ):
            T, texts = stacks[stack], {d: getattr(x, stream) for d, x in documents.items()}
            assert got[tokens].tolist() == padded(sum(texts.values(), []), T)
            numbers = [d for d in texts for _ in texts[d]]
            assert got[f"{stack}_segment_ids"].tolist() == padded(numbers, T)
            places = [i for text in texts.values() for i in range(len(text))]
            assert got[f"{stack}_positions"].tolist() == padded(places, T)
        weights = [1] * sum(len(x.targets) for x in documents.values())
        assert got["decoder_loss_weights"].tolist() == padded(weights, stacks["decoder"])
        shifted = [token for x in documents.values() for token in [BOS, *x.targets[:-1]]]
        assert got["decoder_input_tokens"].tolist() == padded(shifted, stacks["decoder"])


@encoder_decoders
def test_attention_stays_within_document(name):
    """The encoder attends bidirectionally, and the decoder causally."""
    stacks, _ = arranged_examples(name, "encoder_decoder")
    E, T = stacks["encoder"], stacks["decoder"]
    for documents, got in rows(name, "encoder_decoder"):
        inputs = [len(x.inputs) for x in documents.values()]
        targets = [len(x.targets) for x in documents.values()]
        encoder = dense(got["encoder_key_intervals"], E)
        np.testing.assert_array_equal(encoder, self_mask(inputs, E, inputs))
        decoder = dense(got["decoder_key_intervals"], T)
        np.testing.assert_array_equal(decoder, self_mask(targets, T, [0] * len(targets)))
        key_documents = padded(np.repeat(list(documents), inputs), E)
        query_documents = padded(np.repeat(list(documents), targets), T)
        expected = np.equal.outer(query_documents, key_documents)
        live = np.array(query_documents) > 0
        mask = dense(got["cross_key_intervals"], E)
        np.testing.assert_array_equal(mask[live], expected[live])
        assert (mask[~live].sum(1) == 1).all(), "padding sees one key: finite, and no leak matters"


# --- single stack -------------------------------------------------------------------------------


def test_decoder_row_by_hand():
    """Two documents with all features that an objective may have."""
    features = {
        "inputs": [11, 12, 21, 22, 23, 0],
        "inputs_segments": [1, 1, 2, 2, 2, 0],
        "inputs_types": [0, 1, 0, 0, 1, 0],
        "targets": [13, 14, 24, 0],
        "targets_segments": [1, 1, 2, 0],
        "targets_weights": [1, 0, 1, 0],
        "targets_positions": [1, 1, 0, 0],
        "targets_block_positions": [1, 2, 0, 0],  # The last target follows the previous one.
        "labels": [91, 92, 0],
        "labels_slots": [1, 4, 0],
        "labels_weights": [1, 1, 0],
        "pools_slots": [0, 2, 0],
        "pools_labels": [0, 1, 0],
        "pools_weights": [1, 1, 0],
        "rates": [7, 8],
        "member": 3,
    }
    features = jax.tree.map(lambda x: np.array(x, np.int32), features, is_leaf=_is_column)
    lengths = {"decoder": 9, "predict": 7}
    got = quick_jit(lambda features: layouts.decoder.arrange(features, lengths, 99, 2))(features)
    assert {name: x.tolist() for name, x in got.items()} == {
        "decoder_input_tokens": [11, 12, 99, 13, 21, 22, 23, 99, 0],
        "decoder_segment_ids": [1, 1, 1, 1, 2, 2, 2, 2, 0],
        "decoder_types": [0, 1, 0, 0, 0, 0, 1, 0, 0],
        "decoder_positions": [0, 1, 1, 1, 0, 1, 2, 3, 0],
        "decoder_block_positions": [0, 0, 1, 2, 0, 0, 0, 0, 0],
        "decoder_key_intervals": [
            [0, 0, 0, 0, 4, 4, 4, 4, 8],
            [2, 2, 3, 4, 7, 7, 7, 8, 9],
        ],
        "decoder_target_tokens": [13, 14, 24, 91, 92, 0, 0],
        "decoder_target_slots": [2, 3, 7, 1, 6, 0, 0],
        "decoder_loss_weights": [1, 0, 1, 1, 1, 0, 0],
        "pools_slots": [0, 4, 0],
        "pools_labels": [0, 1, 0],
        "pools_weights": [1, 1, 0],
        "rates": [7, 8],
        "member": 3,
    }


def _is_column(x):
    return isinstance(x, list)


def decoder_inputs_of(x):
    stand_ins = x.columns.get("targets_stand_ins", [0] * len(x.targets))
    return [stand_in - 1 if stand_in else target for stand_in, target in zip(stand_ins, x.targets)]


def _places(document, length):
    """Returns the positions of a document's slots: consecutive, or as its inputs specify."""
    return list(document.columns.get("inputs_positions", range(length)))


@pytest.mark.sampled
@single_stacks
def test_single_stack_concatenates_inputs_and_targets_per_document(name, stack):
    T = arranged_examples(name, stack)[0][stack]
    for documents, got in rows(name, stack):
        joined = {d: [*x.inputs, *[BOS, *decoder_inputs_of(x)][:-1]] for d, x in documents.items()}
        for d, x in documents.items():
            if not x.targets:
                joined[d] = x.inputs
        assert got[f"{stack}_input_tokens"].tolist() == padded(sum(joined.values(), []), T)
        numbers = [d for d in joined for _ in joined[d]]
        assert got[f"{stack}_segment_ids"].tolist() == padded(numbers, T)
        if f"{stack}_block_positions" not in got:
            places = [
                place for d, text in joined.items() for place in _places(documents[d], len(text))
            ]
            assert got[f"{stack}_positions"].tolist() == padded(places, T)


@pytest.mark.sampled
@pytest.mark.parametrize("name, stack", ONE_INTERVAL)
def test_single_stack_attends_to_inputs_and_earlier_targets(name, stack):
    T = arranged_examples(name, stack)[0][stack]
    for documents, got in rows(name, stack):
        inputs = [len(x.inputs) for x in documents.values()]
        lengths = [len(x.inputs) + len(x.targets) for x in documents.values()]
        mask = dense(got[f"{stack}_key_intervals"], T)
        np.testing.assert_array_equal(mask, self_mask(lengths, T, inputs))


def test_noised_copies_attend_to_own_block_and_earlier_inputs():
    size, (stacks, _) = 8, arranged_examples("block_diffusion", "decoder")
    T = stacks["decoder"]
    for documents, got in rows("block_diffusion", "decoder"):
        own_block = np.eye(T, dtype=bool)
        before = np.zeros((T, T), bool)
        clean = np.eye(T, dtype=bool)
        copies, first = [], 0
        for x in documents.values():
            for begin in range(first, first + len(x.inputs), size):
                end = min(begin + size, first + len(x.inputs))
                own_block[begin:end, begin:end] = True
                before[begin:end, first:begin] = True
                clean[begin:end, first:end] = True
            copies += x.columns["noised"]
            first += len(x.inputs)
        np.testing.assert_array_equal(dense(got["decoder_key_intervals"], T), clean)
        np.testing.assert_array_equal(dense(got["noised_key_intervals"], T), own_block)
        np.testing.assert_array_equal(dense(got["noised_clean_intervals"], T), before)
        assert got["noised_input_tokens"].tolist() == padded(copies, T)
        for name in ("segment_ids", "positions"):
            np.testing.assert_array_equal(got[f"noised_{name}"], got[f"decoder_{name}"])


def test_encoder_reads_clean_blocks_and_decoder_noised_blocks():
    size, (stacks, _) = 8, arranged_examples("block_diffusion", "encoder_decoder")
    E, T = stacks["encoder"], stacks["decoder"]
    for documents, got in rows("block_diffusion", "encoder_decoder"):
        own_block, clean = np.eye(T, dtype=bool), np.eye(E, dtype=bool)
        before, first, places = np.zeros((T, E), bool), 0, []
        for x in documents.values():
            last = first + len(x.inputs)
            for begin in range(first, last, size):
                end = min(begin + size, last)
                own_block[begin:end, begin:end] = before[begin:end, first:begin] = True
                clean[begin:end, first:end] = True
            first, places = last, [*places, *range(len(x.inputs))]
        for name, mask, keys in (
            ("encoder", clean, E),
            ("decoder", own_block, T),
            ("cross", before, E),
        ):
            np.testing.assert_array_equal(dense(got[f"{name}_key_intervals"], keys), mask)
        for stack, stream in (("encoder", "inputs"), ("decoder", "noised")):
            texts = [
                x.inputs if stack == "encoder" else x.columns[stream] for x in documents.values()
            ]
            assert got[f"{stack}_input_tokens"].tolist() == padded(sum(texts, []), stacks[stack])
            assert got[f"{stack}_positions"].tolist() == padded(places, stacks[stack])
            numbers = [d for d, text in zip(documents, texts) for _ in text]
            assert got[f"{stack}_segment_ids"].tolist() == padded(numbers, stacks[stack])
        counted = got["decoder_loss_weights"] > 0
        slots = got["decoder_target_slots"][counted]
        assert (got["decoder_input_tokens"][slots] == IDS.mask).all()
        found = got["encoder_input_tokens"][slots]
        np.testing.assert_array_equal(found, got["decoder_target_tokens"][counted])


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_shifted_diffusion_attends_to_a_share_of_later_tokens(stack):
    T = arranged_examples("diffusion_ahead", stack)[0][stack]
    for documents, got in rows("diffusion_ahead", stack):
        expected, first = np.eye(T, dtype=bool), 0
        for x in documents.values():
            n = len(x.inputs)
            for i in range(n):
                expected[first + i, first : first + i + 1 + (n - 1 - i) // 4] = True
            first += n
        np.testing.assert_array_equal(dense(got[f"{stack}_key_intervals"], T), expected)


def test_encoder_decoder_rejects_noised_copies_with_targets():
    row = features_of(examples("block_diffusion")[0], 0)
    written = {name: row["inputs"] for name in STREAMS["targets"].columns}
    with refuses(ValueError, "noised", "targets"):
        layouts.encoder_decoder.arrange(row | written, {}, BOS, MAX_DOCUMENTS)


@pytest.mark.slow
def test_rows_of_other_mixture_members_have_no_noised_copies():
    """They are arranged as if no member had noised copies."""
    names = {"blocks": block_diffusion, "causal": causal_lm, "masked": masked_next_token}
    objective = mixture(IDS, {name: (build, 1) for name, build in names.items()})
    packed = [(9, 4), (20, 3)]
    for member, alone in enumerate((None, causal_lm, masked_next_token)):
        batches = {}
        for number, built in ((0, alone and alone(IDS)), (member, objective)):
            if built is None:
                continue
            drawn = [text_row(d, RAW_LENGTH, i, number) for i, d in enumerate(packed)]
            stacked = jax.tree.map(lambda *x: np.stack(x), *(row for row, _ in drawn))
            lengths = packed_lengths(built, (RAW_LENGTH,))
            keys = jax.random.split(jax.random.key(0), len(packed))
            features = quick_jit(batched(built, lengths, 2))(keys, stacked)
            sizes = {"decoder": 2 * RAW_LENGTH, "predict": 2 * RAW_LENGTH}
            arrange = jax.vmap(lambda row, sizes=sizes: layouts.decoder.arrange(row, sizes, BOS, 2))
            batches[built is objective] = quick_jit(arrange)(features)
        copies = batches[True]["noised_segment_ids"] > 0
        assert copies.any() == (alone is None)
        if alone is None:
            continue
        for name in batches[False].keys() - {"member"}:
            np.testing.assert_array_equal(batches[True][name], batches[False][name], name)


@pytest.mark.sampled
@single_stacks
def test_target_slots_read_previous_token_and_label_slots_are_in_place(name, stack):
    stacks, features = arranged_examples(name, stack)
    P = stacks["predict"]
    if not P:
        assert not streams_of(name) & {"targets", "labels"}
        assert f"{stack}_target_tokens" not in features
        return
    total = 0
    for documents, got in rows(name, stack):
        written, in_place, start = [], [], 0
        for x in documents.values():
            first = start + len(x.inputs)
            written += [(first + j, token) for j, token in enumerate(x.targets)]
            in_place += [(start + place, token) for place, token in x.labeled]
            start = first + len(x.targets)
        expected = written + in_place
        places = got.get(f"{stack}_target_slots", np.arange(P))
        if f"{stack}_target_slots" in got:
            assert places.tolist() == padded([place for place, _ in expected], P)
        else:
            assert [place for place, _ in expected] == list(range(len(expected)))
        assert got[f"{stack}_target_tokens"].tolist() == padded([t for _, t in expected], P)
        assert got[f"{stack}_loss_weights"].tolist() == padded([1] * len(expected), P)
        total += len(expected)
    assert total > 50


@pytest.mark.parametrize("name", ["blanks", "on one decoder"])
def test_infilled_targets_have_own_positions(name):
    """In a mixture, the targets of another member still have consecutive positions."""
    T, members = arranged_examples(name, "decoder")[0]["decoder"], set()
    for documents, got in rows(name, "decoder"):
        positions, blocks = [], []
        for x in documents.values():
            n = len(x.inputs)
            target_positions = x.columns["targets_positions"], x.columns["targets_block_positions"]
            if name != "blanks" and got["member"] != 2:
                target_positions = range(n, n + len(x.targets)), [0] * len(x.targets)
            positions += [*range(n), *target_positions[0]]
            blocks += [*[0] * n, *target_positions[1]]
        assert got["decoder_positions"].tolist() == padded(positions, T)
        assert got["decoder_block_positions"].tolist() == padded(blocks, T)
        members.add(int(got["member"]))
    assert members == ({0} if name == "blanks" else {0, 1, 2})


# --- all layouts --------------------------------------------------------------------------------


@every_arrangement
def test_every_query_has_keys_and_all_arrays_are_int32(name, kind):
    stacks, features = arranged_examples(name, kind)
    assert {x.dtype for x in features.values()} == {np.dtype("int32")}
    for key, intervals in features.items():
        if key.endswith("key_intervals"):  # Intervals of noised copies over inputs may be empty.
            assert (intervals[:, 1] > intervals[:, 0]).all() and (intervals >= 0).all()
            stack = "encoder" if key.startswith(("encoder", "cross")) else "decoder"
            assert (intervals <= stacks[stack]).all()


@pytest.mark.parametrize(
    "layout, gives, values",
    [
        ("encoder_decoder", {"targets": 8}, ["inputs", "'targets'"]),
        ("encoder_decoder", {"inputs": 8, "labels": 2}, ["'labels'"]),
        ("encoder_decoder", {"inputs": 8, "targets": 8, "labels": 2}, ["'labels'"]),
        ("encoder_decoder", {"inputs": 8, "targets": 8, "pools": 1}, ["'pools'"]),
        ("decoder", {"inputs": 8}, ["'inputs'", "targets"]),
        ("decoder", {"targets": 8, "contexts": 8}, ["'contexts'", "'encoder'"]),
        ("encoder", {"inputs": 8}, ["'inputs'", "labels"]),
        ("encoder", {"inputs": 8, "noised": 8, "labels": 8}, ["'noised'", "'decoder'"]),
        (
            "encoder_decoder",
            {"inputs": 8, "noised": 8, "orders": 8, "labels": 8},
            ["'orders'"],
        ),
        (
            "encoder",
            {"inputs": 8, "targets": 8},
            ["'targets'", "'decoder'", "'encoder_decoder'"],
        ),
    ],
)
def test_layout_without_required_streams_raises(layout, gives, values):
    with refuses(ValueError, *values):
        layouts.LAYOUTS[layout].lengths(gives)


def test_stack_lengths_fit_their_streams():
    in_place = {"inputs": 9, "types": 9, "labels": 4, "pools": 1}
    assert layouts.encoder.lengths(in_place) == {"encoder": 9, "predict": 4}
    assert layouts.decoder.lengths(in_place) == {"decoder": 9, "predict": 4}
    with_targets = {"inputs": 9, "targets": 7, "both": 12, "labels": 2}
    assert layouts.decoder.lengths(with_targets) == {"decoder": 12, "predict": 9}
    assert layouts.encoder.lengths({"inputs": 9, "pools": 2}) == {"encoder": 9, "predict": 0}
