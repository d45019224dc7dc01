"""`Run`: a training run as a value, everything that is decided before the first step.

    run = Run(
        run_dir="runs/mine",
        corpus=Bound(corpora.python_library),
        objective=objectives.ul2,
        model=Bound(models.encoder_decoder, emb_dim=128, num_heads=4, head_dim=32, mlp_dim=256,
                    num_encoder_layers=2, num_decoder_layers=2),
        optimizer=Bound(optimizers.adamw, learning_rate=Bound(optimizers.warmup_constant,
        peak=1e-3)), sequence_lengths={"encoder": 128, "decoder": 128},
        batch_size=16,
        steps=700,
    )
    longer = dataclasses.replace(run, steps=1400)

`training.planning.plan` checks a run, and `training.run_configuration` reads one.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..constraints import Count, NonEmptyText, NonNegative, OpenShare, Positive
from ..data.packing import Policy
from ..objectives import TokenIds
from ..objectives.mixtures import longest
from ..settings.bound import flattened
from .devices.mesh import make_mesh

Lengths = Mapping[str, Count]  # of the rows of each stack
T5_VOCABULARY = 32_128  # rows, for a run that is described without its vocabulary


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """All settings of a training run."""

    # Where
    run_dir: NonEmptyText  # for everything that the run writes: on disk, or "gs://…"
    checkpoint_dir: str | None = None  # None: in run_dir; "gs://…" where several hosts write
    keep_checkpoints: Count = 3  # the number of latest ones that are kept, and beside them:
    keep_every: Count | None = None  # those of a multiple of so many steps; None: no others
    keep_best: Count | None = None  # so many with the lowest held-out loss; None: no others

    # Data
    corpus: Callable  # run_dir -> data.corpus.Corpus
    data_shards: Count = 1  # of the stream, at least one per host; with batch_size: its order
    heldout_tokens: Count = 20_000  # of held-out text, on which each member is evaluated

    # Objective
    objective: Callable  # TokenIds -> objectives.Objective
    packing: Policy | None = None  # of documents, see `data.packing`; None: the objective's
    max_documents: Count = 16  # per row, under the policies "whole" and "isolate"
    mark_document_ends: bool | None = None  # by end-of-sequence; None: the objective's choice

    # Model
    model: Callable  # (rows of the embedding, heads of the objective) -> models.Model
    vocabulary_rows: Count | None = None  # of the embedding; None: ids, rounded up to 128
    initial_run: str | None = None  # warm start: a run or imported model whose parameters it takes
    # Of parameters that have another name there, as T5X's: a pattern of whole names here -> the
    # name there, with the pattern's groups as \1, \2, …; the first pattern that fits holds.
    assignment_map: Mapping[str, str] | None = None

    # Optimization
    optimizer: Callable  # steps -> optax.GradientTransformation
    steps: Count  # total optimizer steps
    z_loss: NonNegative = 0.0  # weight of the squared log-partition, in the term `tokens`
    load_balance_loss: NonNegative = 0.01  # weights of the losses of a sparse model's routers:
    router_z_loss: NonNegative = 0.001  # see `training.router_terms`
    rollback_sigmas: Positive | None = None  # above its mean a loss is a spike; None: no roll-back
    # Of an exponential moving average of the parameters, which is evaluated, and saved for use.
    ema_decay: OpenShare | None = None
    seed: int = 0  # of initial parameters, noise and dropout; the corpus has its own
    # Whether dropout's bits are the accelerator's own, JAX's "rbg": fast, and of one mesh alone.
    hardware_rng: bool = False

    # Rows
    sequence_lengths: Lengths | Sequence[Lengths]  # of row groups: smallest first
    batch_size: Count  # rows of a step, over all devices and row groups
    microbatches: Count = 1  # of a step: gradients are computed one by one, to save memory

    # Devices
    mesh: Callable = make_mesh  # () -> jax.sharding.Mesh
    # Devices of the mesh axis `data` have the same parameters. Each keeps a part of the optimizer's
    # state and updates a part of the parameters, which are then gathered (ZeRO stage 1,
    # Rajbhandari et al. 2020, arXiv:1910.02054).
    shard_optimizer_over_data: bool = False
    # Of the compiler for TPUs, {name: value}, where the mesh is of these.
    tpu_compiler_options: Mapping[str, bool | int | float | str] | None = None
    distributed: bool = False  # several processes, see `training.processes.join_processes`

    # Schedule, in steps
    log_every: Count = 10
    evaluate_every: Count | None = None  # None: at the end
    checkpoint_every: Count | None = None  # None: at the end
    # Minutes after the last checkpoint in which another is due too, at the next multiple of
    # `log_every`; None: it does not go by the clock.
    checkpoint_minutes: Positive | None = None
    # A folder on each host's own disk for copies of the newest state, from which a run goes on
    # after a crash; and the minutes after which another is due, at the next multiple of
    # `log_every`. None: there are none.
    local_checkpoint_dir: NonEmptyText | None = None
    local_checkpoint_minutes: Positive | None = None
    evaluation_tasks: Callable | None = None  # run_dir -> downstream tasks, scored at evaluations
    hooks: Sequence[Callable] = ()  # Plan -> training.hooks.Hook: what else happens at intervals
    trackers: Sequence[Callable] = ()  # Run -> reporting.trackers.Tracker: others given the metrics


FIELDS = {field.name: field for field in dataclasses.fields(Run)}


def is_required(name: str) -> bool:
    """Returns whether a field has no default."""
    return FIELDS[name].default is dataclasses.MISSING


def fields_of(run: Run) -> dict[str, Any]:
    """Returns the fields of a run by name, not copied as by `dataclasses.asdict`."""
    return {name: getattr(run, name) for name in FIELDS}


def padded_vocabulary(ids: TokenIds, rows: int | None = None) -> int:
    """Returns the rows of the embedding: ids rounded up to 128, to shard evenly over devices.

    >>> padded_vocabulary(TokenIds(size=32100, text=(3, 32000)))
    32128

    Raises ValueError where `rows` are given and too few.
    """
    if rows is None:
        return -(-ids.size // 128) * 128
    if rows < ids.size:
        raise ValueError(
            f"training.Run.vocabulary_rows = {rows} are fewer than the {ids.size} ids of the "
            "vocabulary: raise them, or leave them out."
        )
    return rows


def longest_rows(sequence_lengths: Mapping | Sequence[Mapping]) -> dict[str, int]:
    """Returns the slots of the longest rows of each stack, from `Run.sequence_lengths`.

    >>> longest_rows([{"encoder": 128, "decoder": 64}, {"encoder": 64, "decoder": 96}])
    {'encoder': 128, 'decoder': 96}
    """
    return longest(row_shapes(sequence_lengths))


def row_shapes(sequence_lengths: Mapping | Sequence[Mapping]) -> Sequence[Mapping]:
    return [sequence_lengths] if isinstance(sequence_lengths, Mapping) else sequence_lengths


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns how the values of fields differ, a line each; missing fields have their default.

    >>> differences({"steps": 700}, {"steps": 1400, "seed": 0})
    ['steps: was 700, is 1400']
    """
    old = _flat(before)
    new = _flat(now)
    both = ((name, old.get(name, _NOT_SET), new.get(name, _NOT_SET)) for name in old | new)
    return [f"{name}: was {was!r}, is {now!r}" for name, was, now in both if was != now]


class _NotSet:
    def __repr__(self) -> str:
        return "not set"


_NOT_SET = _NotSet()


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {name: field.default for name, field in FIELDS.items() if not is_required(name)}
    values = (defaults | dict(fields)).items()
    return dict(part for name, value in values for part in flattened(name, value))
