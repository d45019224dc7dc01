"""Unrolled denoising: a model restores noised text, and then its own samples of the text.

Source: Savinov et al. 2021, "Step-unrolled Denoising Autoencoders for Text Generation" (SUNDAE,
arXiv:2112.06749), with two steps and the mean of their losses. Public reimplementations agree on
the noise: a share of tokens that is uniform between 0 and 1 is replaced by random tokens.
"""

from ..constraints import checked
from .contract import BatchLoss, Objective
from .losses import token_loss
from .token_ids import TokenIds
from .uniform_diffusion import uniform_diffusion


@checked
def unrolled_denoising(ids: TokenIds) -> Objective:
    """SUNDAE: the model corrects random tokens, and then its own samples.

        inputs    a x y d z f      (rate drawn: 0.57; x, y, z are random tokens)
        samples   a b y d e g      (drawn by the model from its predictions for the inputs)
        labels    a b c d e f      predicted from the inputs, and again from the samples

    As in `uniform_diffusion`, each document has its own rate of random tokens. The model predicts
    every token, samples all of them, and reads the samples in a second pass. It learns to correct
    mistakes that it makes when it generates text in several steps. No gradient passes through the
    samples.

    Both losses are plain cross-entropies over all text tokens, without the weights of a bound.

    Terms: "tokens" of the first pass and "unrolled" of the second pass, with a scale of 1/2 each.

    Args:
      ids: only text tokens are replaced, by ids of text.

    The objective needs `models.step_unrolled`, and a step costs about twice as much as a step of
    `uniform_diffusion`. Not implemented: more than two passes, and the prediction of the text's
    length.

    >>> unrolled_denoising(ids).facts.heads
    {'vocabulary': None, 'unrolled': None}
    """
    noised = uniform_diffusion(ids)
    return noised._replace(loss=_loss_of_both).with_facts(
        bound=None, heads={"vocabulary": None, "unrolled": None}
    )


def _loss_of_both(batch) -> BatchLoss:
    """Returns the cross-entropies of both passes, whose mean is the loss."""
    first = token_loss(batch).with_term("tokens", scale=0.5)
    return first | token_loss(batch, hidden="unrolled").with_term("unrolled", scale=0.5)
