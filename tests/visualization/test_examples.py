"""The picture of a row, checked by reconstructing the text from it."""

import functools

import numpy as np
import pytest

from pretrax import objectives
from pretrax.visualization.examples import Reader, example, surfaces
from pretrax.visualization.hidden import hidden_tokens, predicted_tokens
from pretrax.visualization.picture import NO_SPAN
from pretrax.visualization.rows import MAX_TARGETS, ShownObjective, view_of
from tests.refusals import refuses
from tests.visualization.letters import IDS, READER, encode

TEXT = "the quick brown fox jumps over the lazy dog"
OTHER = "pack my box with five dozen liquor jugs and"


def shown(build, layout, *documents, seed=0, **settings):
    subject = ShownObjective("", 1.0, build(IDS, **settings), layout, IDS)
    documents = [encode(text) for text in documents or (TEXT,)]
    other = np.resize(encode(OTHER), sum(map(len, documents)))
    view = view_of(subject, [documents, [other]], seed)
    return example(subject, view, READER), view


def text(tokens) -> str:
    return "".join(token.text for token in tokens)


@pytest.mark.slow
def test_hidden_spans_have_the_number_of_their_sentinel():
    one, _ = shown(objectives.span_corruption, "encoder_decoder")
    encoder, decoder = one.stacks
    hidden = {}
    for token in one.text[0]:
        if token.span != NO_SPAN:
            hidden[token.span] = hidden.get(token.span, "") + token.text
    decoded = "".join(f"⟨{k}⟩{words}" for k, words in hidden.items()) + "/"
    assert hidden and text(slot.predicted for slot in decoder.slots) == decoded
    given = text(slot.given for slot in encoder.slots)
    for k, words in hidden.items():
        given = given.replace(f"⟨{k}⟩", words)
    assert given == TEXT + "/"
    # The input of each decoder slot is the prediction of the slot before.
    assert [slot.given for slot in decoder.slots[1:]] == [s.predicted for s in decoder.slots[:-1]]
    assert decoder.slots[0].given.kind == "start"


@pytest.mark.slow
def test_every_document_has_its_own_first_sentinel():
    one, _ = shown(objectives.span_corruption, "encoder_decoder", TEXT, OTHER)
    spans = [{t.span for t in document if t.span != NO_SPAN} for document in one.text]
    assert spans == [{0, 1}, {0, 1}]


@pytest.mark.slow
def test_masks_kept_tokens_and_replaced_tokens_are_distinguished():
    build = functools.partial(objectives.masked_lm, framed=False)
    masked, _ = shown(build, "encoder", mask_share=1.0, random_share=0.0)
    kept, _ = shown(build, "encoder", mask_share=0.0, random_share=0.0)
    replaced, _ = shown(build, "encoder", mask_share=0.0, random_share=1.0)
    for one, kinds in ((masked, {"mask"}), (kept, {"kept"}), (replaced, {"replaced", "kept"})):
        slots = one.stacks[0].slots
        chosen = [slot for slot in slots if slot.predicted]
        assert len(chosen) == round(0.15 * len(TEXT)) == one.with_loss
        assert {slot.given.kind for slot in chosen} <= kinds
        assert all(slot.given.kind == "text" for slot in slots if not slot.predicted)
        decoded = [slot.predicted or slot.given for slot in slots]
        assert text(decoded) == TEXT and {token.kind for token in decoded} == {"text"}
    assert "replaced" in {slot.given.kind for slot in replaced.stacks[0].slots}


@pytest.mark.slow
def test_masked_token_is_predicted_one_slot_earlier():
    one, _ = shown(objectives.masked_next_token, "decoder", mask_share=1.0, random_share=0.0)
    slots = one.stacks[0].slots
    for place, slot in enumerate(slots):
        if slot.predicted:
            assert slots[place + 1].given.kind == "mask" and slot.predicted.slot == place


