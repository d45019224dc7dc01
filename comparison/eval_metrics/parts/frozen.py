"""Features of texts and words from a frozen model, layer by layer."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from annotated_types import MinLen

from ....corpora.python_library.python_passages import Tagged
from ....inference import Trained
from ....inference.answering.states import TextStates, check_layers, ending_slot, layers_of, states
from ....objectives.prompt_forms import Pooling

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
    # each text is read once
    each = list(dict.fromkeys(texts))
    pooled = {}
    for i, of_text in states(trained, each, layers=layers):
        if pooling == "mean":
            pooled[each[i]] = of_text.layers[:, of_text.text].mean(1)
        else:
            pooled[each[i]] = of_text.layers[:, 0 if pooling == "first" else -1]
    return dict(zip(layers, np.stack([pooled[text] for text in texts], 1)))


def word_features(
    trained: Trained, passages: Sequence[Tagged], layers: Sequence[int]
) -> dict[int, np.ndarray]:
    """Returns f32[W, E] of the tokens in which the words of the passages end, by layer: there a
    model that reads from left to right has read them whole."""
    found: list = [None] * len(passages)
    for i, of_text in states(trained, [each.text for each in passages], layers=layers):
        found[i] = of_text.layers[:, word_slots(trained, passages[i], of_text)]
    return dict(zip(layers, np.concatenate(found, 1)))


def word_slots(trained: Trained, passage: Tagged, row: TextStates) -> list[int]:
    """Returns the slot in which each word ends."""
    return [ending_slot(trained, passage.text, end, row.text) for _, end in passage.words]


def chosen_layers(trained: Trained, layers: Sequence[int] | None) -> list[int]:
    """Returns the layers that an eval metric reads; None: all. Raises ValueError for others."""
    if layers is None:
        return layers_of(trained)
    check_layers(trained, layers)
    return list(layers)
