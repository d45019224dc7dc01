"""The checks of a run: of its settings, and of its corpus, objective, model and mesh together."""

import math
import os
import warnings
from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from ..constraints import check_fields
from ..data.corpus import UNCUT_COLUMNS, Corpus
from ..data.packing import Packing
from ..data.token_store_files import is_sealed
from ..models import Model
from ..models.attention_mechanisms import MECHANISMS
from ..models.sharding import mesh_axes, spec_of
from ..objectives import Objective, RowGroup, TokenIds, members_of
from ..settings.partial import functions_in
from ..settings.run_directory import check_place, checkpoints
from .batches import GroupSchedule
from .devices.mesh import BATCH, RULES, batch_shards
from .run import Run, fields_of


def check_run(run: Run) -> None:
    """Raises ValueError for settings that no corpus, objective or model can make valid."""
    check_fields(run, "training.Run.")
    for function in functions_in(list(fields_of(run).values())):
        function.check_settings()
    _check_checkpoints(run)
    _check_directories_and_processes(run)


def _check_checkpoints(run: Run) -> None:
    saved = run.checkpoint_every
    evaluated = run.evaluate_every
    if run.keep_every is not None and (saved is None or run.keep_every % saved):
        raise ValueError(
            f"training.Run.keep_every = {run.keep_every} keeps checkpoints at multiples of this "
            f"number of steps, but checkpoint_every = {saved} does not save them there: make "
            "keep_every a multiple of checkpoint_every."
        )
    if run.keep_best is not None and (saved is None or evaluated is None or saved % evaluated):
        raise ValueError(
            f"training.Run.keep_best = {run.keep_best} keeps checkpoints by their held-out loss, "
            f"but with checkpoint_every = {saved} and evaluate_every = {evaluated} some would not "
            "have a loss: make checkpoint_every a multiple of evaluate_every."
        )
    local = run.local_checkpoint_dir
    minutes = run.local_checkpoint_minutes
    if (local is None) != (minutes is None):
        raise ValueError(
            f"Got training.Run.local_checkpoint_dir = {local!r} (where local copies are saved) and "
            f"local_checkpoint_minutes = {minutes} (how often): give both, or neither."
        )
    if local is not None:
        if "://" in local or "[" in local or "]" in local:
            raise ValueError(
                f"Got training.Run.local_checkpoint_dir = {local!r}, expected a folder on each "
                "host's own disk, without brackets in its name. For a bucket, give the "
                "checkpoint_dir."
            )
        check_place(local)
    if run.rollback_sigmas is not None and run.checkpoint_every is None:
        raise ValueError(
            f"training.Run.rollback_sigmas = {run.rollback_sigmas} rolls back to a checkpoint, but "
            "checkpoint_every = None saves no checkpoint before the end: give "
            "--gin.training.Run.checkpoint_every=NUMBER."
        )


def _check_directories_and_processes(run: Run) -> None:
    if "://" in run.run_dir:
        raise ValueError(
            f"Got run_dir = {run.run_dir}, expected a directory on disk. Only `pretrax train` "
            "takes a directory in a bucket: give another (--run_dir=runs/NAME)."
        )
    if os.path.isfile(run.run_dir):
        raise ValueError(
            f"Got run_dir = {run.run_dir}, which is a file, expected a directory: give another "
            "(--run_dir=runs/NAME)."
        )
    if is_sealed(run.run_dir):  # the run would replace the vocabulary of the store
        raise ValueError(
            f"Got run_dir = {run.run_dir}, which is a token store, expected a directory for the "
            "run: give another (--run_dir=runs/NAME)."
        )
    where = checkpoints(run.run_dir, run.checkpoint_dir)
    if "[" in where or "]" in where:  # Orbax takes brackets for a pattern and finds no files
        raise ValueError(
            f"Got checkpoints in {where}, expected a path without brackets: give another folder."
        )
    processes = jax.process_count()
    if processes > 1 and not run.distributed:
        raise ValueError(
            f"There are {processes} processes: set training.Run.distributed = True, so that they "
            "save and stop together."
        )
    if processes > 1 and run.evaluation_tasks is not None:
        raise ValueError(
            "evaluation_tasks need a single process: leave them out, and score the run's "
            "checkpoints with `pretrax evaluate`."
        )


def check_division(
    run: Run, groups: Sequence[RowGroup], schedules: Sequence[GroupSchedule], mesh: Mesh
) -> None:
    """Raises ValueError if the rows of a row group do not divide over microbatches and the mesh."""
    shards = batch_shards(mesh)
    multiple = run.microbatches * shards
    for group, scheduled in zip(groups, schedules):
        if scheduled.rows % multiple:
            raise ValueError(
                f"The row group {group.stacks} gets {scheduled.rows} of the {run.batch_size} rows "
                f"of training.Run.batch_size, expected a multiple of {multiple} "
                f"({run.microbatches} microbatches, each over {shards} shards of rows: "
                f"{_product(BATCH, mesh)}): change --gin.training.Run.batch_size, or make "
                f"--gin.training.Run.data_shards a multiple of {multiple}."
            )