@pytest.mark.slow
def test_missing_tokens_are_shown_below_the_token_before_them():
    one, view = shown(objectives.insertion_lm, "encoder", seed=2)
    (encoder,) = one.stacks
    cls, start, *kept = encoder.slots
    assert (cls.given.kind, start.given.kind) == ("cls", "start")
    missing = [slot.predicted.text if slot.predicted else "" for slot in (start, *kept)]
    rebuilt = missing[0] + "".join(s.given.text + m for s, m in zip(kept, missing[1:]))
    assert rebuilt == TEXT and max(map(len, missing)) > 1
    assert encoder.tracks["loss weights"] == [0, *map(len, missing)]
    assert encoder.targets == len("".join(missing)) > sum(map(bool, missing))
    spans = [slot.predicted.span for slot in encoder.slots if slot.predicted]
    assert spans == list(range(len(spans)))  # the tokens of a gap are one span of the text


@pytest.mark.slow
def test_text_from_the_partner_row_is_marked():
    labels = set()
    for seed in range(8):
        one, view = shown(
            objectives.next_sentence_prediction, "encoder", seed=seed, at_sentence_ends=False
        )
        (pool,) = one.pools
        others = [slot.given for slot in one.stacks[0].slots if slot.given.kind == "other"]
        assert bool(others) == pool.endswith(": class 1, does not follow") and text(others) in OTHER
        left_out = [token for token in one.text[0] if token.kind == "left out"]
        assert bool(others) == bool(left_out) and not hidden_tokens(view).any()
        labels.add(pool.partition(": ")[2])
    assert labels == {"class 0, follows", "class 1, does not follow"}


@pytest.mark.slow
def test_tokens_further_ahead_are_shown_below_the_next_token():
    one, _ = shown(objectives.multi_token_prediction, "decoder", "the cat", "a dog", tokens=3)
    (stack,) = one.stacks
    assert stack.further == ("ahead_2", "ahead_3")
    decoded = [
        [text(filter(None, [x])) if x else "-" for x in slot.further] for slot in stack.slots
    ]
    assert "".join(a for a, _ in decoded) == "he cat- dog-"
    assert "".join(b for _, b in decoded) == "e cat--dog--"


@pytest.mark.slow
def test_several_targets_of_a_term_are_shown_except_for_bags():
    one, _ = shown(objectives.token_order_prediction, "decoder")
    assert one.stacks[0].further == tuple(f"order {k}" for k in range(1, MAX_TARGETS + 1))
    one, _ = shown(objectives.superposed_lm, "decoder", bag_size=2)
    assert one.stacks[0].further == ()


@pytest.mark.slow
def test_documents_have_different_segments():
    one, _ = shown(objectives.causal_lm, "decoder", "the cat", "a dog ran")
    assert list(map(text, one.text)) == ["the cat", "a dog ran"]
    stack = one.stacks[0]
    assert [len(values) for values in stack.tracks.values()] == [16, 16, 16]
    assert stack.tracks["segments"] == [1] * 7 + [2] * 9
    assert stack.tracks["positions"] == [*range(7), *range(9)]
    assert text(slot.predicted for slot in stack.slots) == "the cata dog ran"


def test_too_few_sentinels_are_rejected():
    with refuses(ValueError, "41", "40"):
        shown(objectives.span_corruption, "encoder_decoder", TEXT * 2, mean_span_length=1.0,
              noise_density=41 / 86)  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize(
    "build, layout, hidden, predicted",
    [
        (objectives.causal_lm, "decoder", 0, 43),
        (objectives.span_corruption, "encoder_decoder", 6, 6),
        (objectives.text_infilling, "encoder_decoder", 13, 43),
        (objectives.deshuffling, "encoder_decoder", 0, 43),
        (objectives.masked_lm, "encoder", 6, 6),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_hidden_and_predicted_tokens_are_counted(build, layout, hidden, predicted):
    _, view = shown(build, layout)
    assert hidden_tokens(view).sum(axis=1).tolist() == [hidden] * 2
    assert predicted_tokens(view).sum(axis=1).tolist() == [predicted] * 2


def test_character_of_several_tokens_is_shown_at_the_first():
    def decode(tokens) -> str:
        return bytes(tokens).decode("utf-8", "replace")

    reader = Reader(IDS, {}, decode, lambda i: decode([i]))
    assert surfaces(reader, "aé日z".encode()) == ["a", "é", "", "日", "", "", "z"]
    broken = bytes([0x65, 0xA9, 0xC3, 0x65])  # the bytes of é in the wrong order
    assert surfaces(reader, broken) == ["e", "�", "�", "e"]
