"""Learning from answers: a text is given, and what belongs to it is predicted.

A document is a text, the vocabulary's `sep`, and its answer; data edges that read supervised tasks
write it so (`tasks.seqio_corpora.seqio_pairs`):

    text_to_text            translate: good day [SEP] bon jour
    dialogue                hello [SEP] hi! [SEP] who are you? [SEP] a model
    sequence_classification this is fine [SEP] code of a class
    sequence_regression     this is fine [SEP] code of a number
    token_classification    Ada met Alan [SEP] code code code

Sources: Raffel et al. 2020 (T5) for text to text; Devlin et al. 2019 (BERT), sections 3.2 and 4, for
the heads on an encoder; the loss on answers alone is Ouyang et al. 2022's (InstructGPT).
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from pretrax.objectives.contract import Labels, Objective, Outputs, PromptForm, Term, TokenIds
from pretrax.objectives.features import (
    fit,
    input_sequence,
    labels_in_place,
    sequence_pair,
    target_sequence,
)
from pretrax.objectives.losses import at_places, class_term, cross_entropy, predictions, token_loss
from pretrax.objectives.pieces import joined, pieces, write
from pretrax.objectives.splicing import documents, of_document, with_specials

_BASE, _DIGITS, _UNIT = 128, 3, 1000  # of a coded number: digits, and parts of 1
LARGEST = _BASE**_DIGITS // 2 // _UNIT - 1  # that can be coded


def text_to_text(ids: TokenIds, longest_answer: int = 64, mode: str | None = None) -> Objective:
    """Text to text: the text is given, its answer is predicted.

        document   a b c [SEP] d e
        inputs     a b c /
        targets    d e /

    Args:
      ids: needs `sep`, and the `mode` token if one is given.
      longest_answer: in tokens; the corpus cuts longer ones.
      mode: name of a mode token put before each text (UL2's are fine-tuned with "S").

    The first `sep` divides a document; one without any does not count.

    Features: inputs, inputs_segments i32[I]; targets, targets_segments, targets_weights i32[T].

    >>> text_to_text(ids, longest_answer=16).lengths(100)
    {'inputs': 101, 'targets': 17, 'both': 102}

    Raises ValueError for missing special tokens, or an answer shorter than a token.
    """
    if longest_answer < 1:
        raise ValueError(f"longest_answer must be 1 or more, got {longest_answer}.")
    head = () if mode is None else (ids.mode(mode),)
    specials = jnp.array([ids.special("sep"), ids.eos, *head], jnp.int32)

    def lengths(n: int) -> dict[str, int]:
        # The longest inputs are those of a document without an answer.
        given = len(head) + n + 1
        return {
            "inputs": given,
            "targets": min(max(n, 1), longest_answer + 1),
            "both": given + 1,
        }

    return Objective(
        lengths=lengths,
        corrupt=Partial(_divide, jnp.int32(longest_answer), specials),
        loss=token_loss,
        prompt_forms=(PromptForm("respond", before=head, after=(ids.eos,)),),
        rows="parts",
        closes_documents=True,
    )


def _divide(longest, specials, key, row, partner, lengths, max_documents):
    sep, closing = specials[0], specials[1:]
    modes = closing.size - 1
    document, at_D = _first_separators(row, sep, max_documents)
    present = document.length > 0
    divided = at_D < document.length
    source, (eos_at,) = with_specials(row.tokens, closing)
    live = present.astype(jnp.int32)[:, None]
    given = joined(
        pieces(eos_at + 1, live * modes),
        pieces(document.start[:, None], at_D[:, None]),
        pieces(eos_at, live),
    )
    rest = jnp.clip(document.length - at_D - 1, 0, longest)
    answer = joined(
        pieces((document.start + at_D + 1)[:, None], rest[:, None]),
        pieces(eos_at, live),
    )
    features = sequence_pair(
        write(source, given, lengths["inputs"]), write(source, answer, lengths["targets"])
    )
    segments = features["targets_segments"]
    counts = (segments > 0) & of_document(divided, segments)
    return features | {"targets_weights": counts.astype(jnp.int32)}


def dialogue(ids: TokenIds) -> Objective:
    """Instructions and dialogues for a decoder: all is read in order, the loss is on answers alone.

        document   a b [SEP] c d [SEP] e [SEP] f
        targets    a b [SEP] c d / e [SEP] f /
        weights    0 0   0   1 1 1 0   0   1 1

    What is said to the model and what it answers take turns; `sep` begins an answer, end-of-sequence
    closes it. A last turn that has no answer does not count.

    Args:
      ids: needs `sep`.

    Features: targets, targets_segments, targets_weights i32[T].

    >>> dialogue(ids).lengths(511)
    {'targets': 512}

    Raises ValueError for a missing separator.
    """
    specials = jnp.array([ids.special("sep"), ids.eos], jnp.int32)
    return Objective(
        lengths=lambda n: {"targets": n + 1},
        corrupt=Partial(_take_turns, specials),
        loss=token_loss,
        prompt_forms=(PromptForm("respond", after=(ids.special("sep"),), causal=True),),
        rows="parts",
        closes_documents=True,
    )


def _take_turns(specials, key, row, partner, lengths, max_documents):
    sep, eos = specials
    document = documents(row.segments, max_documents)
    is_sep = (row.tokens == sep) & (row.segments > 0)
    seen = jnp.cumsum(is_sep)  # separators up to and with this place
    before_D = jnp.where(document.start > 0, seen[jnp.maximum(document.start - 1, 0)], 0)
    turn = seen - of_document(before_D, row.segments)
    # A separator counts itself: 1, 3, … begin answers, 2, 4, … end them.
    ends_answer = is_sep & (turn % 2 == 0)
    tokens = jnp.where(ends_answer, eos, row.tokens)
    answers = jnp.where(is_sep, ends_answer, turn % 2 == 1)
    last = jnp.maximum(document.start + document.length - 1, 0)
    closes = jnp.where(is_sep[last], turn[last] % 2 == 1, answers[last])
    number = jnp.arange(document.length.size)
    source, (eos_at,) = with_specials(tokens, jnp.full(number.size, eos))
    counts = jnp.concatenate([answers, closes]).astype(jnp.int32)
    written = joined(
        pieces(document.start[:, None], document.length[:, None]),
        pieces((eos_at + number)[:, None], (document.length > 0).astype(jnp.int32)[:, None]),
    )
    origin, segments = write(jnp.arange(source.size), written, lengths["targets"])
    live = segments > 0
    features = target_sequence((jnp.where(live, source[origin], 0), segments))
    return features | {"targets_weights": jnp.where(live, counts[origin], 0)}


def sequence_classification(ids: TokenIds, num_classes: int) -> Objective:
    """The class of a text, from the state of its [CLS].

        document   a b c [SEP] k
        inputs     [CLS] a b c [SEP]

    Args:
      ids: needs `cls` and `sep`.
      num_classes: the head "classes" has so many. Class k is coded by the k-th id of text
        (`coded_class`).

    Features: inputs, inputs_segments i32[I]; pools_places, pools_labels, pools_weights i32[P].

    >>> sequence_classification(ids, 3).lengths(126)
    {'inputs': 128, 'pools': 1}

    Raises ValueError for missing special tokens, or a number of classes that cannot be.
    """
    if not 2 <= num_classes <= ids.text[1] - ids.text[0]:
        raise ValueError(
            f"num_classes must be 2 or more and at most the {ids.text[1] - ids.text[0]} ids of "
            f"text, got {num_classes}: for a number there is sequence_regression."
        )
    specials = _framing(ids)

    def loss(outputs: Outputs, batch) -> dict[str, Term]:
        logits, labels, weights = _pooled(outputs, batch)
        labels = jnp.clip(labels, 0, num_classes - 1)
        losses, _ = cross_entropy(logits, labels)
        return {"classes": class_term(losses, labels, weights, "classes")}

    return Objective(
        lengths=_framed_lengths,
        corrupt=Partial(_frame, specials, 1),
        loss=loss,
        heads={"classes": num_classes},
        prompt_forms=(_form(ids, "classify", "classes"),),
        rows="labels",
        closes_documents=True,
    )


def sequence_regression(ids: TokenIds) -> Objective:
    """A number that belongs to a text, from the state of its [CLS]: half the squared error.

    Args:
      ids: needs `cls` and `sep`. The number is coded by three ids (`coded_number`), to a thousandth.

    The model's head "classes" must have one class. Features as in `sequence_classification`, labels
    in thousandths.

    >>> sequence_regression(ids).lengths(126)
    {'inputs': 128, 'pools': 1}

    Raises ValueError for missing special tokens.
    """
    specials = _framing(ids)

    def loss(outputs: Outputs, batch) -> dict[str, Term]:
        logits, labels, weights = _pooled(outputs, batch)
        numbers = labels.astype(jnp.float32) / _UNIT
        errors = logits[..., 0] - numbers
        term = Term(
            jnp.sum(errors**2 * weights, -1),
            jnp.sum(weights, -1),
            scale=0.5,
            labels=Labels(numbers, weights, "classes"),
        )
        return {"squared_error": term}

    return Objective(
        lengths=_framed_lengths,
        corrupt=Partial(_frame, specials, _DIGITS),
        loss=loss,
        heads={"classes": 1},
        prompt_forms=(_form(ids, "classify", "classes"),),
        rows="labels",
        closes_documents=True,
    )


def token_classification(ids: TokenIds, num_classes: int) -> Objective:
    """The class of each token, from its own state.

        document   a b c [SEP] k l m
        inputs     [CLS] a b c [SEP]
        labels           k l m

    Args:
      ids: needs `cls` and `sep`.
      num_classes: the head "token_classes" has so many; a token coded as class `num_classes` does
        not count, such as a later piece of a word.

    A document with another number of codes than tokens does not count.

    Features: inputs, inputs_segments i32[I]; labels, labels_places, labels_weights i32[K].

    >>> token_classification(ids, 5).lengths(126)
    {'inputs': 128, 'labels': 63}

    Raises ValueError for missing special tokens, or a number of classes that cannot be.
    """
    if not 2 <= num_classes < ids.text[1] - ids.text[0]:
        raise ValueError(
            f"num_classes must be 2 or more and less than the {ids.text[1] - ids.text[0]} ids of "
            f"text, got {num_classes}."
        )

    def loss(outputs: Outputs, batch) -> dict[str, Term]:
        labels, places, weights = predictions(batch)
        states = at_places(outputs.hidden["top"], places)
        losses, _ = cross_entropy(outputs.head("token_classes", states), labels)
        weights = weights.astype(jnp.float32)
        return {"token_classes": class_term(losses, labels, weights, "token_classes")}

    def lengths(n: int) -> dict[str, int]:
        return {"inputs": n + 2, "labels": max(n // 2, 1)}

    return Objective(
        lengths=lengths,
        corrupt=Partial(_frame_tokens, _framing(ids), jnp.int32(num_classes)),
        loss=loss,
        heads={"token_classes": num_classes},
        prompt_forms=(_form(ids, "tag", "token_classes"),),
        rows="labels",
        closes_documents=True,
    )


def coded_class(ids: TokenIds, number: int) -> list[int]:
    """The answer that says class `number`."""
    return [ids.text[0] + number]


def coded_number(ids: TokenIds, value: float) -> list[int]:
    """The answer that says a number, rounded to a thousandth.

    Raises ValueError for numbers beyond ±LARGEST, or a vocabulary of few ids.
    """
    if ids.text[1] - ids.text[0] < _BASE:
        raise ValueError(f"Numbers are coded by {_BASE} ids of text; this vocabulary has fewer.")
    if not abs(value) <= LARGEST:
        raise ValueError(f"Got the number {value}, expected one between ±{LARGEST}.")
    rest, digits = round(value * _UNIT) + _BASE**_DIGITS // 2, []
    for _ in range(_DIGITS):
        rest, digit = divmod(rest, _BASE)
        digits.append(ids.text[0] + digit)
    return digits[::-1]


def pair_document(ids: TokenIds, given: Sequence[int], answer: Sequence[int]) -> np.ndarray:
    """A document of this module's objectives: i32[n]."""
    return np.array([*given, ids.special("sep"), *answer], np.int32)


# --- parts ---------------------------------------------------------------------------------------


def _framed_lengths(n: int) -> dict[str, int]:
    # A document without an answer is given whole, between [CLS] and [SEP].
    return {"inputs": n + 2, "pools": 1}


def _form(ids: TokenIds, mode: str, head: str) -> PromptForm:
    return PromptForm(mode, (ids.special("cls"),), (ids.special("sep"),), head=head)


def _framing(ids: TokenIds):
    return jnp.array([ids.special("sep"), ids.special("cls"), ids.text[0]], jnp.int32)


def _first_separators(row, sep, max_documents):
    """The documents of a row, and the place of each one's first `sep` in it; its length if none."""
    document = documents(row.segments, max_documents)
    place = jnp.arange(row.tokens.size)[None]
    start, end = document.start[:, None], (document.start + document.length)[:, None]
    separates = (place >= start) & (place < end) & (row.tokens == sep)[None]
    first = jnp.min(jnp.where(separates, place - start, row.tokens.size), axis=1)
    return document, jnp.minimum(first, document.length)


def _framed(specials, row, document, at_D, lengths):
    """[CLS] text [SEP] of each document."""
    source, (sep_at, cls_at) = with_specials(row.tokens, specials[0], specials[1])
    live = (document.length > 0).astype(jnp.int32)[:, None]
    framed = joined(
        pieces(cls_at, live),
        pieces(document.start[:, None], at_D[:, None]),
        pieces(sep_at, live),
    )
    return write(source, framed, lengths["inputs"])


def _frame(specials, digits, key, row, partner, lengths, max_documents):
    """[CLS] text [SEP], and the number that `digits` ids behind the separator say."""
    document, at_D = _first_separators(row, specials[0], max_documents)
    tokens, segments = _framed(specials, row, document, at_D, lengths)
    counts = document.length == at_D + 1 + digits
    coded = document.start + at_D + 1
    last = row.tokens.size - 1
    label = jnp.zeros_like(coded)
    for digit in range(_DIGITS):
        code = row.tokens[jnp.minimum(coded + digit, last)] - specials[2]
        label = jnp.where(digit < digits, label * _BASE + code, label)
    label = jnp.where(digits == _DIGITS, label - _BASE**_DIGITS // 2, label)
    first = documents(segments, document.length.size).start
    return input_sequence((tokens, segments)) | {
        "pools_places": fit(jnp.where(counts, first, 0), lengths["pools"]),
        "pools_labels": fit(jnp.where(counts, label, 0), lengths["pools"]),
        "pools_weights": fit(counts.astype(jnp.int32), lengths["pools"]),
    }


def _frame_tokens(specials, num_classes, key, row, partner, lengths, max_documents):
    document, at_D = _first_separators(row, specials[0], max_documents)
    tokens, segments = _framed(specials, row, document, at_D, lengths)
    complete = document.length == 2 * at_D + 1
    framed = documents(segments, document.length.size)
    place = jnp.arange(tokens.size) - of_document(framed.start, segments)  # 0 is [CLS]
    size_at = of_document(at_D, segments)
    source = of_document(document.start, segments) + size_at + place
    code = row.tokens[jnp.minimum(source, row.tokens.size - 1)] - specials[2]
    chosen = (segments > 0) & of_document(complete, segments) & (place >= 1) & (place <= size_at)
    chosen &= (code >= 0) & (code < num_classes)
    labels = labels_in_place(jnp.where(chosen, code, 0), chosen, 0, lengths["labels"])
    return input_sequence((tokens, segments)) | labels


def _pooled(outputs: Outputs, batch):
    """Logits of the head "classes" [B, P, C], labels i32[B, P], weights f32[B, P]."""
    states = at_places(outputs.hidden["top"], batch["pools_places"])
    logits = outputs.head("classes", states)
    return logits, batch["pools_labels"], batch["pools_weights"].astype(jnp.float32)