def _product(axes: Sequence[str], mesh: Mesh) -> str:
    return " × ".join(f"{axis}={mesh.shape[axis]}" for axis in axes)


def check_slots(model: Model, groups: Sequence[RowGroup], mesh: Mesh) -> None:
    """Raises ValueError if the mesh shards slots but does not divide their number.

    Every device would then compute all slots.
    """
    shards = mesh.shape["context"]
    if shards == 1:
        return
    config = model.config
    shard_multiple = 1
    if config is not None and config.positions == "relative":
        shard_multiple = config.mechanism.bias_multiple
    for stacks in (group.stacks for group in groups):
        for name in sorted({"encoder", "decoder"} & stacks.keys()):  # "predict" may have any number
            slots = stacks[name]
            if slots % (shards * shard_multiple):
                blocks = f" of blocks of T5's bias in {model.attention} attention"
                reason = blocks if shard_multiple > 1 else ""
                raise ValueError(
                    f"Got rows of {slots} slots in the {name} on a mesh that shards slots over "
                    f"{shards} devices, expected a multiple of {shards * shard_multiple}{reason}: "
                    "change --gin.training.Run.sequence_lengths, or lower "
                    "--gin.mesh.make_mesh.context and raise fsdp."
                )


def check_attention(model: Model, mesh: Mesh) -> None:
    """Raises ValueError if the devices cannot train with the model's attention mechanism."""
    if model.attention is None:  # the user's own network
        return
    mechanism = MECHANISMS[model.attention]
    device = mesh.devices.flat[0]
    platform = "gpu" if device.platform == "cuda" else device.platform
    if mechanism.platforms and platform not in mechanism.platforms:
        expected = " or ".join(map(str.upper, mechanism.platforms))
        raise ValueError(
            f"Got a model with attention={mechanism.name!r} on {device.platform}, expected "
            f"{expected}: give the model attention='plain', such as "
            "--gin.models.decoder.attention=plain."
        )
    mechanism.check_device(model.config, device)


def check_zeroed_token(model: Model, ids: TokenIds) -> None:
    """Raises ValueError if the model's `zeroed_token` is not the mask of the vocabulary."""
    zeroed = model.config.zeroed_token if model.config else None
    if zeroed not in (None, ids.mask):
        raise ValueError(
            f"Got a model with zeroed_token={zeroed} and a vocabulary whose mask is {ids.mask}, "
            f"expected the same id: set --gin.models.encoder.zeroed_token={ids.mask}."
        )


def check_experts(model: Model, mesh: Mesh) -> None:
    experts = model.config.num_experts if model.config else 0
    devices = mesh.shape["expert"]
    if experts % devices:
        raise ValueError(
            f"Got a model of {experts} experts on a mesh that spreads experts over {devices} "
            f"devices, expected a multiple of {devices}: lower --gin.mesh.make_mesh.expert and "
            "raise fsdp, or change the model's num_experts."
        )


def warn_of_undivided(model: Model, mesh: Mesh) -> None:
    """Warns about sizes of a model that the mesh does not divide.

    `models.sharding.spec_of` leaves those axes whole, or uses fewer axes of the mesh for them.
    """
    c = model.config
    if c is None:
        return
    sizes = {
        "num_heads": ("heads", c.num_heads),
        "num_kv_heads": ("heads", c.num_key_heads),
        "mlp_dim": ("mlp", c.mlp_dim),
        "vocabulary_rows": ("vocab", c.vocab_size),
        "emb_dim": ("embed", c.emb_dim),
    }
    if c.num_key_heads == c.num_heads:
        del sizes["num_kv_heads"]
    undivided: dict[tuple, list[str]] = {}
    for name, (logical, size) in sizes.items():
        wanted = dict(RULES[::-1])[logical]
        taken = spec_of((logical,), (size,), mesh, RULES)
        axes = tuple(axis for axis in mesh_axes(wanted) if mesh.shape[axis] > 1)
        if axes != (left := mesh_axes(*taken)):
            undivided.setdefault((axes, left), []).append(name)
    for (axes, left), names in undivided.items():
        whole = " and ".join(f"{name}={sizes[name][1]}" for name in names)
        does = "computes" if axes == ("tensor",) else "holds"
        part = f"1/{math.prod(mesh.shape[a] for a in left)}" if left else "the whole"
        problem = (
            f"The mesh's {_product(axes, mesh)} does not divide {whole} of the model: every device "
            f"{does} "
        )
        advice = (
            f" Lower --gin.mesh.make_mesh.{axes[-1]} so that it does, and raise another axis."
            if names != ["num_kv_heads"]  # copies are unavoidable with fewer key heads than devices
            else ""
        )
        warnings.warn(f"{problem}{part} of it.{advice}", stacklevel=1)


