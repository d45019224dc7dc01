"""`Run`: all settings of a training run, as an immutable value.

    run = Run(
        run_dir="runs/mine",
        corpus=Partial(corpora.python_library),
        objective=objectives.ul2,
        model=Partial(models.encoder_decoder, emb_dim=128, num_heads=4, head_dim=32, mlp_dim=256,
                      num_encoder_layers=2, num_decoder_layers=2),
        optimizer=Partial(optimizers.adamw,
                          learning_rate=Partial(optimizers.warmup_constant, peak=1e-3)),
        sequence_lengths={"encoder": 128, "decoder": 128},
        batch_size=16,
        steps=700,
    )
    longer = dataclasses.replace(run, steps=1400)

`training.planning.plan_run` checks a run. `training.run_configuration` reads a run from gin files.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optax
from jax.sharding import Mesh

from ..constraints import Count, NonEmptyText, NonNegative, OpenShare, Positive
from ..data.corpus import Corpus
from ..data.packing import PolicyName
from ..models import Model
from ..objectives import Builder, TokenIds
from ..objectives.mixtures import largest
from ..settings.partial import flattened
from .devices.mesh import make_mesh

Lengths = Mapping[str, Count]  # stack -> number of slots of a row


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    r"""All settings of a training run.

    Each field is listed with its type and its default. A field without a default must be given.

    Attributes:
      run_dir (str): Directory for everything that the run writes, on disk or "gs://…".
      checkpoint_dir (str; default None): Folder for checkpoints. If several hosts train, all of
        them must be able to reach it, as with "gs://…". None: `checkpoints` in `run_dir`.
      keep_checkpoints (int, 1 or more; default 3): Number of latest checkpoints to keep.
      keep_every (int, 1 or more; default None): Number of steps between checkpoints that are kept
        in addition to the latest, a multiple of `checkpoint_every`. None: no others.
      keep_best (int, 1 or more; default None): Number of checkpoints with the lowest held-out loss
        that are kept in addition to the latest. None: no others.
      corpus (function): Function of the run directory that returns a `data.corpus.Corpus`.
      data_shards (int, 1 or more; default 1): Number of shards of the stream of documents, at least
        one for each host. With `batch_size` it determines the order of the documents.
      heldout_tokens (int, 1 or more; default 20_000): Number of tokens of held-out text on which
        each member of the objective is evaluated.
      objective (function): Function of the `TokenIds` that returns an `objectives.Objective`.
      packing (str; default None): How documents are packed into rows: "concatenate", "isolate",
        "whole" or "single", see `data.packing`. None: the objective's own policy.
      max_documents (int, 1 or more; default 16): Largest number of documents in a row, for the
        packing policies "whole" and "isolate".
      mark_document_ends (bool; default None): Whether the end-of-sequence id follows each document.
        None: the objective decides.
      model (function): Function that returns a `models.Model` for a number of rows of the embedding
        and the heads of the objective.
      vocabulary_rows (int, 1 or more; default None): Number of rows of the embedding. None: the
        number of ids, rounded up to a multiple of 128.
      initial_run (str; default None): Directory of a run or an imported model from which this run
        takes its initial parameters. None: random parameters.
      assignment_map (mapping; default None): Names of this run's parameters -> their names in
        `initial_run`, if they differ, as in T5X. A key is a pattern that matches a whole name. Its
        value may use the groups of the pattern as \1, \2, …. The first pattern that matches a name
        applies. None: all names are the same.
      optimizer (function): Function of `steps` that returns an `optax.GradientTransformation`.
      steps (int, 1 or more): Total number of optimizer steps.
      z_loss (float, 0 or more; default 0.0): Weight of the squared log-partition in the term
        `tokens`.
      load_balance_loss (float, 0 or more; default 0.01): Weight of the load-balancing loss of a
        sparse model's routers, see `training.router_terms`.
      router_z_loss (float, 0 or more; default 0.001): Weight of the z-loss of a sparse model's
        routers, see `training.router_terms`.
      rollback_sigmas (float, above 0; default None): Number of standard deviations above the mean
        of earlier losses at which a loss is a spike. The run then goes back to a checkpoint and
        skips the batches that it has read since. None: it does not go back.
      ema_decay (float, between 0 and 1; default None): Decay per step of an exponential moving
        average of the parameters, which is evaluated and saved for use. None: no average.
      seed (int; default 0): Seed of initial parameters, noise and dropout. The corpus has a
        separate seed.
      hardware_rng (bool; default False): Whether dropout uses the accelerator's random number
        generator (JAX's "rbg"), which is fast, but draws different bits on different meshes.
      sequence_lengths (mapping or sequence of mappings): Number of slots of a row, by stack, such
        as {"encoder": 512, "decoder": 128}. Several mappings give one row group each, smallest
        first.
      batch_size (int, 1 or more): Number of rows of a step, over all devices and row groups.
      microbatches (int, 1 or more; default 1): Number of parts of a step whose gradients are
        computed one after another, to save memory.
      mesh (function; default make_mesh): Function without arguments that returns the
        `jax.sharding.Mesh`.
      shard_optimizer_over_data (bool; default False): Whether each device of the mesh axis `data`
        keeps a part of the optimizer's state and updates a part of the parameters, which are then
        gathered (ZeRO stage 1, Rajbhandari et al. 2020, arXiv:1910.02054). All devices of this axis
        have the same parameters.
      tpu_compiler_options (mapping; default None): Options of the compiler for TPUs, by name. They
        have no effect on other devices.
      distributed (bool; default False): Whether several processes train the run, see
        `training.processes.join_processes`.
      log_every (int, 1 or more; default 10): Number of steps between lines of metrics.
      evaluate_every (int, 1 or more; default None): Number of steps between evaluations. None: only
        at the end.
      checkpoint_every (int, 1 or more; default None): Number of steps between checkpoints. None:
        only at the end.
      checkpoint_minutes (float, above 0; default None): Minutes after the last checkpoint at which
        another checkpoint is due, at the next multiple of `log_every`. None: the time since the
        last checkpoint does not matter.
      local_checkpoint_dir (str; default None): Folder on each host's own disk for copies of the
        newest state, from which the run continues after a crash. None: no copies.
      local_checkpoint_minutes (float, above 0; default None): Minutes after the last copy or
        checkpoint at which another copy is due, at the next multiple of `log_every`. None: no
        copies.
      evaluation_tasks (function; default None): Function of the run directory that returns
        downstream tasks, which every evaluation scores. None: no tasks.
      hooks (sequence of functions; default ()): Functions of the `Plan` that return a
        `training.hooks.Hook`, an action between steps.
      trackers (sequence of functions; default ()): Functions of the run that return a
        `reporting.trackers.Tracker`, which also receives the metrics.
    """

    # Directories
    run_dir: NonEmptyText
    checkpoint_dir: str | None = None
    keep_checkpoints: Count = 3
    keep_every: Count | None = None
    keep_best: Count | None = None

    # Data
    corpus: Callable[[str], Corpus]
    data_shards: Count = 1
    heldout_tokens: Count = 20_000

    # Objective
    objective: Builder
    packing: PolicyName | None = None
    max_documents: Count = 16
    mark_document_ends: bool | None = None

    # Model
    model: Callable[[int, Mapping[str, int | None]], Model]
    vocabulary_rows: Count | None = None
    initial_run: str | None = None
    assignment_map: Mapping[str, str] | None = None

    # Optimization
    optimizer: Callable[[int], optax.GradientTransformation]
    steps: Count
    z_loss: NonNegative = 0.0
    load_balance_loss: NonNegative = 0.01
    router_z_loss: NonNegative = 0.001
    rollback_sigmas: Positive | None = None
    ema_decay: OpenShare | None = None
    seed: int = 0
    hardware_rng: bool = False

    # Rows
    sequence_lengths: Lengths | Sequence[Lengths]
    batch_size: Count
    microbatches: Count = 1

    # Devices
    mesh: Callable[[], Mesh] = make_mesh
    shard_optimizer_over_data: bool = False
    tpu_compiler_options: Mapping[str, bool | int | float | str] | None = None
    distributed: bool = False

    # Schedule
    log_every: Count = 10
    evaluate_every: Count | None = None
    checkpoint_every: Count | None = None
    checkpoint_minutes: Positive | None = None
    local_checkpoint_dir: NonEmptyText | None = None
    local_checkpoint_minutes: Positive | None = None
    evaluation_tasks: Callable | None = None
    hooks: Sequence[Callable] = ()
    trackers: Sequence[Callable] = ()


FIELDS = {field.name: field for field in dataclasses.fields(Run)}


def is_required(name: str) -> bool:
    """Returns whether a field has no default."""
    return FIELDS[name].default is dataclasses.MISSING


def fields_of(run: Run) -> dict[str, Any]:
    """Returns the fields of a run by name. Unlike `dataclasses.asdict`, it copies no values."""
    return {name: getattr(run, name) for name in FIELDS}


def padded_vocabulary(ids: TokenIds, rows: int | None = None) -> int:
    """Returns the number of rows of the embedding.

    By default this is the number of ids, rounded up to a multiple of 128, so that the rows can be
    sharded evenly over devices.

    >>> padded_vocabulary(TokenIds(size=32100, text=(3, 32000)))
    32128

    Raises ValueError if `rows` is less than the number of ids.
    """
    if rows is None:
        return padded_size(ids.size)
    if rows < ids.size:
        raise ValueError(
            f"training.Run.vocabulary_rows = {rows} is less than the {ids.size} ids of the "
            "vocabulary: raise it, or leave it out."
        )
    return rows


def padded_size(size: int) -> int:
    """Returns the size of a vocabulary, rounded up to a multiple of 128."""
    return -(-size // 128) * 128


def longest_rows(sequence_lengths: Mapping | Sequence[Mapping]) -> dict[str, int]:
    """Returns the largest number of slots of each stack in `Run.sequence_lengths`.

    >>> longest_rows([{"encoder": 128, "decoder": 64}, {"encoder": 64, "decoder": 96}])
    {'encoder': 128, 'decoder': 96}
    """
    return largest(row_shapes(sequence_lengths))


def row_shapes(sequence_lengths: Mapping | Sequence[Mapping]) -> Sequence[Mapping]:
    return [sequence_lengths] if isinstance(sequence_lengths, Mapping) else sequence_lengths


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns one line for each difference between the fields of two runs.

    Missing fields have their default.

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
