"""The token ids of the tests of objectives."""

import numpy as np

from pretrax import objectives
from pretrax.objectives import TokenIds

# T5's sentinels descend from the largest id. Further sentinels have other ids, so that their order
# cannot be computed.
IDS = objectives.check_token_ids(
    TokenIds(
        size=33_000,
        text=(2, 32_000),
        mask=32_103,
        cls=32_104,
        sep=32_105,
        sentinels=(*range(32_099, 31_999, -1), *range(32_200, 32_900)),
        modes=(("R", 32_100), ("S", 32_101), ("X", 32_102)),
        fim=(32_106, 32_107, 32_108),
        digits=tuple((17 + value, value) for value in range(10)),
        word_starts=objectives.bitmap(np.arange(33_000) % 5 < 3),  # words of 1 2/3 tokens
        sentence_ends=objectives.bitmap(np.arange(33_000) % 7 == 3),  # sentences of 7 tokens
        texts=objectives.TokenTexts(
            lambda: [str(i) if 2 <= i < 32_000 else "" for i in range(33_000)]
        ),
    )
)
R, S, X = (IDS.mode(name) for name in "RSX")
