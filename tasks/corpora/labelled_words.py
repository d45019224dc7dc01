"""A world to learn in context: lists of words whose labels mean something in their own list only.

    lion dax
    bread wug
    horse dax
    cheese wug

Words are of four kinds. In each list each kind has one of four labels, drawn anew, so that what a
label means can be known from the examples before it and from nothing else: a model that predicts
labels better than chance has learned to use its context. As linear functions are for Garg et al.
2022 (arXiv:2208.01066), and repeated tokens for Olsson et al. 2022 (arXiv:2209.11895), but a word
need not have stood in the list before: another of its kind tells its label.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ...constraints import Count, checked
from ...data.corpus import Corpus
from ..vocabularies import Factory, VocabularySource
from .text_readers import LeftOut, TextPart
from .tokenising import SplitText, corpus_of, tokenised

KINDS = (  # of words of one token in most vocabularies
    ("lion", "horse", "dog", "cat"),
    ("bread", "cheese", "rice", "soup"),
    ("hammer", "knife", "brush", "rope"),
    ("rain", "snow", "wind", "storm"),
)
LABELS = ("dax", "wug", "fep", "kiv")  # which are no words
_HELDOUT_EVERY = 20  # lists


class LabelledWord(NamedTuple):
    """A word and the label that its kind has in its list."""

    word: str
    label: str


def word_list(rng: np.random.Generator, examples: int) -> list[LabelledWord]:
    """Returns the examples of one list.

        word_list(np.random.default_rng(0), 1)  # [LabelledWord('cat', 'fep')]

    Labels are drawn for each kind by itself: two kinds may have one label.
    """
    labels = rng.integers(len(LABELS), size=len(KINDS)).tolist()
    kinds = rng.integers(len(KINDS), size=examples).tolist()
    words = rng.integers(len(KINDS[0]), size=examples).tolist()  # each kind has as many
    return [LabelledWord(KINDS[k][word], LABELS[labels[k]]) for k, word in zip(kinds, words)]


def written(examples: Sequence[LabelledWord]) -> str:
    """Returns a list as text, a line for each example.

    >>> written([LabelledWord("lion", "dax")])
    'lion dax\\n'
    """
    return "".join(f"{example.word} {example.label}\n" for example in examples)


def known_share(shots: int) -> float:
    """Returns how often a reader is right who knows the kinds and reads so many examples.

    The label of a kind that is among them is known, that of another guessed.

    >>> [round(known_share(shots), 2) for shots in (0, 1, 8)]
    [0.25, 0.44, 0.92]
    """
    unseen = (1 - 1 / len(KINDS)) ** shots
    return 1 - unseen + unseen / len(LABELS)


@checked
def word_lists(
    run_dir: str,
    *,
    vocabulary: Factory,
    lists: Count = 20_000,
    examples: Count = 16,
    seed: int = 0,
) -> Corpus:
    """Lists of labelled words, drawn from a seed: nothing to download.

        training.Run.corpus = @corpora.word_lists
        corpora.word_lists.vocabulary = @vocabularies.trained
        vocabularies.trained.model_type = "word"

    Args:
        lists: how many there are to train on; a twentieth more is held out.
        examples: of each list.
        seed: of what is drawn, and of the order of reading.
        The others: as for `text_files`.
    """
    counts = {"train": lists, "heldout": -(-lists // _HELDOUT_EVERY)}

    def text(split: str) -> SplitText:
        def read(advance) -> Iterator[TextPart]:
            rng = np.random.default_rng([seed, list(counts).index(split)])
            for _ in range(counts[split]):
                yield TextPart(written(word_list(rng, examples)))
                advance(1)

        version = [KINDS, LABELS, counts[split], examples, seed]
        return SplitText(read, counts[split], version, LeftOut())

    texts = {split: text(split) for split in counts}
    source = VocabularySource(lambda: (part.text for part in texts["train"].read(lambda _: None)))
    made = vocabulary(run_dir, source)
    tokens = tokenised(run_dir, texts, made)
    return corpus_of("Lists of labelled words", tokens, made, held_out="other lists", seed=seed)