def check_router(model: Model, run: Run) -> None:
    c = model.config
    if c is None or not c.num_experts or run.initial_run is not None:
        return
    if c.experts_per_token == 1 and c.normalize_expert_weights:
        raise ValueError(
            "Got a model with experts_per_token=1 and normalize_expert_weights=True, to be trained "
            "from scratch. The only weight of a token is then always 1, so the router gets no "
            "gradient from the loss. Set normalize_expert_weights=False, as in Switch "
            "Transformers, or experts_per_token=2. A trained router is accepted "
            "(training.Run.initial_run)."
        )


def check_columns(corpus: Corpus, objective: Objective) -> None:
    """Raises ValueError if the columns of the corpus do not fit the objective.

    The corpus may lack a column or have documents of several parts. Its labels may be classes
    instead of numbers, or belong to documents instead of tokens.
    """
    rows = objective.facts.rows
    column = rows.column
    if column is not None and column not in corpus.columns:
        raise ValueError(
            f"The objective is made for {rows.description}, but the documents of this "
            f"corpus have no {column}: choose a corpus that has them, or another objective "
            "(--objective=NAME)."
        )
    if column != "parts" and "parts" in corpus.columns:
        raise ValueError(
            "The documents of this corpus consist of several parts, such as a text and its answer, "
            f"which an objective for {rows.description} would read as one text: choose "
            "an objective on parts, or a corpus of text (--corpus=NAME)."
        )
    if "weights" in corpus.columns and not objective.facts.token_weights:
        raise ValueError(
            "The documents of this corpus have weights of tokens, but the objective does not give "
            "them to its targets, so they would be ignored: choose an objective with the fact "
            "token_weights, such as causal_lm, masked_lm, span_corruption or masked_diffusion, or "
            "a corpus without weights."
        )
    if objective.facts.teacher and "teacher" not in corpus.columns:
        raise ValueError(
            "The objective reads a teacher's predictions, but the documents of this corpus have no "
            "column 'teacher': write them into a token store with `pretrax teach`, and train on "
            "that store."
        )
    if corpus.classes and 1 in objective.facts.heads.values():
        raise ValueError(
            "The objective predicts numbers, but the labels of this corpus are "
            f"{len(corpus.classes)} classes ({', '.join(corpus.classes[:8])}): choose "
            "sequence_classification (`pretrax train finetune_classification`), or a corpus of "
            'numbers (seqio_corpora.seqio_pairs, answers "number").'
        )
    read = "tokens" if "labels" in objective.lengths(2) else "documents"
    if column == "labels" and corpus.labels_of not in (None, read):
        raise ValueError(
            f"The objective predicts labels of {read}, but this corpus has labels of "
            f"{corpus.labels_of}: choose sequence_classification "
            "(`pretrax train finetune_classification`) for classes of texts, and for classes "
            "of words token_classification (`pretrax train finetune_tags`) with "
            'seqio_corpora.seqio_pairs, answers "tags".'
        )


def check_sources(corpus: Corpus, objective: Objective) -> None:
    """Raises ValueError if the corpus has one text for each member of a different mixture."""
    members = members_of(objective)
    if corpus.sources and len(corpus.member_sources) != len(members):
        raise ValueError(
            f"This corpus has a text for each of {len(corpus.member_sources)} members of a "
            f"mixture, but the run's objective has {len(members)} "
            f"({', '.join(member.name for member in members)}): give corpus and objective the "
            "same SeqIO mixture (--gin_file=corpora/seqio_objectives.gin after any other "
            "objective)."
        )


def check_longest(corpus: Corpus, packing: Packing) -> None:
    raw = min(limits.raw for limits in packing.limits.values())
    # Documents may also be cut if the rows do not read their parts or labels.
    may_cut = UNCUT_COLUMNS.intersection(corpus.columns) and not packing.rows.column
    if not may_cut and corpus.longest is not None and corpus.longest > raw:
        raise ValueError(
            f"A document of this corpus may hold {corpus.longest} tokens and a row of the "
            f"objective only {raw}, so that the document would be cut in two: raise "
            "--gin.training.Run.sequence_lengths, give shorter documents, or lower the corpus's "
            "limits (given_tokens and answer_tokens, longest_tokens, arranged_tokens, "
            "docstring_tokens and code_tokens)."
        )
