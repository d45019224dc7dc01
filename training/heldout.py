"""The held-out evaluation of a run that is there, as the run itself makes it.

`training.runs.read_config` has read the run's config.gin.
"""

from collections.abc import Callable
from typing import NamedTuple

import optax
from jax.sharding import Mesh

from pretrax.training.evaluation import Evaluator, Score
from pretrax.training.mesh import batch_shards, make_mesh
from pretrax.training.packing import resolve
from pretrax.training.runs import configured
from pretrax.training.setup import make_setup, padded_vocabulary


class Heldout(NamedTuple):
    evaluator: Callable[[dict], list[Score]]  # of parameters on the mesh
    mesh: Mesh
    bytes_per_token: float  # of the held-out text; nan where ids have no text


def heldout_evaluator(run_dir: str) -> Heldout:
    """What `train.train` evaluates with, from what the run's config.gin binds.

    Raises ValueError where it binds no corpus or objective, as what convert.py writes.
    """
    parts = {name: configured(name) for name in ("corpus", "objective", "model")}
    missing = [name for name, value in parts.items() if value is None]
    if missing:
        raise ValueError(
            f"{run_dir}/config.gin binds no {' and no '.join(missing)} of train.train, so there is "
            "no held-out text: expected a run of train.py."
        )
    mesh = (configured("mesh") or make_mesh)()
    data = parts["corpus"](run_dir)
    objective = parts["objective"](data.ids)
    rows = padded_vocabulary(data.ids, configured("vocabulary_rows"))
    setup = make_setup(
        objective=objective,
        model=parts["model"](rows, objective.heads),
        optimizer=optax.identity(),  # nothing is trained
        ids=data.ids,
        sequence_lengths=configured("sequence_lengths"),
        batch_size=configured("batch_size"),
        data_shards=configured("data_shards", 1),
        packing=configured("packing"),
        max_documents=configured("max_documents", 16),
        batch_shards=batch_shards(mesh),
        longest=data.longest,
    )
    _, marked = resolve(objective, configured("packing"), configured("mark_document_ends"))
    tokens = configured("heldout_tokens", 20_000)
    pieces = data.heldout(tokens)
    evaluator = Evaluator(
        setup.recipe,
        setup.packing,
        mesh,
        pieces,
        data.train(0, 1),
        tokens=tokens,
        end_of_document=data.ids.eos if marked else None,
    )
    return Heldout(evaluator, mesh, _bytes_per_token(data.codec, pieces))


def _bytes_per_token(codec, pieces) -> float:
    if codec is None:
        return float("nan")
    counts = [(len(codec.decode(p.tokens.tolist()).encode()), p.tokens.size) for p in pieces]
    return sum(b for b, _ in counts) / sum(n for _, n in counts)
