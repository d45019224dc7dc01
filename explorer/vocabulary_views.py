"""How a vocabulary cuts a text into tokens."""

from typing import Any

import numpy as np

from ..tasks.sample_text import SampleText
from ..visualization.examples import surfaces


def tokens_of(text: SampleText) -> dict[str, Any]:
    """Returns the size of a text's vocabulary, and the tokens of its documents.

    The bytes of a token are in hexadecimal, and "" if the vocabulary does not define them.
    """
    vocabulary = text.vocabulary
    try:
        spelled = vocabulary.ids.token_bytes()
    except ValueError:  # for example, a vocabulary of words that drops spaces
        spelled = []
    tokens = np.concatenate(text.documents).tolist()
    shown = [
        {"id": token, "text": surface, "bytes": spelled[token].hex(" ") if spelled else ""}
        for token, surface in zip(tokens, surfaces(text.reader, tokens))
    ]
    return {"size": vocabulary.ids.size, "tokens": shown}
