"""The held-out evaluation of a run, as training makes it."""

from pretrax.training.data import Codec, Piece
from pretrax.training.evaluation import Evaluator
from pretrax.training.planning import Plan


def heldout_evaluator(plan: Plan) -> Evaluator:
    """Returns what scores parameters on the run's held-out text; they are sharded over its mesh."""
    return Evaluator(
        plan.recipe,
        plan.packing,
        plan.mesh,
        heldout_pieces(plan),
        plan.corpus.train(0, 1),
        tokens=plan.run.heldout_tokens,
        end_of_document=plan.end_of_document,
    )


def heldout_pieces(plan: Plan) -> list[Piece]:
    return plan.corpus.heldout(plan.run.heldout_tokens)


def bytes_per_token(codec: Codec | None, pieces: list[Piece]) -> float:
    """Mean bytes of text of a token in these pieces; nan where the ids have no text."""
    if codec is None:
        return float("nan")
    counts = [(len(codec.decode(p.tokens.tolist()).encode()), p.tokens.size) for p in pieces]
    return sum(b for b, _ in counts) / sum(n for _, n in counts)
