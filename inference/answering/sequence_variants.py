"""Zero-shot scores of variants: log-likelihood of the mutated sequence minus the wild type's.

    variants = [SequenceVariant.of("MKTAY", "K2R"), SequenceVariant.of("MKTAY", "K2R:A4G")]
    score_variants(trained, "MKTAY", variants)     # f64[2], negative for unlikely variants

Source: Meier et al. 2021, "Language models enable zero-shot prediction of the effects of mutations
on protein function" (bioRxiv 2021.07.09.450648), for all scores of masked models.
"""

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from ...corpora.alphabets import ALPHABETS
from ..decoding.batching import DEFAULT_BATCHING, Batching
from ..prompting.prompts import text_frame
from ..trained import (
    Trained,
    is_trained_for,
    longest_row,
    mode_of,
    predicts_from_left,
    prompt_form,
)
from .scoring import answer_log_probs, answered_prompt, hidden_log_probs, pseudo_log_probs

Marginal = Literal["masked_marginal", "wild_type_marginal"]
Scoring = Literal[Marginal, "pseudo_likelihood", "likelihood", "bound"]
NOISES = 64  # number of masks that a diffusion model's bound is averaged over
SEED = 0  # seed of these masks
SUBSTITUTION = re.compile(r"([A-Za-z])([0-9]+)([A-Za-z])")
REPEATS = 64  # number of repetitions of a letter, enough to show tokens of several letters


class SequenceVariant(NamedTuple):
    """A variant of a wild type."""

    sequence: str
    # (index from 0, new letter) of each substitution. None for a sequence of another length.
    substitutions: tuple[tuple[int, str], ...] | None

    @classmethod
    def of(cls, wild_type: str, mutant: str) -> "SequenceVariant":
        """Returns the variant with substitutions such as "A24G", joined by ":".

        >>> SequenceVariant.of("MKTAY", "K2R:A4G").sequence
        'MRTGY'

        Raises ValueError for another form, an invalid or repeated position, and a letter that the
        wild type does not have there.
        """
        letters = list(wild_type)
        substitutions: dict[int, str] = {}
        for part in mutant.split(":"):
            match = SUBSTITUTION.fullmatch(part)
            if not match:
                raise ValueError("expected substitutions such as A24G, joined by ':'")
            before, number, after = match.groups()
            index = int(number) - 1
            if not 0 <= index < len(wild_type):
                raise ValueError(f"expected a position from 1 to {len(wild_type)}, not {number}")
            if wild_type[index] != before:
                raise ValueError(
                    f"expected {wild_type[index]!r} in {part}, the letter of the wild type at "
                    f"position {number}, counted from 1"
                )
            if index in substitutions:
                raise ValueError(f"expected position {number} only once")
            substitutions[index] = letters[index] = after
        return cls("".join(letters), tuple(sorted(substitutions.items())))

    @classmethod
    def between(cls, wild_type: str, sequence: str) -> "SequenceVariant":
        """Returns the variant with this sequence, which may have insertions and deletions.

        >>> SequenceVariant.between("MKTAY", "MRTAY").substitutions
        ((1, 'R'),)
        """
        if len(sequence) != len(wild_type):
            return cls(sequence, None)
        changes = enumerate(zip(wild_type, sequence))
        return cls(sequence, tuple((i, new) for i, (old, new) in changes if new != old))


def score_variants(
    trained: Trained,
    wild_type: str,
    variants: Sequence[SequenceVariant],
    scoring: Scoring | None = None,
    *,
    both_strands: bool = False,
    batching: Batching = DEFAULT_BATCHING,
) -> np.ndarray:
    """Returns the score of each variant in nats, f64[N]. The wild type has the score 0.

        masked_marginal      masks all mutated positions of the wild type at once, and sums
                             log p(mutant) - log p(wild type): a pass for each set of positions
        wild_type_marginal   the same sum from one pass over the wild type, without masks
        pseudo_likelihood    difference of the sums of log p(letter | all other letters): a pass for
                             each letter of each variant
        likelihood           difference of the log-probabilities without end-of-sequence, for causal
                             models
        bound                difference of the bounds on the log-probabilities, for masked diffusion
                             models. Variants and wild type have the same masks, so that most of the
                             noise cancels

    Args:
      scoring: how to score. None: "likelihood" for causal models, "bound" for masked diffusion, and
        "masked_marginal" for other masked models.
      both_strands: whether to average the scores of DNA or RNA and its reverse complement.
      batching: `on_batch` is called with each batch's share of all rows.

    Raises:
      ValueError: The model does not support the score, or a sequence does not fit its positions.
        For marginals: a variant has another length, both strands are given, or tokens are not
        letters.
    """
    scoring = scoring or usual_scoring(trained)
    check_scoring(trained, scoring, both_strands)
    if scoring in get_args(Marginal):
        masked = scoring == "masked_marginal"
        return _marginals(trained, wild_type, variants, masked, batching)
    strands: list[Callable[[str], str]] = [str]
    if both_strands:
        is_rna = "U" in wild_type or sequence_check(trained)("T") is not None
        strands.append(functools.partial(reverse_complement, kind="rna" if is_rna else "dna"))
    sequences = [wild_type, *(variant.sequence for variant in variants)]
    places = {sequence: i for i, sequence in enumerate(dict.fromkeys(sequences))}
    log_likelihoods = functools.partial(_LOG_LIKELIHOODS[scoring], trained)
    by_strand = _in_shares(batching, len(strands))
    strand_likelihoods = [log_likelihoods([*map(strand, places)], by_strand) for strand in strands]
    means = np.mean(strand_likelihoods, axis=0)[[places[sequence] for sequence in sequences]]
    return means[1:] - means[0]


