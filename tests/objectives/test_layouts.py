"""Layouts: every attention pattern as intervals of keys, nothing leaks, nothing moves."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from objectives import layouts, members_of
from tests.objectives.inverse import documents_of
from tests.objectives.registry import CASES, corrupted, example_batch, features_of

BOS = 31_999  # not the padding, so that a missing `bos` shows
SLACK = 5  # stack slots that no feature fills


ENCODER_DECODERS = [
    name
    for name, case in CASES.items()
    if all("inputs" in m.objective.lengths(2) for m in members_of(case.objective))
]
every_arrangement = pytest.mark.parametrize(
    "name, kind",
    [(name, "decoder") for name in CASES]
    + [(name, "encoder_decoder") for name in ENCODER_DECODERS],
)


@functools.cache
def arranged(name, kind):
    """(stack lengths, features of the layout) of the example batch."""
    layout, planned = layouts.LAYOUTS[kind], example_batch(name).lengths
    stacks = {stack: slots + SLACK for stack, slots in layout.lengths(planned).items()}
    stacks["documents"] = planned["documents"]
    arrange = jax.jit(jax.vmap(lambda features: layout.arrange(features, stacks, BOS)))
    return stacks, jax.tree.map(np.asarray, arrange(corrupted(name)))


def rows(name, kind):
    """(inputs by document, targets by document, features of the layout) of each row."""
    for i in range(len(example_batch(name).documents)):
        features = features_of(corrupted(name), i)
        given, written = (documents_of(features, stream) for stream in ("inputs", "targets"))
        got = features_of(arranged(name, kind)[1], i)
        yield {d: given.get(d, []) for d in written}, written, got


def dense(intervals, keys: int):
    """bool[Q, K] from i32[2, Q]."""
    key = np.arange(keys)[None, :]
    return (key >= intervals[0][:, None]) & (key < intervals[1][:, None])


def padded(values, size):
    return [*values, *[0] * (size - len(values))]


def self_mask(lengths, size, bidirectional):
    """Block mask of documents of these lengths; `bidirectional` keys of each are seen by all."""
    mask = np.eye(size, dtype=bool)
    start = 0
    for n, seen in zip(lengths, bidirectional):
        mask[start : start + n, start : start + n] = np.tri(n, dtype=bool)
        mask[start : start + n, start : start + seen] = True
        start += n
    return mask


# --- encoder-decoder -----------------------------------------------------------------------------

encoder_decoders = pytest.mark.parametrize("name", ENCODER_DECODERS)


@encoder_decoders
def test_encoder_and_decoder_get_documents_positions_and_segments(name):
    stacks, _ = arranged(name, "encoder_decoder")
    for given, written, got in rows(name, "encoder_decoder"):
        for stack, documents, tokens in (
            ("encoder", given, "encoder_input_tokens"),
            ("decoder", written, "decoder_target_tokens"),
        ):
            T = stacks[stack]
            ids = [token for d in documents for token in documents[d]]
            assert got[tokens].tolist() == padded(ids, T)
            numbers = [d for d in documents for _ in documents[d]]
            assert got[f"{stack}_segment_ids"].tolist() == padded(numbers, T)
            places = [i for d in documents for i in range(len(documents[d]))]
            assert got[f"{stack}_positions"].tolist() == padded(places, T)
        weights = [1] * sum(map(len, written.values()))
        assert got["decoder_loss_weights"].tolist() == padded(weights, stacks["decoder"])


@encoder_decoders
def test_decoder_is_given_bos_and_all_but_the_last_token_of_each_document(name):
    stacks, _ = arranged(name, "encoder_decoder")
    for _, written, got in rows(name, "encoder_decoder"):
        shifted = [token for d in written for token in [BOS, *written[d][:-1]]]
        assert got["decoder_input_tokens"].tolist() == padded(shifted, stacks["decoder"])


@encoder_decoders
def test_encoder_sees_its_document_both_ways(name):
    E = arranged(name, "encoder_decoder")[0]["encoder"]
    for given, _, got in rows(name, "encoder_decoder"):
        lengths = [len(x) for x in given.values()]
        mask = dense(got["encoder_key_intervals"], E)
        np.testing.assert_array_equal(mask, self_mask(lengths, E, lengths))


@encoder_decoders
def test_decoder_sees_its_document_up_to_itself(name):
    T = arranged(name, "encoder_decoder")[0]["decoder"]
    for _, written, got in rows(name, "encoder_decoder"):
        lengths = [len(x) for x in written.values()]
        mask = dense(got["decoder_key_intervals"], T)
        np.testing.assert_array_equal(mask, self_mask(lengths, T, [0] * len(lengths)))


@encoder_decoders
def test_cross_attention_sees_the_inputs_of_its_own_document(name):
    stacks, _ = arranged(name, "encoder_decoder")
    for given, written, got in rows(name, "encoder_decoder"):
        of_key = padded([d for d in given for _ in given[d]], stacks["encoder"])
        of_query = padded([d for d in written for _ in written[d]], stacks["decoder"])
        expected = np.equal.outer(of_query, of_key)
        live = np.array(of_query) > 0
        mask = dense(got["cross_key_intervals"], stacks["encoder"])
        np.testing.assert_array_equal(mask[live], expected[live])
        assert (mask[~live].sum(1) == 1).all(), "padding sees one key: finite, and no leak matters"


# --- one stack -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_decoder_only_joins_inputs_and_targets_document_by_document_without_gaps(name):
    T = arranged(name, "decoder")[0]["decoder"]
    for given, written, got in rows(name, "decoder"):
        joined = {d: [*given[d], BOS, *written[d][:-1]] for d in written}
        ids = [token for d in joined for token in joined[d]]
        assert got["decoder_input_tokens"].tolist() == padded(ids, T)
        numbers = [d for d in joined for _ in joined[d]]
        assert got["decoder_segment_ids"].tolist() == padded(numbers, T)
        places = [i for d in joined for i in range(len(joined[d]))]
        assert got["decoder_positions"].tolist() == padded(places, T)


@pytest.mark.parametrize("name", CASES)
def test_decoder_only_sees_all_inputs_of_its_document_and_the_targets_before_it(name):
    T = arranged(name, "decoder")[0]["decoder"]
    for given, written, got in rows(name, "decoder"):
        lengths = [len(given[d]) + len(written[d]) for d in written]
        mask = dense(got["decoder_key_intervals"], T)
        inputs = [len(given[d]) for d in written]
        np.testing.assert_array_equal(mask, self_mask(lengths, T, inputs))


@pytest.mark.parametrize("name", CASES)
def test_decoder_only_predicts_each_target_where_the_one_before_is_read(name):
    P = arranged(name, "decoder")[0]["predict"]
    for _, written, got in rows(name, "decoder"):
        labels = [token for d in written for token in written[d]]
        before = [token for d in written for token in [BOS, *written[d][:-1]]]
        place = got.get("decoder_target_places", np.arange(P))[: len(labels)]
        assert got["decoder_target_tokens"].tolist() == padded(labels, P)
        assert got["decoder_loss_weights"].tolist() == padded([1] * len(labels), P)
        assert got["decoder_input_tokens"][place].tolist() == before
        of_label = [d for d in written for _ in written[d]]
        assert got["decoder_segment_ids"][place].tolist() == of_label


# --- both ----------------------------------------------------------------------------------------


@every_arrangement
def test_no_query_is_without_keys(name, kind):
    _, features = arranged(name, kind)
    for key, intervals in features.items():
        if key.endswith("key_intervals"):
            assert (intervals[:, 1] > intervals[:, 0]).all() and (intervals >= 0).all()
            stack = "encoder" if key.startswith(("encoder", "cross")) else "decoder"
            assert (intervals <= arranged(name, kind)[0][stack]).all()


@every_arrangement
def test_arranged_features_are_int32(name, kind):
    assert {x.dtype for x in arranged(name, kind)[1].values()} == {np.dtype("int32")}


@every_arrangement
def test_a_label_is_read_only_after_its_own_place(name, kind):
    layout, (stacks, before) = layouts.LAYOUTS[kind], arranged(name, kind)
    row = 4  # documents of 1, 2, 3 and 20 tokens
    features = features_of(corrupted(name), row)
    labels = int((features["targets_segments"] > 0).sum())

    @jax.jit
    @jax.vmap
    def inputs_with_label_changed(j):
        targets = jnp.asarray(features["targets"]).at[j].add(1)
        return layout.arrange(features | {"targets": targets}, stacks, BOS)["decoder_input_tokens"]

    after = np.asarray(inputs_with_label_changed(jnp.arange(labels)))
    changed = after != before["decoder_input_tokens"][row]
    places = before.get("decoder_target_places", np.arange(stacks["decoder"])[None])
    places = places[row % len(places)]
    segments = features["targets_segments"]
    for j, where in enumerate(changed):
        last = j + 1 == labels or segments[j + 1] != segments[j]
        assert np.flatnonzero(where).tolist() == ([] if last else [places[j] + 1])
        # Nor is the changed place among the keys that the label's own place sees.
        start, end = before["decoder_key_intervals"][row, :, places[j]]
        assert not where[start:end].any()


def test_layouts_need_the_streams_they_arrange():
    with pytest.raises(ValueError, match="needs inputs and targets.*gives.*targets"):
        layouts.encoder_decoder.lengths({"targets": 8})
    with pytest.raises(ValueError, match="Nothing to learn.*inputs"):
        layouts.decoder.lengths({"inputs": 8})
