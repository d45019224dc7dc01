"""Features of texts and words from a frozen model, layer by layer."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from annotated_types import MinLen

from ....inference import Trained
from ....inference.answering.states import TextStates, check_layers, layers_of, states
from ....objectives.prompt_forms import Pooling
from ....tasks.python_library.python_passages import Tagged

Layers = Annotated[Sequence[int], MinLen(1)]


def text_features(
    trained: Trained, texts: Sequence[str], layers: Sequence[int], pooling: Pooling
) -> dict[int, np.ndarray]:
    """Returns f32[N, E] of the texts by layer.

    Args:
      pooling: "mean" of the states of a text's own tokens, or the "first" or "last" slot of its
        row, such as that of [CLS].

    Raises ValueError as `inference.answering.states.states`.
    """

    def pooled(found: TextStates) -> np.ndarray:
        if pooling == "mean":
            return found.layers[:, found.text].mean(1)
        return found.layers[:, 0 if pooling == "first" else -1]

    each = {text: i for i, text in enumerate(dict.fromkeys(texts))}  # read once
    found: list = [None] * len(each)
    for i, of_text in states(trained, list(each), layers=layers):
        found[i] = pooled(of_text)
    return _by_layer(layers, np.stack([found[each[text]] for text in texts], 1))


def word_features(
    trained: Trained, passages: Sequence[Tagged], layers: Sequence[int]
) -> dict[int, np.ndarray]:
    """Returns f32[W, E] of all words of the passages, in their order, by layer.

    A word's is the state of the token in which it ends, the first one at which a model that reads
    from left to right has read it whole.
    """
    found: list = [None] * len(passages)
    for i, of_text in states(trained, [each.text for each in passages], layers=layers):
        found[i] = of_text.layers[:, word_slots(trained, passages[i], of_text)]
    return _by_layer(layers, np.concatenate(found, 1))


def word_slots(trained: Trained, passage: Tagged, row: TextStates) -> list[int]:
    """Returns the slot of the token in which each word of a passage ends.

    It is counted by the tokens of the text up to there, so that it needs no more than `encode`.
    """
    last = row.text.stop - 1
    ends = [len(trained.encode(passage.text[:end])) for _, end in passage.words]
    return [min(max(row.text.start + end - 1, row.text.start), last) for end in ends]


def chosen_layers(trained: Trained, layers: Sequence[int] | None) -> list[int]:
    """Returns the layers that a yardstick reads; None: all. Raises ValueError for others."""
    if layers is None:
        return layers_of(trained)
    check_layers(trained, layers)
    return list(layers)


def _by_layer(layers: Sequence[int], found_NxWxE: np.ndarray) -> dict[int, np.ndarray]:
    return dict(zip(layers, found_NxWxE))
