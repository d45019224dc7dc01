"""Supervised objectives: predict the answer, class or number of a text.

    text_to_text             translate: good day | bon jour         the answer is the second part
    dialogue                 hello | hi! | who are you? | a model   every second part is an answer
    sequence_classification  this is fine                           the label is a class
    sequence_regression      this is fine                           the label is a number
    token_classification     Ada met Alan                           each token has a label

Sources: Raffel et al. 2020 (T5) for text to text; Devlin et al. 2019 (BERT), sections 3.2 and 4,
for the heads on an encoder; Ouyang et al. 2022 (InstructGPT) for a loss on answers only.
"""

import functools

import jax.numpy as jnp
import numpy as np

from ..constraints import AtLeastTwo, Count, checked
from .arithmetic import kernel
from .contract import (
    CORPUS_CLASSES,
    NO_LABEL,
    BatchLoss,
    Facts,
    Labels,
    Loss,
    ModelOutputs,
    Objective,
    Rows,
    Term,
)
from .features import input_sequence, labels_in_place, pool_columns, target_sequence
from .language_modeling import divided
from .losses import at_slots, class_loss, pool_class_loss, predictions, token_loss
from .prompt_forms import PromptForm
from .splicing import alternated, compacted, document_ranges, framed, part_of
from .token_ids import TokenIds

THOUSANDTHS = 1000  # a number's label is in thousandths


@checked
def text_to_text(ids: TokenIds, longest_answer: Count = 64, mode: str | None = None) -> Objective:
    """Text to text: predict the answer to a text.

        document   a b c d e
        parts      0 0 0 1 1
        inputs     a b c /
        targets    d e /

    Args:
      ids: needs the `mode` token if one is set.
      longest_answer: maximum number of tokens in an answer; longer answers are truncated.
      mode: name of a mode token put before each text (UL2 models are fine-tuned with "S").

    >>> text_to_text(ids, longest_answer=16).lengths(100)
    {'inputs': 101, 'targets': 17, 'both': 102}
    """
    form = PromptForm("respond", before=ids.mode_tokens(mode), after=(ids.eos,))
    modes = len(form.before)

    def lengths(n: int) -> dict[str, int]:
        # Either part of a document may be empty.
        return {
            "inputs": modes + n + 1,
            "targets": min(n, longest_answer) + 1,
            "both": modes + n + 2,
        }

    return Objective(
        lengths=lengths,
        corrupt=kernel(_divide, longest_answer, (form.before, form.after)),
        loss=token_loss,
        facts=Facts(prompt_forms=(form,), rows=Rows("parts", appends_eos=True, num_parts=2)),
    )


def _divide(longest_answer, frame, key, row, partner, lengths, max_documents):
    document = document_ranges(row.segments, max_documents)
    given, answer = (part_of(row, document, part) for part in (0, 1))
    answer = answer._replace(length=jnp.minimum(answer.length, longest_answer))
    return divided(row, document.length > 0, frame, given, answer, lengths)


@checked
def dialogue(ids: TokenIds, max_turns: AtLeastTwo = 16) -> Objective:
    """Instructions and dialogues for a decoder: all turns in order, with a loss on answers only.

        document   a b c d e f
        parts      0 0 1 1 2 3
        targets    a b [SEP] c d / e [SEP] f /
        weights    0 0   0   1 1 1 0   0   1 1

    Turns of the user and the model alternate. `sep` begins an answer; end-of-sequence closes it.

    Args:
      ids: needs `sep`.
      max_turns: maximum number of turns in a dialogue; later turns are left out.

    >>> dialogue(ids, max_turns=8).lengths(504)
    {'targets': 512}
    """
    sep = ids.special("sep")
    return Objective(
        lengths=lambda n: {"targets": n + min(n, max_turns)},
        corrupt=kernel(_take_turns, sep, ids.eos, max_turns),
        loss=token_loss,
        facts=Facts(
            prompt_forms=(PromptForm("respond", after=(sep,), causal=True),),
            rows=Rows("parts", appends_eos=True),
        ),
    )


def _take_turns(sep, eos, max_turns, key, row, partner, lengths, max_documents):
    """Writes the tokens of a row in order, with a marker after the last token of each turn.

    `splice` would need a piece for each turn of each document. With 16 documents of 16 turns, it
    takes 50 times as long.
    """
    segments = row.segments
    parts = row.parts
    taken = (segments > 0) & (segments <= max_documents) & (parts < max_turns)
    ends = taken & ((_next(parts) != parts) | (_next(segments) != segments))
    is_answer = parts % 2 == 1  # tokens of answers and their closing markers count
    columns = (
        alternated(row.tokens, jnp.where(is_answer, eos, sep)),
        alternated(segments, segments),
        alternated(is_answer, is_answer).astype(jnp.int32),
    )
    *text, weights = compacted(columns, alternated(taken, ends), lengths["targets"])
    return target_sequence(tuple(text)) | {"targets_weights": weights}


def _next(x_L):
    return jnp.append(x_L[1:], -1)


