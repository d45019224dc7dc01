"""Supervised objectives: a text is given, and its answer, class or number is predicted.

    text_to_text             translate: good day | bon jour      the answer is another part
    dialogue                 hello | hi! | who are you? | a model
    sequence_classification  this is fine                        the class is a label
    sequence_regression      this is fine                        and so is a number
    token_classification     Ada met Alan                        a label for each token

Sources: Raffel et al. 2020 (T5) for text to text; Devlin et al. 2019 (BERT), sections 3.2 and 4,
for the heads on an encoder; the loss on answers alone is Ouyang et al. 2022's (InstructGPT).
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.tree_util import Partial

from ..constraints import AtLeastTwo, Count, checked
from .contract import COUNTED, NO_LABEL, Labels, ModelOutputs, Objective, Term
from .cross_entropy import cross_entropy
from .features import fit, input_sequence, labels_in_place, sequence_pair, target_sequence
from .losses import accuracy, at_slots, class_term, predictions, token_loss
from .prompt_forms import PromptForm
from .splicing import (
    Ends,
    documents,
    ends_of,
    interleaved,
    joined,
    part_of,
    piece,
    pieces,
    splice,
    with_specials,
)
from .token_ids import TokenIds

THOUSANDTHS = 1000  # a number's label is in thousandths


@checked
def text_to_text(ids: TokenIds, longest_answer: Count = 64, mode: str | None = None) -> Objective:
    """Text to text: the text is given, its answer is predicted.

        document   a b c d e
        parts      0 0 0 1 1
        inputs     a b c /
        targets    d e /

    Args:
      ids: needs the `mode` token if one is set.
      longest_answer: in tokens; longer ones are truncated.
      mode: name of a mode token put before each text (UL2's are fine-tuned with "S").

    Features: inputs, inputs_segments i32[I]; targets, targets_segments, targets_weights i32[T].

    >>> text_to_text(ids, longest_answer=16).lengths(100)
    {'inputs': 101, 'targets': 17, 'both': 102}

    Raises ValueError for a mode that the vocabulary lacks.
    """
    settings = _Answering(longest=jnp.int32(longest_answer), ends=ends_of(ids, mode))
    modes = settings.ends.mode.size

    def lengths(n: int) -> dict[str, int]:
        # Either part of a document may be empty.
        return {
            "inputs": modes + n + 1,
            "targets": min(n, longest_answer) + 1,
            "both": modes + n + 2,
        }

    return Objective(
        lengths=lengths,
        corrupt=Partial(_divide, settings),
        loss=token_loss,
        prompt_forms=(PromptForm("respond", before=ids.mode_tokens(mode), after=(ids.eos,)),),
        rows="parts",
        closes_documents=True,
        num_parts=2,
    )


class _Answering(NamedTuple):
    longest: Any  # i32[] tokens of an answer
    ends: Ends


def _divide(settings: _Answering, key, row, partner, lengths, max_documents):
    document = documents(row.segments, max_documents)
    present = document.length > 0
    given, answer = (part_of(row, document, part) for part in (0, 1))
    source, (mode_at, eos_at) = with_specials(row.tokens, *settings.ends)
    closing = piece(eos_at, present)
    inputs = joined(piece(mode_at, present * settings.ends.mode.size), piece(*given), closing)
    kept = jnp.minimum(answer.length, settings.longest)
    targets = joined(piece(answer.start, kept), closing)
    return sequence_pair(
        splice(source, inputs, lengths["inputs"]), splice(source, targets, lengths["targets"])
    )


@checked
def dialogue(ids: TokenIds, max_turns: AtLeastTwo = 16) -> Objective:
    """Instructions and dialogues for a decoder: all turns in order, with loss on answers alone.

        document   a b c d e f
        parts      0 0 1 1 2 3
        targets    a b [SEP] c d / e [SEP] f /
        weights    0 0   0   1 1 1 0   0   1 1

    Turns of the user and of the model alternate; `sep` begins an answer, end-of-sequence closes it.

    Args:
      ids: needs `sep`.
      max_turns: the most turns of a dialogue, two or more; later ones are left out.

    Features: targets, targets_segments, targets_weights i32[T].

    >>> dialogue(ids, max_turns=8).lengths(504)
    {'targets': 512}

    Raises ValueError for a missing separator.
    """
    settings = _TakingTurns(
        sep=jnp.int32(ids.special("sep")),
        eos=jnp.int32(ids.eos),
        turns=jnp.arange(max_turns, dtype=jnp.int32),
    )
    return Objective(
        lengths=lambda n: {"targets": n + min(n, max_turns)},
        corrupt=Partial(_take_turns, settings),
        loss=token_loss,
        prompt_forms=(PromptForm("respond", after=(ids.special("sep"),), causal=True),),
        rows="parts",
        closes_documents=True,
    )


class _TakingTurns(NamedTuple):
    sep: Any  # i32[]
    eos: Any  # i32[]
    turns: Any  # i32[max_turns] 0, 1, …


def _take_turns(settings: _TakingTurns, key, row, partner, lengths, max_documents):
    document = documents(row.segments, max_documents)
    source, (sep_at, eos_at) = with_specials(row.tokens, settings.sep, settings.eos)
    each = [part_of(row, document, number) for number in range(settings.turns.size)]
    turns = pieces(*(jnp.stack(x, 1) for x in zip(*each)))
    answers = (settings.turns % 2 == 1)[None]
    marker = pieces(jnp.where(answers, eos_at, sep_at), turns.length > 0)
    written = interleaved(turns, marker)
    origin, segments = splice(jnp.arange(source.size), written, lengths["targets"])
    # Tokens of answers count, and so does the end of an answer.
    counts = jnp.concatenate([row.parts % 2 == 1, jnp.array([False, True])])
    live = segments > 0
    features = target_sequence((jnp.where(live, source[origin], 0), segments))
    return features | {"targets_weights": (live & counts[origin]).astype(jnp.int32)}


@checked
def sequence_classification(ids: TokenIds, num_classes: AtLeastTwo | None = None) -> Objective:
    """Predicts the class of a text, from the hidden state of its [CLS].

        document   a b c
        labels     k k k
        inputs     [CLS] a b c [SEP]

    Args:
      ids: needs `cls` and `sep`.
      num_classes: of the head "classes"; None: as many as the corpus of a run names.

    Documents without a class do not count.

    Features: inputs, inputs_segments i32[I]; pools_slots, pools_labels, pools_weights i32[P].

    >>> sequence_classification(ids, 3).lengths(126)
    {'inputs': 128, 'pools': 1}

    Raises ValueError for missing special tokens.
    """
    classes = COUNTED if num_classes is None else int(num_classes)

    def loss(outputs: ModelOutputs, batch) -> dict[str, Term]:
        logits, labels, weights = _pooled(outputs, batch)
        losses, _ = cross_entropy(logits, labels)
        return {
            "classes": class_term(losses, labels, weights, "classes"),
            "classes_accuracy": accuracy(logits, labels, weights, "classes"),
        }

    return Objective(
        lengths=_framed_lengths,
        corrupt=Partial(_frame, _framing(ids)),
        loss=loss,
        heads={"classes": classes},
        prompt_forms=(_form(ids, "classify", "classes")._replace(pooling="first"),),
        rows="labels",
        closes_documents=True,
        num_classes=classes,
    )


def sequence_regression(ids: TokenIds) -> Objective:
    """Predicts a number for a text, from the hidden state of its [CLS]: half the squared error.

    Args:
      ids: needs `cls` and `sep`.

    A document's label is its number in thousandths. The model's head "classes" must have one class.
    Features as in `sequence_classification`.

    >>> sequence_regression(ids).lengths(126)
    {'inputs': 128, 'pools': 1}

    Raises ValueError for missing special tokens.
    """

    def loss(outputs: ModelOutputs, batch) -> dict[str, Term]:
        logits, labels, weights = _pooled(outputs, batch)
        numbers = labels.astype(jnp.float32) / THOUSANDTHS
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
        corrupt=Partial(_frame, _framing(ids)),
        loss=loss,
        heads={"classes": 1},
        prompt_forms=(_form(ids, "classify", "classes")._replace(pooling="first"),),
        rows="labels",
        closes_documents=True,
    )


@checked
def token_classification(ids: TokenIds, num_classes: AtLeastTwo | None = None) -> Objective:
    """Predicts the class of each token, from its own hidden state.

        document   a b c
        labels     k l m
        inputs     [CLS] a b c [SEP]

    Args:
      ids: needs `cls` and `sep`.
      num_classes: of the head "token_classes"; None: as many as the corpus of a run names.

    Tokens without a class, such as later pieces of a word, do not count.

    Features: inputs, inputs_segments i32[I]; labels, labels_slots, labels_weights i32[K].

    >>> token_classification(ids, 5).lengths(126)
    {'inputs': 128, 'labels': 126}

    Raises ValueError for missing special tokens.
    """
    classes = COUNTED if num_classes is None else int(num_classes)

    def loss(outputs: ModelOutputs, batch) -> dict[str, Term]:
        labels, slots, weights = predictions(batch)
        states = at_slots(outputs.hidden["top"], slots)
        logits = outputs.head("token_classes", states)
        losses, _ = cross_entropy(logits, labels)
        weights = weights.astype(jnp.float32)
        return {
            "token_classes": class_term(losses, labels, weights, "token_classes"),
            "token_classes_accuracy": accuracy(logits, labels, weights, "token_classes"),
        }

    return Objective(
        lengths=lambda n: {"inputs": n + 2, "labels": n},
        corrupt=Partial(_frame_tokens, _framing(ids)),
        loss=loss,
        heads={"token_classes": classes},
        prompt_forms=(_form(ids, "tag", "token_classes"),),
        rows="labels",
        closes_documents=True,
        num_classes=classes,
    )


# --- parts --------------------------------------------------------------------------------------


def _framed_lengths(n: int) -> dict[str, int]:
    return {"inputs": n + 2, "pools": 1}


def _form(ids: TokenIds, mode: str, head: str) -> PromptForm:
    return PromptForm(mode, (ids.special("cls"),), (ids.special("sep"),), head=head)


class _Framing(NamedTuple):
    cls: Any  # i32[]
    sep: Any  # i32[]


def _framing(ids: TokenIds) -> _Framing:
    return _Framing(cls=jnp.int32(ids.special("cls")), sep=jnp.int32(ids.special("sep")))


def _framed(settings: _Framing, row, max_documents: int, size: int):
    """Returns [CLS] text [SEP] of each document: tokens, their indices in the source, segments."""
    document = documents(row.segments, max_documents)
    source, (cls_at, sep_at) = with_specials(row.tokens, settings.cls, settings.sep)
    present = document.length > 0
    framed = joined(piece(cls_at, present), piece(*document), piece(sep_at, present))
    origin, segments = splice(jnp.arange(source.size), framed, size)
    return jnp.where(segments > 0, source[origin], 0), origin, segments


def _frame(settings: _Framing, key, row, partner, lengths, max_documents):
    """Returns features of [CLS] text [SEP] with the label of each document's first token."""
    tokens, _, segments = _framed(settings, row, max_documents, lengths["inputs"])
    document = documents(row.segments, max_documents)
    label = row.labels[jnp.minimum(document.start, row.labels.size - 1)]
    counts = (document.length > 0) & (label != NO_LABEL)
    cls = documents(segments, max_documents).start
    return input_sequence((tokens, segments)) | {
        "pools_slots": fit(jnp.where(counts, cls, 0), lengths["pools"]),
        "pools_labels": fit(jnp.where(counts, label, 0), lengths["pools"]),
        "pools_weights": fit(counts.astype(jnp.int32), lengths["pools"]),
    }


def _frame_tokens(settings: _Framing, key, row, partner, lengths, max_documents):
    """Returns features of [CLS] text [SEP] with the labels of its tokens, in place."""
    tokens, origin, segments = _framed(settings, row, max_documents, lengths["inputs"])
    of_text = (segments > 0) & (origin < row.tokens.size)
    label = row.labels[jnp.minimum(origin, row.tokens.size - 1)]
    chosen = of_text & (label != NO_LABEL)
    labels = labels_in_place(jnp.where(chosen, label, 0), chosen, 0, lengths["labels"])
    return input_sequence((tokens, segments)) | labels


def _pooled(outputs: ModelOutputs, batch):
    """Returns logits of the head "classes" [B, P, C], labels i32[B, P], weights f32[B, P]."""
    states = at_slots(outputs.hidden["top"], batch["pools_slots"])
    logits = outputs.head("classes", states)
    return logits, batch["pools_labels"], batch["pools_weights"].astype(jnp.float32)
