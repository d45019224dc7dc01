"""BART's denoising autoencoders: the inputs are a noised document, the targets the original.

Source: Lewis et al. 2020 (BART, arXiv:1910.13461), section 2.2. Features of each: inputs,
inputs_segments i32[I]; targets, targets_segments, targets_weights i32[T]. End-of-sequence closes
inputs and targets.
"""

from ..constraints import OpenShare, checked
from .contract import Objective
from .noising import from_noise, iid_hidden, in_turn, permuted_sentences, poisson_spans, rotation
from .span_lengths import MeanOfPoisson
from .token_ids import TokenIds


@checked
def bart(
    ids: TokenIds, noise_density: OpenShare = 0.3, mean_span_length: MeanOfPoisson = 3.0
) -> Objective:
    """BART: the sentences of a document in random order, and 30% of its tokens infilled.

    With text `a b . c d e f .`, the mask _ and end-of-sequence /:

        inputs    c _ f . a _ b . /
        targets   a b . c d e f . /

    The noises are those of `sentence_permutation` and then `text_infilling`, with their settings.

    Args:
      ids: needs `mask` and `sentence_ends`.

    >>> bart(ids).lengths(512)
    {'inputs': 443, 'targets': 513}
    """
    sentences = permuted_sentences(ids.flags("sentence_ends"))
    spans = poisson_spans(ids, noise_density, mean_span_length)
    return from_noise(ids, in_turn(sentences, spans), rows="documents")


@checked
def token_masking(ids: TokenIds, noise_density: OpenShare = 0.15) -> Objective:
    """Replaces random tokens by the mask token; the whole document is predicted.

        inputs    a _ c _ _ f /
        targets   a b c d e f /

    Args:
      ids: needs `mask`.
      noise_density: probability that a token is masked, up to a bound on their number
        (`iid_denoising`). The paper states none; 0.15 is BERT's.

    >>> token_masking(ids).lengths(512)
    {'inputs': 513, 'targets': 513}
    """
    return from_noise(ids, iid_hidden(ids, noise_density, "mask"), rows="documents")


@checked
def token_deletion(ids: TokenIds, noise_density: OpenShare = 0.15) -> Objective:
    """Deletes random tokens; the whole document is predicted, so the model finds where they were.

        inputs    a c f /
        targets   a b c d e f /

    Args:
      noise_density: as for `token_masking`.

    >>> token_deletion(ids).lengths(512)
    {'inputs': 513, 'targets': 513}
    """
    return from_noise(ids, iid_hidden(ids, noise_density, "drop"), rows="documents")


@checked
def text_infilling(
    ids: TokenIds, noise_density: OpenShare = 0.3, mean_span_length: MeanOfPoisson = 3.0
) -> Objective:
    """Replaces spans of Poisson lengths by one mask token each; the whole document is predicted.

    Below, the first span is `b` to `d`; the mask after `e` is a span of no tokens:

        inputs    a _ e _ f /
        targets   a b c d e f /

    Args:
      ids: needs `mask`.
      noise_density: share of tokens hidden: exactly round(density * n) of n, to which the last span
        is truncated.
      mean_span_length: of the Poisson law, in tokens. All gaps are equally likely to have a span,
        with at least one token between two spans.

    The length of inputs is a bound: in one document of e**18, which draws more short spans than
    that, the last span covers all tokens that are left.

    >>> text_infilling(ids).lengths(512)
    {'inputs': 443, 'targets': 513}

    Raises ValueError for spans with too few tokens to separate them.
    """
    return from_noise(ids, poisson_spans(ids, noise_density, mean_span_length), rows="documents")


def sentence_permutation(ids: TokenIds) -> Objective:
    """Puts the sentences of a document in random order; the document is predicted.

        inputs    c d . a b . /
        targets   a b . c d . /

    Sentences end with one of the ids' `sentence_ends`, which it needs, of several in a row with the
    last; the rest of the document is one too. All orders are equally likely, the original included.

    >>> sentence_permutation(ids).lengths(512)
    {'inputs': 513, 'targets': 513}
    """
    return from_noise(ids, permuted_sentences(ids.flags("sentence_ends")), rows="documents")


def document_rotation(ids: TokenIds) -> Objective:
    """Rotates a document to begin with a random token; the document is predicted.

        inputs    d e f a b c /
        targets   a b c d e f /

    Every token is equally likely to come first.

    >>> document_rotation(ids).lengths(512)
    {'inputs': 513, 'targets': 513}
    """
    return from_noise(ids, rotation(), rows="documents")