@checked
def sequence_classification(ids: TokenIds, num_classes: AtLeastTwo | None = None) -> Objective:
    """Predicts the class of a text from the hidden state of its [CLS] token.

        document   a b c
        labels     k k k
        inputs     [CLS] a b c [SEP]

    Args:
      ids: needs `cls` and `sep`.
      num_classes: number of classes of the head "classes". If None, it is the number of classes in
        the run's corpus. Documents without a class do not count.

    >>> sequence_classification(ids, 3).lengths(126)
    {'inputs': 128, 'pools': 1}
    """
    classes = CORPUS_CLASSES if num_classes is None else int(num_classes)
    return _labeled(ids, "classes", _class_loss, classes)


# Objectives share this function, since evaluation compiles one program for equal losses.
_class_loss = functools.partial(pool_class_loss, "classes")


def sequence_regression(ids: TokenIds) -> Objective:
    """Predicts a number for a text from its [CLS] state. The loss is half the squared error.

    Labels are numbers in thousandths. The model's head "classes" must have one class.

    Args:
      ids: needs `cls` and `sep`.

    >>> sequence_regression(ids).lengths(126)
    {'inputs': 128, 'pools': 1}
    """
    return _labeled(ids, "classes", _squared_error, None)


def _squared_error(batch) -> BatchLoss:
    numbers = batch["pools_labels"].astype(jnp.float32) / THOUSANDTHS
    weights = batch["pools_weights"].astype(jnp.float32)
    labels = Labels(numbers, weights, "classes")

    def sums(outputs: ModelOutputs):
        states = at_slots(outputs.hidden["top"], batch["pools_slots"])
        errors = outputs.head("classes", states)[..., 0] - numbers
        return {"squared_error": jnp.sum(errors**2 * weights, -1)}

    return BatchLoss({"squared_error": Term(jnp.sum(weights, -1), 0.5, labels)}, sums)


@checked
def token_classification(ids: TokenIds, num_classes: AtLeastTwo | None = None) -> Objective:
    """Predicts the class of each token from its own hidden state.

        document   a b c
        labels     k l m
        inputs     [CLS] a b c [SEP]

    Args:
      ids: needs `cls` and `sep`.
      num_classes: number of classes of the head "token_classes". If None, it is the number of
        classes in the run's corpus. Tokens without a class, such as later pieces of a word, do not
        count.

    >>> token_classification(ids, 5).lengths(126)
    {'inputs': 128, 'labels': 126}
    """
    classes = CORPUS_CLASSES if num_classes is None else int(num_classes)
    return _labeled(ids, "token_classes", _token_class_loss, classes, each_token=True)


def _token_class_loss(batch) -> BatchLoss:
    return class_loss("token_classes", *predictions(batch))


# --- [CLS] text [SEP] with labels -----------------------------------------------------------------


def _labeled(
    ids: TokenIds, head: str, loss: Loss, num_classes: int | None, each_token: bool = False
) -> Objective:
    """Returns the objective that predicts a label for each framed text, or for each token.

    Labels are classes, or numbers if `num_classes` is None.
    """
    form = PromptForm(
        "tag" if each_token else "classify",
        before=(ids.special("cls"),),
        after=(ids.special("sep"),),
        head=head,
        pooling=None if each_token else "first",
    )
    return Objective(
        lengths=lambda n: {"inputs": n + 2} | ({"labels": n} if each_token else {"pools": 1}),
        corrupt=kernel(_frame_tokens if each_token else _frame, (form.before, form.after)),
        loss=loss,
        facts=Facts(
            heads={head: 1 if num_classes is None else num_classes},
            prompt_forms=(form,),
            rows=Rows("labels", appends_eos=True, num_classes=num_classes),
        ),
    )


def _frame(frame, key, row, partner, lengths, max_documents):
    """Returns features of framed text with the label of each document's first token."""
    document = document_ranges(row.segments, max_documents)
    present = document.length > 0
    text = row.tokens, row.segments
    tokens, segments = framed(text, present, frame, lengths["inputs"])
    label = row.labels[jnp.minimum(document.start, row.labels.size - 1)]
    counts = present & (label != NO_LABEL)
    cls = document_ranges(segments, max_documents).start
    return input_sequence((tokens, segments)) | pool_columns(
        jnp.where(counts, cls, 0), label, counts, lengths["pools"]
    )


def _frame_tokens(frame, key, row, partner, lengths, max_documents):
    """Returns features of framed text with the labels of its tokens, in place."""
    present = document_ranges(row.segments, max_documents).length > 0
    tokens, segments = framed((row.tokens, row.segments), present, frame, lengths["inputs"])
    unlabeled = np.array([NO_LABEL], np.int32), np.array([NO_LABEL], np.int32)
    label, _ = framed((row.labels, row.segments), present, unlabeled, lengths["inputs"])
    chosen = (segments > 0) & (label != NO_LABEL)
    labels = labels_in_place(jnp.where(chosen, label, 0), chosen, 0, lengths["labels"])
    return input_sequence((tokens, segments)) | labels
