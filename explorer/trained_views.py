"""The predictions of a trained model for a text, for a page."""

import collections
import contextlib
import dataclasses
import functools
import math
import os
import threading
from collections.abc import Collection
from typing import Annotated, Any

from annotated_types import Ge, Le

from ..constraints import NonNegative, Seed, Share, check_fields
from ..corpora.vocabularies import load_vocabulary
from ..inference.answering.answers import answer
from ..inference.answering.options import Decoding, Options, Order
from ..inference.answering.top_tokens import Alternatives, top_tokens
from ..inference.answering.unmasking import MaskSteps, unmasking_steps
from ..inference.trained import MODES, Trained, check_mode, mode_names, mode_of, prompt_form
from ..settings import run_directory
from ..training.run_configuration import read_directory
from ..training.trained_models import open_run

TOP = 6  # number of alternatives of a token
HELDOUT_TOKENS = 20_000  # tokens of held-out documents to choose from
EXAMPLE = "import os"  # text of a page before the user writes one
EXAMPLE_CHARACTERS = 40  # length of the example of a run whose vocabulary lacks `EXAMPLE`


# A typing error must not fill the memory of the machine.
Bounded = Annotated[int, Ge(1), Le(10_000)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelQuestion:
    """A text for a trained model, and how it is answered."""

    run: str
    mode: str
    text: str
    suffix: str = ""
    second: str = ""
    max_new: Bounded = 64
    temperature: NonNegative = 0.0
    top_p: Share | None = None
    samples: Bounded = 1
    steps: Bounded | None = None
    order: Order = "confidence"
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self, "")


class TrainedRuns:
    """Opens runs, and keeps the last ones in memory.

    Args:
      trusted: modules that run directories may name, see `settings.trust`.
    """

    def __init__(self, trusted: Collection[str] = ()):
        self._trusted = tuple(trusted)
        self._locks: dict[Any, threading.Lock] = collections.defaultdict(threading.Lock)

    def open(self, run: str) -> Trained:
        with self._locks[run]:  # two pages that open a run wait for one reading
            return _opened(run, self._trusted, _changed(run))

    def describe(self, run: str) -> dict[str, Any]:
        """Returns the model and the step of a run, its modes, and a text of its vocabulary."""
        trained = self.open(run)
        return {
            "layout": trained.model.layout,
            "step": trained.step,
            "mode": mode_of(trained),  # the mode that the run was trained for
            "modes": [{"name": x, "about": MODES[x].about} for x in _supported(trained)],
            "example": self.known_text(run, EXAMPLE)[:EXAMPLE_CHARACTERS],
        }

    def document(self, run: str, number: int) -> str:
        """Returns a held-out document of a run's corpus; numbers past the last one wrap around."""
        with self._locks["documents", run]:
            documents = _heldout(run, self._trusted)
        return documents[number % len(documents)]

    def known_text(self, run: str, text: str) -> str:
        """Returns a text, or a document of a run's corpus if the run's vocabulary lacks the text.

        If the corpus cannot be opened, returns the text.
        """
        tokenizer = load_vocabulary(run).tokenizer
        if tokenizer.unknown in tokenizer.encode_batch([text])[0]:
            with contextlib.suppress(ValueError, OSError):
                return self.document(run, 0)
        return text

    def answer(self, question: ModelQuestion) -> dict[str, Any]:
        """Returns the record of `inference.answer`."""
        trained = self.open(question.run)
        check_mode(trained, question.mode)
        item = {"text": question.text}
        if MODES[question.mode].takes_gap:
            item = {"prefix": question.text, "suffix": question.suffix}
        if question.second:
            item["second"] = question.second
        decoding = Decoding(
            max_new=question.max_new,
            temperature=question.temperature,
            top_p=question.top_p,
            samples=question.samples,
            seed=question.seed,
        )
        options = Options(decoding=decoding, steps=question.steps, order=question.order, top=TOP)
        (record,) = answer(trained, question.mode, [item], options)
        return record

    def probabilities(self, run: str, text: str, context: str) -> list[Alternatives]:
        """Returns the probability of each token of a text, and the top tokens in its place."""
        return top_tokens(self.open(run), text, TOP, context)

    def unmasked(self, question: ModelQuestion) -> MaskSteps:
        """Returns the tokens of a text after each step of unmasking."""
        trained = self.open(question.run)
        check_mode(trained, "unmask")
        decoding = Decoding(temperature=question.temperature, seed=question.seed)
        options = Options(decoding=decoding, steps=question.steps, order=question.order)
        return unmasking_steps(trained, question.text, options)


def _supported(trained: Trained) -> list[str]:
    """Returns the modes in which a page can use a model: it has their heads, and accepts them."""
    supported = []
    for name in mode_names(trained.model.layout):
        head = prompt_form(trained, name).head
        if MODES[name].run or (head is not None and head not in trained.model.heads):
            continue  # the mode writes files, or the model cannot predict its classes
        try:
            check_mode(trained, name)
        except ValueError:
            continue
        supported.append(name)
    return supported


def _changed(run: str) -> float:
    """Returns the time at which the last checkpoint of a run was written."""
    folder = run_directory.checkpoints(run)
    return os.path.getmtime(folder) if os.path.isdir(folder) else math.nan


@functools.lru_cache(maxsize=4)
def _opened(run: str, trusted: tuple[str, ...], changed: float) -> Trained:
    return open_run(run, trusted=trusted)


@functools.lru_cache(maxsize=4)
def _heldout(run: str, trusted: tuple[str, ...]) -> list[str]:
    fields = read_directory(run, trusted)
    if fields.get("corpus") is None:
        raise ValueError(f"{run} names no corpus, so it has no documents: paste a text instead.")
    corpus = fields["corpus"](run)
    codec = load_vocabulary(run).codec
    return [codec.decode(document.tokens.tolist()) for document in corpus.heldout(HELDOUT_TOKENS)]
