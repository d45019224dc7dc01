"""Token superposition: a first phase of training on bags of tokens, several in each slot.

Source: Peng, Gigant and Quesnelle 2026 (arXiv:2605.06546). Shao et al. 2024 (arXiv:2407.12665)
propose the same first phase as patch-level training.
"""

import functools

import jax.numpy as jnp

from ..constraints import AtLeastTwo, checked
from .contract import BatchLoss, Facts, Objective
from .features import pad_or_truncate, target_sequence
from .losses import label_loss, predictions
from .splicing import DocumentRanges, by_document, document_ranges, piece, splice
from .streams import StackRow, Stream, append_row, register_target_stream
from .token_ids import TokenIds


@checked
def superposed_lm(ids: TokenIds, bag_size: AtLeastTwo = 6) -> Objective:
    """Predict the next bag of tokens from the bags before it, as bags without an order.

        text       a b c d e f g              (bags of three)
        slot       ^      a b c   d e f
        predicts   a b c  d e f   g            (^ is `ids.bos`)

    This is the first phase of token superposition training (TST). The second phase is `causal_lm`:

        phases(ids, {"superposed": (superposed_lm, 0.3), "causal": (causal_lm, 0.7)})

    Rows have the same number of slots in both phases, so a step costs about the same, but reads
    `bag_size` times the text in the first phase. With these settings, a run reads 2.5 times the
    text of causal language modeling in the same number of steps. The paper recommends bags of 4 to
    8 tokens for 20% to 40% of the steps, and has bags of 16 in its largest model. The authors keep
    the optimizer's state, and the learning rate is constant until the last tenth of all steps.

    The embedding of a slot is the mean of the embeddings of its bag. The target is the uniform
    distribution over the tokens of the next bag; a token that occurs twice in the bag counts twice.
    Positions count bags, and the last bag of a document may be smaller.

    The loss term "bags" is the mean cross-entropy of all tokens. It is not a likelihood of the
    text, since a bag has no order. This objective alone does not train a model to generate text.

    As in `causal_lm`, the first bag of a row is predicted from `ids.bos`; the authors do not
    predict it. Tokens count equally. In the authors' code, places in a bag count equally, and in
    the paper's formula bags do, which differs only for smaller bags.

    Not implemented: weights that decay with a token's position in its bag (the paper's appendix D),
    and superposition of the inputs or of the outputs alone.

    Args:
      bag_size: number of tokens in a bag.

    The column targets has the first token of each bag, and targets_bag_2 the second.

    >>> superposed_lm(ids, bag_size=3).lengths(512)
    {'targets': 171, 'bags': 171, 'bag_2': 171, 'bag_3': 171}
    """
    del ids  # every builder takes ids; this one needs none
    streams = ["targets", "bags", *(_further_tokens(k).name for k in range(2, bag_size + 1))]
    return Objective(
        lengths=lambda n: dict.fromkeys(streams, -(-n // bag_size)),
        corrupt=functools.partial(_bags_of_row, bag_size),
        loss=_loss,
        facts=Facts(),
    )


def _bags_of_row(bag_size: int, key, row, partner, lengths, max_documents):
    document = document_ranges(row.segments, max_documents)
    count_D = -(-document.length // bag_size)
    bags = DocumentRanges(jnp.cumsum(count_D) - count_D, count_D)
    slot = jnp.arange(lengths["targets"], dtype=jnp.int32)
    _, segments = splice(slot, piece(*bags), slot.size)
    # The place of the first token of each bag in its document.
    first = bag_size * (slot - by_document(bags.start, segments))
    remaining = by_document(document.length, segments) - first
    sizes = jnp.where(segments > 0, jnp.minimum(remaining, bag_size), 0)

    def tokens_at(k: int):
        """Returns token k of each bag, from 0; 0 for smaller bags."""
        index = by_document(document.start, segments) + first + k
        return jnp.where(k < sizes, row.tokens[jnp.minimum(index, row.tokens.size - 1)], 0)

    further = {f"targets_bag_{k}": tokens_at(k - 1) for k in range(2, bag_size + 1)}
    targets = target_sequence((tokens_at(0), segments))
    return targets | {"targets_bag_sizes": sizes} | further


def _loss(batch) -> BatchLoss:
    tokens, slots, weights = predictions(batch)
    sizes = batch["decoder_target_bag_sizes"]
    bag = [(tokens, weights)]
    for i in range(batch["decoder_target_bag_tokens"].shape[1]):
        bag.append((batch["decoder_target_bag_tokens"][:, i], weights * (sizes > i + 1)))
    return label_loss(slots, {"bags": bag})


# --- streams ------------------------------------------------------------------------------------


def reads_bags(model, groups) -> str | None:
    """Requires a model that reads bags of tokens, as all decoders of this package do."""
    if model.config is not None:
        return None
    return (
        "This objective has a bag of tokens in each slot, which your network would ignore: use "
        "models.decoder, or another objective."
    )


def _before(row: StackRow, column: str):
    """Returns a column of targets one slot later in the stack: i32[T], with 0 at first slots."""
    values = row.features[column]
    segments = row.features["targets_segments"]
    follows = (jnp.roll(segments, 1) == segments) & (jnp.arange(segments.size) > 0)
    earlier = jnp.where(follows, jnp.roll(values, 1), 0)
    return row.place(jnp.zeros_like(row.features["inputs"]), earlier)


def _arrange_sizes(row: StackRow, batch: dict) -> dict:
    sizes = row.features["targets_bag_sizes"]
    return {
        f"{row.stack}_bag_sizes": _before(row, "targets_bag_sizes"),
        f"{row.stack}_target_bag_sizes": pad_or_truncate(sizes, row.lengths["predict"]),
    }


def _arrange_tokens(column: str, row: StackRow, batch: dict) -> dict:
    """Adds a column to the tokens of bags that slots read, and to those that they predict."""
    predicted = pad_or_truncate(row.features[column], row.lengths["predict"])
    return append_row(batch, f"{row.stack}_bag_tokens", _before(row, column)) | append_row(
        batch, f"{row.stack}_target_bag_tokens", predicted
    )


register_target_stream(
    name="bags",
    about="the number of tokens in the bag of each target",
    columns=("targets_bag_sizes",),
    arrange=_arrange_sizes,
    requires=(reads_bags,),
)


def _further_tokens(k: int) -> Stream:
    """Returns the registered stream of the k-th token of each bag, from 2."""
    column = f"targets_bag_{k}"
    about = f"token {k} of the bag of each target, or 0 in a smaller bag"
    arrange = functools.partial(_arrange_tokens, column)
    return register_target_stream(f"bag_{k}", about, (column,), arrange, values={column: "id"})
