"""Alphabets of biological sequences, and how the letters of files are read.

`dna` and `rna` have one ambiguous letter, N. The other ambiguous letters of IUPAC are read as N. In
`rna`, T is read as U. `protein` has the letters of ESM-2 in the order of its ids (Lin et al.
2023, "Evolutionary-scale prediction of atomic-level protein structure with a language model"). J is
read as X, and a stop codon (*) separates two proteins. Lowercase letters are read as uppercase.
"""

from typing import NamedTuple

import numpy as np

from ..constraints import near

_AMBIGUOUS = "RYSWKMBDHV"  # IUPAC letters for several bases, without N


class Alphabet(NamedTuple):
    """The letters of sequences. The letters of files are in ASCII."""

    letters: str  # in the order of their ids
    gap: str = ""  # a letter that is never learned: sequences are split at its runs
    read_as: tuple[str, str] = ("", "")  # letters of files, and the letters that they are read as
    complements: str = ""  # the complement of each of `letters`, or "" if there are none

    @property
    def known(self) -> str:
        """Returns the letters that a k-mer may have: all except the gap."""
        return self.letters.replace(self.gap, "") if self.gap else self.letters

    @property
    def table(self) -> np.ndarray:
        """Returns what each byte of a file is read as, uint8[256]; 0 for a byte that is not known.

        >>> ALPHABETS["rna"].table[list(b"aTuR!")].tobytes()
        b'AUUN\\x00'
        """
        table = np.zeros(256, np.uint8)
        pairs = [*zip(self.letters + self.gap, self.letters + self.gap), *zip(*self.read_as)]
        for letter, read in pairs:
            table[ord(letter)] = ord(read)
            if (lower := letter.lower()) not in self.letters:
                table[ord(lower)] = ord(read)
        return table


ALPHABETS = {
    "dna": Alphabet("ACGTN", "N", (_AMBIGUOUS, "N" * len(_AMBIGUOUS)), "TGCAN"),
    "rna": Alphabet("ACGUN", "N", (f"T{_AMBIGUOUS}", "U" + "N" * len(_AMBIGUOUS)), "UGCAN"),
    "protein": Alphabet("LAGVSERTIDPKQNFYMHWCXBUZO.-", "*", ("J", "X")),
}


def alphabet_named(name: str) -> Alphabet:
    """Returns a known alphabet, or the alphabet of your own letters.

    >>> alphabet_named("dna").letters, alphabet_named("HP").letters
    ('ACGTN', 'HP')

    Raises ValueError for an unknown name, and for own letters that are lowercase, repeated, white
    space or not ASCII.
    """
    if name.lower() in ALPHABETS:
        return ALPHABETS[name.lower()]
    is_own = name.isascii() and name == name.upper() and len(set(name)) == len(name) > 1
    if not is_own or any(letter.isspace() for letter in name):
        raise ValueError(
            f"Got the alphabet {name!r}{near(name, ALPHABETS)} Expected {', '.join(ALPHABETS)}, or "
            "your own letters in uppercase, each once, such as 'HP'."
        )
    return Alphabet(name)
