"""Shows what an objective does to text, for Python and for the command `pretrax show`."""

import dataclasses
import functools
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ..constraints import name_of
from ..corpora.vocabularies import Vocabulary
from ..objectives import Builder
from ..objectives.catalog import CATALOG, find, run_of
from ..settings.partial import Partial, as_partial, flattened
from ..settings.printable import PrintableConsole
from ..training.run_configuration import read_fields
from ..visualization import picture_page
from ..visualization.choice import Choice
from ..visualization.drawing import picture
from ..visualization.picture import Picture
from ..visualization.terminal import print_picture
from . import sample_text
from .sample_text import LIBRARY, SampleText

CACHE = "runs/show"  # folder of the vocabulary that is trained on Python's library
# Name of a vocabulary -> what it is.
VOCABULARIES = {
    "words": "the words of the text",
    "bytes": "bytes",
    LIBRARY: "trained on Python's library",
}
LENGTH = 512  # slots of the encoder or the single stack
WIDTH = 100  # characters of a line of a picture that is not printed in a terminal


@dataclasses.dataclass(frozen=True, repr=False)
class ObjectivePicture:
    """A picture of an objective, which displays itself in a terminal and in a notebook.

    Attributes:
      content (Picture): The facts and the examples, as plain values. `content.as_json()` returns
        them as dictionaries and lists.
      made_by (str): The call that made the picture, for the footer of the page.
    """

    content: Picture
    made_by: str

    def html(self) -> str:
        """Returns the picture as a page of HTML for light and dark screens."""
        return picture_page.page(self.content, self.made_by)

    def __repr__(self) -> str:
        """Returns the picture as text, with colors if it is printed in a terminal."""
        in_terminal = sys.stdout.isatty()
        text = io.StringIO()
        console = PrintableConsole(
            file=text,
            force_terminal=in_terminal,
            force_jupyter=False,  # in a notebook, rich would display the text instead
            width=None if in_terminal else WIDTH,
        )
        print_picture(console, self.content)
        return text.getvalue()

    def _repr_html_(self) -> str:
        # A frame keeps the page's styles apart from the notebook's. It has the notebook's color
        # scheme.
        fit = "this.style.height = this.contentDocument.documentElement.scrollHeight + 'px'"
        style = "width:100%; height:30rem; border:0; color-scheme:light dark"
        page = escape(self.html())
        return f'<iframe style="{style}" onload="{escape(fit)}" srcdoc="{page}"></iframe>'


def show(
    objective: str | Builder,
    text: str | Sequence[str] | None = None,
    *,
    hide: Sequence[str] | Sequence[range] = (),
    vocabulary: str = "words",
    layout: str | None = None,
    rows: int | None = None,
    length: int = LENGTH,
    seed: int = 0,
) -> ObjectivePicture:
    """Returns a picture of what an objective does to a text.

        pretrax.show("span_corruption", "The quick brown fox jumps over the lazy dog")
        pretrax.show(functools.partial(objectives.masked_lm, rate=0.4), rows=2)

    The picture displays itself: in a terminal as text, in a notebook as a page. It shows the
    inputs, the targets and the attention patterns.

    Args:
      objective: a name of `pretrax show --list`, such as "ul2", or a builder of an objective.
      text: a text, or several texts. A blank line begins another document. None: the beginning of
        the Zen of Python.
      hide: pieces of the text to hide, in order, or ranges of tokens, such as `[range(3, 6)]` for
        the tokens 3, 4 and 5, counted from 0. None: tokens drawn at random.
      vocabulary: a name of `VOCABULARIES`, a SentencePiece .model, a tokenizer.json, or the
        directory of a run.
      layout: "encoder", "decoder" or "encoder_decoder". None: the layout that suits the objective.
      rows: number of examples of each objective. None: one.
      length: number of slots of the encoder or of the single stack.
      seed: seed of the noise.

    Raises:
      ValueError: if there is no such objective, it cannot process this text, or it breaks a law of
        objectives (`pretrax check`).
    """
    texts = [text] if isinstance(text, str) else text
    documents = sample_text.read_documents(texts)
    choice = choice_of(objective)
    drawn = picture(
        choice,
        encoded(documents, vocabulary).shown(is_own=text is not None),
        layout=layout,
        count=rows or 1,
        slots=length,
        seed=seed,
        hide=[hide] if isinstance(hide, str) else hide,
    )
    return ObjectivePicture(drawn.picture, f"pretrax.show({choice.name!r}, …)")


def choice_of(objective: str | Builder) -> Choice:
    """Returns the objective to show, from a name in the catalog or from a builder.

    >>> choice_of("mlm").name, choice_of(objectives.causal_lm).name
    ('masked_lm', 'causal_lm')

    Raises ValueError for an unknown name.
    """
    if not isinstance(objective, str):
        return choice_of_fields({"objective": _as_setting(objective)})
    name = find(objective)
    # The objective's file may set parameters that only the model of its small run has.
    fields = read_fields([f"runs/{run_of(name)}.gin", f"objectives/{name}.gin"])
    return choice_of_fields({"objective": fields["objective"]}, name)


def choice_of_fields(fields: Mapping[str, Any], name: str | None = None) -> Choice:
    """Returns the objective to show, from fields of a `Run`.

    Args:
      name: name of the objective in the catalog. None: the name of the objective's builder.
    """
    build = as_partial(fields["objective"])
    settings = dict(flattened("", build))
    name = name or settings.get(".tasks.mixture_or_task_name")
    name = name or name_of(build.function).rpartition(".")[2]
    used = "model", "corpus", "mark_document_ends", "packing", "sequence_lengths"
    return Choice(
        name,
        build,
        CATALOG.get(name),
        mean_span_length=settings.get(".mean_span_length"),
        **{key: fields.get(key) for key in used},
    )


def _as_setting(builder: Callable) -> Callable:
    """Returns a builder whose settings can be read, if it is a `functools.partial`."""
    if isinstance(builder, functools.partial) and not builder.args:
        return Partial(builder.func, **builder.keywords)
    return builder


def encoded(
    documents: Sequence[str], vocabulary: str, notice: Callable[[str], None] = print
) -> SampleText:
    """Returns documents in the vocabulary of a name, a file or the directory of a run."""
    if vocabulary == "words":
        return sample_text.from_words(documents)
    return sample_text.from_texts(open_vocabulary(vocabulary, notice), documents)


def open_vocabulary(name: str, notice: Callable[[str], None] = print) -> Vocabulary:
    """Returns the vocabulary of a name, a file or the directory of a run.

    Raises FileNotFoundError or ValueError for an unknown vocabulary.
    """
    if name not in VOCABULARIES and not Path(name).exists():
        raise FileNotFoundError(
            f"There is no vocabulary {name!r}, expected {', '.join(map(repr, VOCABULARIES))}, "
            "a SentencePiece '.model' file, a Hugging Face 'tokenizer.json' or a run's directory."
        )
    if name not in VOCABULARIES and Path(name).is_dir():
        return sample_text.open_vocabulary(CACHE, run=name)
    return sample_text.open_vocabulary(CACHE, name=name, notice=notice)
