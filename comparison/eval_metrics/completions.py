"""Completions of a synthetic task's documents, checked by the task."""

import numpy as np

from ...constraints import AtLeastTwo, checked
from ...inference import Decoding, Trained, answer
from ..figures import HIGHER, Figure
from .generations import MASK_MODES, continued, continuing_mode, unmasking_options
from .known_answers import synthetic_task_of
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`


@checked
def synthetic_completions(subject: Subject, *, texts: AtLeastTwo = 64) -> list[Figure]:
    """Share of held-out documents whose beginning the model completes to a valid document.

    Documents are cut after half of their words and completed by samples at temperature 1, as in
    Allen-Zhu & Li 2023 (arXiv:2305.13673). A masked model gets one mask per token of the true rest.
    The baseline completes each beginning with the rest of the previous document.

    Raises ValueError for a corpus that is not such a task or holds out one document, and for a
    model that does not continue texts.
    """
    task = synthetic_task_of(subject, "accepts")
    trained = subject.trained
    assert task.accepts is not None  # see `synthetic_task_of`
    if len(task.heldout) < 2:
        raise ValueError(
            "Got a synthetic task with one held-out document, expected at least two for the "
            "baseline: let the task hold out more."
        )
    halves = [_halves(document) for document in task.heldout[:texts]]
    contexts_before, rests = zip(*halves)
    completed = _completed(trained, contexts_before, rests)
    share, baseline = (
        float(np.mean([bool(task.accepts(text)) for text in texts_to_judge]))
        for texts_to_judge in (completed, map(" ".join, zip(contexts_before, [rests[-1], *rests])))
    )
    note = f"{len(halves)} beginnings; the true texts score 1.00"
    if continuing_mode(trained) in MASK_MODES:
        note += "; the true number of tokens is given"
    return [Figure("synthetic_completions", share, "share", HIGHER, baseline, note)]


def _halves(document: str) -> tuple[str, str]:
    """Returns a document's words before and after its middle.

    >>> _halves("a b c d e")
    ('a b', 'c d e')
    """
    words = document.split(" ")
    return " ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])


def _completed(trained: Trained, contexts_before, rests) -> list[str]:
    """Returns the whole texts: each beginning with the model's completion."""
    sizes = [len(trained.encode(f" {rest}")) for rest in rests]
    decoding = Decoding(max_new=2 * max(sizes), temperature=1.0)
    if (mode := continuing_mode(trained)) in MASK_MODES:
        end = trained.decode([trained.ids.eos])  # every training document ends with it
        masked = [
            f"{before} {'[MASK]' * size}{end}" for before, size in zip(contexts_before, sizes)
        ]
        records = answer(
            trained, mode, [{"text": text} for text in masked], unmasking_options(decoding)
        )
        return [record["answer"].replace(end, "").strip() for record in records]
    written = continued(trained, contexts_before, decoding)
    return [f"{before} {rest.strip()}" for before, rest in zip(contexts_before, written)]
