"""BART's denoising autoencoders: the inputs are a noised document, the targets the original.

Source: Lewis et al. 2020 (BART, arXiv:1910.13461), section 2.2. All of these objectives have the
features inputs, inputs_segments i32[I]; targets, targets_segments, targets_weights i32[T].
End-of-sequence closes inputs and targets.
"""

from ..constraints import OpenShare, checked
from .contract import Objective
from .noising import chain, from_noise, iid_hidden, permuted_sentences, poisson_spans, rotation
from .span_lengths import MeanOfPoisson
from .token_ids import TokenIds


@checked
def bart(
    ids: TokenIds, noise_density: OpenShare = 0.3, mean_span_length: MeanOfPoisson = 3.0
) -> Objective:
    """BART: restore a document from shuffled sentences with 30% of the tokens hidden in spans.

    With text `a b . c d e f .`, the mask _ and end-of-sequence /:

        inputs    c _ f . a _ b . /
        targets   a b . c d e f . /

    The inputs have the noise of `sentence_permutation`, then of `text_infilling`.

    Args:
      ids: needs `mask` and `sentence_ends`.
      noise_density: share of tokens hidden.
      mean_span_length: mean of the Poisson distribution of span lengths, in tokens.

    >>> bart(ids).lengths(512)
    {'inputs': 443, 'targets': 513}
    """
    sentences = permuted_sentences(ids.flags("sentence_ends"))
    spans = poisson_spans(ids, noise_density, mean_span_length)
    return from_noise(ids, chain(sentences, spans), rows="documents")


@checked
def token_masking(ids: TokenIds, noise_density: OpenShare = 0.15) -> Objective:
    """Restore a document in which random tokens are replaced by the mask token.

        inputs    a _ c _ _ f /
        targets   a b c d e f /

    Args:
      ids: needs `mask`.
      noise_density: probability that a token is masked; the number of masks has a bound
        (`iid_denoising`). The paper does not state the probability; 0.15 is BERT's.

    >>> token_masking(ids).lengths(512)
    {'inputs': 513, 'targets': 513}
    """
    return from_noise(ids, iid_hidden(ids, noise_density, "mask"), rows="documents")


@checked
def token_deletion(ids: TokenIds, noise_density: OpenShare = 0.15) -> Objective:
    """Restore a document from which random tokens are deleted, without marks at their places.

        inputs    a c f /
        targets   a b c d e f /

    Args:
      noise_density: probability that a token is deleted; the number of deleted tokens has a bound
        (`iid_denoising`).

    >>> token_deletion(ids).lengths(512)
    {'inputs': 513, 'targets': 513}
    """
    return from_noise(ids, iid_hidden(ids, noise_density, "drop"), rows="documents")


@checked
def text_infilling(
    ids: TokenIds, noise_density: OpenShare = 0.3, mean_span_length: MeanOfPoisson = 3.0
) -> Objective:
    """Restore a document in which spans of Poisson lengths are replaced by one mask token each.

    Below, the first span is `b c d`, and the mask after `e` is an empty span:

        inputs    a _ e _ f /
        targets   a b c d e f /

    Args:
      ids: needs `mask`.
      noise_density: share of tokens hidden: exactly round(density * n) of n tokens. The last span
        is truncated to this number.
      mean_span_length: mean of the Poisson distribution of span lengths, in tokens. Every gap
        between tokens is equally likely to have a span, with at least one token between two spans.

    `lengths` bounds the length of inputs. About one document in e**18 draws too many short spans
    for this bound; its last span then covers all remaining tokens.

    >>> text_infilling(ids).lengths(512)
    {'inputs': 443, 'targets': 513}

    Raises ValueError if there are too few tokens to separate the spans.
    """
    return from_noise(ids, poisson_spans(ids, noise_density, mean_span_length), rows="documents")


def sentence_permutation(ids: TokenIds) -> Objective:
    """Restore a document from its sentences in random order.

        inputs    c d . a b . /
        targets   a b . c d . /

    A sentence ends with one of the `sentence_ends` of `ids`, or with the last of several in a row.
    The text after the last end is also a sentence. All orders are equally likely, including the
    original order.

    Args:
      ids: needs `sentence_ends`.

    >>> sentence_permutation(ids).lengths(512)
    {'inputs': 513, 'targets': 513}
    """
    return from_noise(ids, permuted_sentences(ids.flags("sentence_ends")), rows="documents")


def document_rotation(ids: TokenIds) -> Objective:
    """Restore a document that is rotated to begin with a random token.

        inputs    d e f a b c /
        targets   a b c d e f /

    Every token is equally likely to come first.

    >>> document_rotation(ids).lengths(512)
    {'inputs': 513, 'targets': 513}
    """
    return from_noise(ids, rotation(), rows="documents")
