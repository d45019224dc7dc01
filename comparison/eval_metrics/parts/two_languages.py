"""Two small artificial languages, drawn at random: sentences with their translations.

    first language     adjective noun verb adjective noun
    second language    noun adjective noun adjective verb

Every word and sentence has exactly one translation, and nothing can be copied.
"""

import numpy as np

WORDS = {"noun": 12, "adjective": 8, "verb": 8}  # number of words of each kind, in each language
_SYLLABLES = tuple(consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou")


def translations(sentences: int) -> list[tuple[str, str]]:
    """Returns different sentences of the first language with their translations.

        translations(1)     # [("sane tona bemi daro", "…")]

    A sentence is a subject, a verb and an object, and half of the nouns have an adjective.
    """
    rng = np.random.default_rng(0)
    words = _words(rng)

    def drawn(kind: str) -> tuple[str, str]:
        return words[kind][rng.integers(WORDS[kind])]

    def phrase() -> list[tuple[str, str]]:
        return [drawn("adjective")] * int(rng.integers(2)) + [drawn("noun")]

    translated: dict[str, str] = {}
    while len(translated) < sentences:
        subject = phrase()
        verb = drawn("verb")
        other = phrase()
        first = [*subject, verb, *other]
        second = [*subject[::-1], *other[::-1], verb]
        translated[" ".join(word for word, _ in first)] = " ".join(word for _, word in second)
    return list(translated.items())


def _words(rng: np.random.Generator) -> dict[str, list[tuple[str, str]]]:
    """Returns the words of each kind with their translations. All words have two syllables."""
    count = sum(WORDS.values())
    numbers = rng.choice(len(_SYLLABLES) ** 2, (count, 2), replace=False)
    firsts, lasts = np.divmod(numbers, len(_SYLLABLES))
    pairs = iter(
        tuple(_SYLLABLES[a] + _SYLLABLES[b] for a, b in zip(*both)) for both in zip(firsts, lasts)
    )
    return {kind: [next(pairs) for _ in range(many)] for kind, many in WORDS.items()}