def usual_scoring(trained: Trained) -> Scoring:
    """Returns the default scoring for a model's training.

    Raises ValueError for a model that gives sequences no likelihood.
    """
    if trained.model.layout != "encoder_decoder":
        if predicts_from_left(trained):
            return "likelihood"
        mode = mode_of(trained)
        if mode == "mask":
            return "masked_marginal"
        if mode == "unmask" and prompt_form(trained, mode).noise is None:
            return "bound"
    raise ValueError(
        f"Got a model of layout {trained.model.layout!r} that was trained for mode "
        f"{mode_of(trained)!r}, expected a model that causal_lm, masked_lm or masked_diffusion "
        "trained: sequences are scored by their likelihood."
    )


def check_scoring(trained: Trained, scoring: Scoring, both_strands: bool) -> None:
    """Raises ValueError if the model does not support the score."""
    usual = usual_scoring(trained)
    if (scoring == "likelihood") != (usual == "likelihood"):
        supported = [x for x in get_args(Scoring) if (x == "likelihood") == (usual == "likelihood")]
        raise ValueError(
            f"Got scoring {scoring!r} for a model in mode {mode_of(trained)!r}, expected one of "
            f"{', '.join(supported)}."
        )
    if scoring != "likelihood" and not is_trained_for(trained, "mask"):
        raise ValueError(
            f"Got scoring {scoring!r} for a model in mode {mode_of(trained)!r}, expected a model "
            "that learned to predict masks."
        )
    if both_strands and scoring in get_args(Marginal):
        raise ValueError(
            f"Got both strands with scoring {scoring!r}, expected pseudo_likelihood, likelihood or "
            "bound, which score whole sequences."
        )


def longest_sequence(trained: Trained) -> int | None:
    """Returns the maximum number of tokens of a sequence in training. None: any."""
    stack = "decoder" if trained.model.layout == "decoder" else "encoder"
    longest = longest_row(trained, stack)
    return None if longest is None else longest - sum(map(len, text_frame(trained)))


def sequence_check(trained: Trained) -> Callable[[str], str | None]:
    """Returns a function that returns why the model cannot read a sequence, or None."""
    longest = longest_sequence(trained)

    @functools.lru_cache(maxsize=256)
    def is_known(letter: str) -> bool:
        letters = letter * REPEATS
        return trained.decode(trained.encode(letters)).replace(" ", "") == letters

    def problem(sequence: str) -> str | None:
        for letter in sorted(set(sequence)):
            if not is_known(letter):
                return f"expected letters of the model's vocabulary, which has no {letter!r}"
        tokens = len(trained.encode(sequence))
        if longest is not None and tokens > longest:
            return f"expected at most {longest} tokens, the model's context, not {tokens}"
        return None

    return problem


def reverse_complement(sequence: str, kind: Literal["dna", "rna"] = "dna") -> str:
    """Returns the reverse complement of DNA or RNA.

    >>> reverse_complement("AACGN"), reverse_complement("AACGU", "rna")
    ('NCGTT', 'ACGUU')

    Raises ValueError for letters other than A, C, G, T (or U) and N.
    """
    letters, _, _, complements = ALPHABETS[kind]
    if others := sorted({*sequence.upper()} - {*letters}):
        raise ValueError(
            f"Got the letters {', '.join(others)} with both strands, expected {kind.upper()} of "
            f"{', '.join(letters)}: proteins have no other strand."
        )
    paired = str.maketrans(letters + letters.lower(), complements + complements.lower())
    return sequence.translate(paired)[::-1]


