"""Word senses: whether the hidden states of a word distinguish its two meanings.

Here a word is prose (in a comment or a docstring) or code: "return the first item", "return item".
"""

import collections
import itertools
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge

from ...constraints import Count, checked
from ...corpora.python_library.python_passages import character_kinds, drawn_order, library_split
from ...data.task_metrics import auroc
from ...inference import Trained
from ...inference.answering.states import states, text_row
from ..figures import HIGHER, NEITHER, Figure
from .parts.frozen import Layers, chosen_layers
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`
PROSE = 0
CODE = 1
# A word is lowercase letters after a space; in prose, it stands between two lowercase words.
_WORD = re.compile(r"(?<= )[a-z]{3,}\b")
_BETWEEN_WORDS = re.compile(r"(?<=[a-z] )[a-z]{3,}(?= [a-z])")
CHARACTERS = 600  # number of characters that are read on either side
TRIED = 4  # tokenized uses of a word, as a multiple of the needed number
NEIGHBORS = "neighbors"


class WordUse(NamedTuple):
    word: str
    meaning: int  # PROSE or CODE
    before: str  # up to the space before the word
    after: str


class Placed(NamedTuple):
    """A use of a word, tokenized by a vocabulary."""

    word: str
    meaning: int
    tokens: list[int]  # tokens of the word, with `context` tokens before and after it
    end: int  # the index of the word's last token
    word_tokens: tuple[int, ...]


@checked
def word_in_context(
    subject: Subject,
    *,
    words: Count = 24,
    uses: Annotated[int, Ge(4)] = 12,  # so that each half has two uses of each meaning
    context: Count = 24,
    layers: Layers | None = None,
) -> list[Figure]:
    """Share of comparisons in which a word's states are closer within a meaning than across.

    The figure is the area under the ROC curve of cosines between uses with the same meaning and
    with different meanings, averaged over words. The state of a word is the state of its last
    token. All uses of a word have the same tokens and position, so embeddings (layer 0) score 0.5.

    - `word_in_context`: the share for the layer that is best on other uses of the same words.
    - `word_in_context/layer_3`: the share for each layer, on the same uses.
    - `word_in_context/neighbors`: the share for the mean embedding of the visible tokens (the
      tokens on the left for a causal decoder), as a bag-of-words baseline.

    Args:
      words: number of words, the most frequent in both meanings.
      uses: number of uses of each word in each meaning; half of them choose the layer.
      context: number of tokens on either side of the word.

    Raises ValueError for an unknown layer, and if no word has enough uses.
    """
    subject.check_library_unseen()
    trained = subject.trained
    layers = chosen_layers(trained, layers)
    candidates = frequent_uses(library_uses(), uses)
    placed = (placed_uses(trained, same_word, uses, context) for same_word in candidates)
    word_uses = list(itertools.islice(filter(None, placed), words))
    if not word_uses:
        raise ValueError(
            f"No word has {uses} uses in each meaning with {context} tokens of this vocabulary on "
            "either side: lower uses or context."
        )
    halves = [
        [use for same_word in word_uses for i, use in enumerate(same_word) if i // 2 % 2 == half]
        for half in (0, 1)
    ]
    chosen, measured = (separations(trained, half, layers) for half in halves)
    best = max(layers, key=lambda layer: chosen[layer])
    most = ", ".join(same_word[0].word for same_word in word_uses[:4])
    note = f"layer {best}, over uses of {len(word_uses)} words: {most}, …"

    def figure(name: str, key, better=NEITHER, note: str = "") -> Figure:
        return Figure(f"word_in_context{name}", measured[key], "share", better, 0.5, note)

    return [
        figure("", best, HIGHER, note),
        *(figure(f"/layer_{layer}", layer) for layer in layers),
        figure("/neighbors", NEIGHBORS),
    ]


# --- uses of words ------------------------------------------------------------------------------


def library_uses() -> Iterator[WordUse]:
    for document in library_split()["validation"]:
        text = document.read()
        try:
            yield from uses_in(text)
        except (tokenize.TokenError, SyntaxError):  # The file is not Python of this version.
            continue


def uses_in(text: str) -> Iterator[WordUse]:
    """Yields the words of a Python text that follow a space: prose between words, and code.

    >>> [(use.word, use.meaning) for use in uses_in("x = list  # make a list of it\\n")]
    [('list', 1), ('list', 0)]
    """
    kinds = character_kinds(text)
    prose = {m.start() for m in _BETWEEN_WORDS.finditer(text)}
    for match in _WORD.finditer(text):
        start, end = match.span()
        is_code = kinds[start] in ("name", "keyword")
        if is_code or (kinds[start] in ("comment", "string") and start in prose):
            yield WordUse(
                match[0],
                CODE if is_code else PROSE,
                text[max(start - 1 - CHARACTERS, 0) : start - 1],
                text[end : end + CHARACTERS],
            )


def frequent_uses(uses: Iterable[WordUse], least: int) -> list[list[WordUse]]:
    """Returns the uses of each word that has `least` uses in both meanings.

    The most frequent words come first. The uses of a word are in the order of a hash.
    """
    uses_by_word = collections.defaultdict(list)
    for use in dict.fromkeys(uses):
        uses_by_word[use.word].append(use)

    def rarer(word: str) -> int:
        prose = sum(use.meaning == PROSE for use in uses_by_word[word])
        return min(prose, len(uses_by_word[word]) - prose)

    kept = sorted(
        (word for word in uses_by_word if rarer(word) >= least), key=lambda w: (-rarer(w), w)
    )
    return [sorted(uses_by_word[word], key=drawn_order) for word in kept]


def placed_uses(
    trained: Trained, same_word: Sequence[WordUse], uses: int, context: int
) -> list[Placed]:
    """Returns `uses` uses of a word in each meaning, prose and code in turn.

    Returns an empty list if there are fewer. The word has the same tokens in all uses, the most
    frequent ones of this vocabulary, such as "\u2581list". Each use has `context` tokens on either
    side.
    """
    placed: list[list[Placed]] = []
    for meaning in (PROSE, CODE):
        tried = [use for use in same_word if use.meaning == meaning][: TRIED * uses]
        placed.append(list(filter(None, (placed_use(trained, use, context) for use in tried))))
    spellings = collections.Counter(use.word_tokens for side in placed for use in side)
    usual = max(spellings, key=lambda tokens: spellings[tokens], default=())
    sides = [[use for use in side if use.word_tokens == usual][:uses] for side in placed]
    if min(map(len, sides)) < uses:
        return []
    return [use for pair in zip(*sides) for use in pair]


def placed_use(trained: Trained, use: WordUse, context: int) -> Placed | None:
    """Returns a use with its tokens.

    Returns None if the word shares a token with its context, or if there are too few tokens.
    """
    word = f"{use.before} {use.word}"
    before, there, whole = map(trained.encode, (use.before, word, word + use.after))
    first = len(before)
    end = len(there)
    apart = whole[:end] == there and there[:first] == before and first < end
    if not apart or first < context or len(whole) < end + context:
        return None
    tokens = whole[first - context : end + context]
    return Placed(use.word, use.meaning, tokens, context + end - first - 1, tuple(whole[first:end]))


# --- separation of states -----------------------------------------------------------------------


def separations(
    trained: Trained, uses: Sequence[Placed], layers: Sequence[int]
) -> dict[int | str, float]:
    """Returns the separation of states in each layer, and of their neighbors' embeddings."""
    use_states = dict(_states(trained, uses, layers))
    states = np.stack([use_states[i] for i in range(len(uses))], 1)
    words = [use.word for use in uses]
    meanings = [use.meaning for use in uses]
    names: list[int | str] = [*layers, NEIGHBORS]
    return {
        name: separation(words, meanings, states_NxE) for name, states_NxE in zip(names, states)
    }


def _states(trained: Trained, uses: Sequence[Placed], layers: Sequence[int]):
    """Yields the index of a use, its states and its neighbors' mean embedding, f32[N + 1, E]."""
    read_layers = [*layers, 0]
    for i, found in states(trained, [use.tokens for use in uses], layers=read_layers):
        slot = found.text.start + uses[i].end
        both_ways = trained.model.layout != "decoder" or text_row(trained, uses[i].tokens).prefix
        read = np.arange(found.text.start, found.text.stop if both_ways else slot + 1)
        yield i, np.stack([*found.layers[:-1, slot], found.layers[-1, read].mean(0)])


def separation(words: Sequence[str], meanings: Sequence[int], states_NxE: np.ndarray) -> float:
    """Returns how often states of one meaning have a greater cosine than states of different ones.

    The share is the mean over words. Ties count half.

    >>> separation("aaaa", [0, 0, 1, 1], np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]]))
    1.0
    """
    norms = np.linalg.norm(states_NxE, axis=-1, keepdims=True)
    unit_NxE = states_NxE / np.maximum(norms, 1e-12)
    shares = []
    for word in dict.fromkeys(words):
        own = [i for i, other in enumerate(words) if other == word]
        cosines = np.round(unit_NxE[own] @ unit_NxE[own].T, 5)  # Ties survive rounding errors.
        own_meanings = np.array(meanings)[own]
        same = own_meanings[:, None] == own_meanings[None]
        pairs = np.triu(np.ones_like(same), 1).astype(bool)
        shares.append(auroc(same[pairs], cosines[pairs])["auroc"])
    return float(np.mean(shares))
