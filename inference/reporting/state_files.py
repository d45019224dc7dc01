"""Files of hidden states: NumPy's .npz, an array for each text, as many tokens long as the text."""

import os
import zipfile
from collections.abc import Callable, Sequence

import numpy as np

from ..answering.states import layers_of, states
from ..trained import Trained


def layers_named(trained: Trained, layer: str) -> list[int]:
    """Returns the layers that "3", "-1" or "all" means; `states` checks that there are such."""
    if layer == "all":
        return layers_of(trained)
    try:
        return [int(layer)]
    except ValueError:
        raise ValueError(f"Got --layer={layer}, expected a number, or all.") from None


def write_states(
    file: str,
    trained: Trained,
    texts: Sequence[str],
    layers: Sequence[int],
    batch_size: int,
    on_text: Callable[[int], None],
) -> None:
    """Writes the hidden states of texts, whole or not at all.

        layers              i32[N], those asked for
        hidden_states_0     f32[N, T, E] of the first text, and so on: hidden_states_1 …
        input_ids_0         i32[T], its tokens, special ones included

    `hidden_states_0[k]` is `hidden_states[layers[k]][0]` of Hugging Face's
    output_hidden_states=True: embeddings are layer 0, and the last layer comes after the final
    norm. One batch is in memory at a time; `on_text` is called with 1 for each text.

    Raises ValueError as `states` does.
    """
    part = f"{file}.part"
    os.makedirs(os.path.dirname(file) or ".", exist_ok=True)
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
            _add(archive, "layers", np.array(layers, np.int32))
            for i, found in states(trained, texts, layers=layers, batch_size=batch_size):
                _add(archive, f"hidden_states_{i}", found.layers)
                _add(archive, f"input_ids_{i}", np.array(found.tokens, np.int32))
                on_text(1)
        os.replace(part, file)
    finally:
        if os.path.exists(part):
            os.remove(part)


def _add(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