def _marginals(
    trained: Trained,
    wild_type: str,
    variants: Sequence[SequenceVariant],
    masked: bool,
    batching: Batching,
) -> np.ndarray:
    changes = []
    for variant in variants:
        if variant.substitutions is None:
            raise ValueError(
                f"Got the variant {variant.sequence[:40]!r} with insertions or deletions, expected "
                "substitutions: choose a scoring of whole sequences, such as pseudo_likelihood."
            )
        changes.append(dict(variant.substitutions))
    tokens = _token_of_each(trained, wild_type)
    letters = sorted({*wild_type, *(letter for places in changes for letter in places.values())})
    column = {letter: i for i, letter in enumerate(letters)}
    ids = [_token_of_each(trained, letter)[0] for letter in letters]
    all_places = range(len(tokens))
    changed = [*dict.fromkeys(tuple(places) for places in changes if places)]
    texts = [(tokens, places) for places in (changed if masked else [all_places])]
    log_probs = {}
    if texts:
        size = min(batching.size, len(texts))
        batching = _in_shares(batching, len(texts))._replace(size=size)
        predicted = hidden_log_probs(trained, texts, batching, candidates=ids, masked=masked)
        log_probs = {places: log_probs_KxA for (_, places), log_probs_KxA in zip(texts, predicted)}

    def score(places: dict[int, str]) -> float:
        if not places:
            return 0.0
        log_probs_KxA = log_probs[tuple(places)] if masked else log_probs[all_places][[*places]]
        return sum(
            log_probs_A[column[new]] - log_probs_A[column[wild_type[i]]]
            for log_probs_A, (i, new) in zip(log_probs_KxA, places.items())
        )

    return np.array([score(places) for places in changes], np.float64)


def _token_of_each(trained: Trained, sequence: str) -> list[int]:
    """Returns the token of each letter. Raises ValueError if tokens are not single letters."""
    tokens = trained.encode(sequence)
    token_of = {letter: trained.encode(letter) for letter in set(sequence)}
    if [[token] for token in tokens] != [token_of[letter] for letter in sequence]:
        raise ValueError(
            f"Got {len(tokens)} tokens for the {len(sequence)} letters of {sequence[:40]!r}, "
            "expected the same token for each occurrence of a letter: choose a scoring of whole "
            "sequences, such as pseudo_likelihood."
        )
    return tokens


def _pseudo_log_likelihoods(trained: Trained, sequences: Iterable[str], batching: Batching):
    texts = [((), trained.encode(sequence)) for sequence in sequences]
    batching = _in_shares(batching, sum(len(tokens) for _, tokens in texts))
    return [x.sum() for x in pseudo_log_probs(trained, texts, batching)]


def _log_likelihoods(trained: Trained, sequences: Iterable[str], batching: Batching):
    answered = [answered_prompt(trained, "", sequence) for sequence in sequences]
    batching = _in_shares(batching, len(answered))
    return [x.sum() for x in answer_log_probs(trained, answered, batching)]


def _bounds(trained: Trained, sequences: Iterable[str], batching: Batching):
    """Returns bounds on the log-likelihoods, estimated from the same masks for all sequences.

    The number of masks is stratified and uniform between 1 and the length.
    """
    rows = [trained.encode(sequence) for sequence in sequences]
    random = np.random.default_rng(SEED)
    shares_N = (np.arange(NOISES) + random.random(NOISES)) / NOISES
    numbers_NxT = random.random((NOISES, max(map(len, rows))))
    hidden = []
    for tokens in rows:
        counts_N = 1 + np.floor(len(tokens) * shares_N).astype(int)
        orders_NxT = np.argsort(numbers_NxT[:, : len(tokens)], axis=1)
        hidden += [(tokens, order[:count]) for order, count in zip(orders_NxT, counts_N)]
    log_probs = hidden_log_probs(trained, hidden, _in_shares(batching, len(hidden)))
    terms = [x.sum() * len(tokens) / x.size for x, (tokens, _) in zip(log_probs, hidden)]
    return np.reshape(terms, (len(rows), NOISES)).mean(1)


def _in_shares(batching: Batching, total: int) -> Batching:
    """Returns a batching that calls `on_batch` with each batch's share of `total`."""
    on_batch = batching.on_batch
    return batching._replace(on_batch=on_batch and (lambda rows: on_batch(rows / total)))


_LOG_LIKELIHOODS: dict[str, Callable] = {
    "pseudo_likelihood": _pseudo_log_likelihoods,
    "likelihood": _log_likelihoods,
    "bound": _bounds,
}
