"""Features of texts and words from a frozen model, layer by layer."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from annotated_types import MinLen

from ....corpora.python_library.python_passages import Tagged
from ....inference import Trained
from ....inference.answering.states import TextStates, all_layers, check_layers, ending_slot, states
from ....objectives.prompt_forms import Pooling

Layers = Annotated[Sequence[int], MinLen(1)]


def text_features(
    trained: Trained, texts: Sequence[str], layers: Sequence[int], pooling: Pooling
) -> dict[int, np.ndarray]:
    """Returns the features f32[N, E] of the texts by layer.

    "mean" pools the states of a text's own tokens, "first" and "last" take a slot of its row.
    """
    unique = list(dict.fromkeys(texts))  # Read each text once.
    pooled = {}
    for i, text_states in states(trained, unique, layers=layers):
        if pooling == "mean":
            pooled[unique[i]] = text_states.layers[:, text_states.text].mean(1)
        else:
            pooled[unique[i]] = text_states.layers[:, 0 if pooling == "first" else -1]
    return dict(zip(layers, np.stack([pooled[text] for text in texts], 1)))


def word_features(
    trained: Trained, passages: Sequence[Tagged], layers: Sequence[int]
) -> dict[int, np.ndarray]:
    """Returns the features f32[W, E] of the words of the passages by layer.

    The features of a word are the state of its last token.
    """
    word_states: list = [None] * len(passages)
    for i, text_states in states(trained, [passage.text for passage in passages], layers=layers):
        word_states[i] = text_states.layers[:, word_slots(trained, passages[i], text_states)]
    return dict(zip(layers, np.concatenate(word_states, 1)))


def word_slots(trained: Trained, passage: Tagged, row: TextStates) -> list[int]:
    return [ending_slot(trained, passage.text, end, row.text) for _, end in passage.words]


def chosen_layers(trained: Trained, layers: Sequence[int] | None) -> list[int]:
    """Returns the layers that an eval metric reads, all layers for None.

    Raises ValueError for layers that the model does not have.
    """
    if layers is None:
        return all_layers(trained)
    check_layers(trained, layers)
    return list(layers)
