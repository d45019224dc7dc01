"""`plan`: checks a run and computes all its lengths, before any parameter exists."""

import functools
import math
import os
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from .. import objectives
from ..constraints import check_fields
from ..data.corpus import Corpus
from ..data.packing import Packing, documents_of_a_row, plan_packing, resolve_packing
from ..models import Model
from ..models.attention_mechanisms import MECHANISMS
from ..models.sharding import mesh_axes, spec_of
from ..objectives import Objective, Row, members_of
from ..objectives.contract import with_counted_classes
from ..objectives.layouts import LAYOUTS
from ..settings.run_directory import check_place, checkpoints, is_run
from .batches import Batches, GroupSchedule, schedule
from .checking import check_own, check_terms
from .devices.mesh import RULES, batch_shards, evaluation_mesh, replicated, spread_over_data
from .processes import first_process_first
from .run import Run, padded_vocabulary, row_shapes
from .saved.warm_start import check_source
from .state import AbstractState, State, abstract_state
from .step import Recipe, check_recipe, corrupt_and_arrange, train_step


class Plan(NamedTuple):
    """A checked run with all its lengths. Training and evaluation start from it."""

    run: Run
    corpus: Corpus
    mesh: Mesh
    recipe: Recipe  # objective, model, row groups and optimizer
    schedules: tuple[GroupSchedule, ...]  # the schedule of each row group of the recipe
    packing: Packing
    end_of_document: int | None  # the id after every document; None: no id


def open_corpus(run: Run) -> Corpus:
    """Opens a run's corpus.

    The first start of a run may train its vocabulary and tokenize its text here. The run is checked
    before.

    Raises ValueError for settings that `check_run` refuses, and for a warm start from a run without
    checkpoints.
    """
    check_run(run)
    if run.initial_run is not None and not is_run(run.run_dir):
        check_source(run.initial_run)
    return first_process_first(lambda: run.corpus(run.run_dir))


def plan_evaluation(run: Run) -> Plan:
    """Returns the plan for evaluating a run, on any devices.

    Some checks apply only to training. Evaluated rows are padded, so they need not divide over the
    devices, and evaluation does not need the kernels of fused attention.
    """
    return _plan(run, open_corpus(run), evaluation_mesh(run.mesh), trains=False)


def plan(run: Run, corpus: Corpus, mesh: Mesh | None = None) -> Plan:
    """Builds a run's objective and model, and computes and checks all lengths.

        planned = plan(run, open_corpus(run))

    It creates no parameters and writes no files.

    Args:
      run: the run.
      corpus: the opened corpus of the run.
      mesh: the mesh of the devices. None: the run's own mesh.

    Raises ValueError for settings that cannot work, with what to change.
    """
    check_run(run)
    return _plan(run, corpus, mesh or run.mesh(), trains=True)


def _plan(run: Run, corpus: Corpus, mesh: Mesh, trains: bool) -> Plan:
    ids = corpus.ids
    optimizer = run.optimizer(run.steps)
    objective = run.objective(ids)
    check_columns(corpus, objective)
    _check_sources(corpus, objective)
    objective = with_counted_classes(objective, len(corpus.classes))
    model = run.model(padded_vocabulary(ids, run.vocabulary_rows), objective.facts.heads)
    layout = LAYOUTS[model.layout]
    policy, mark_ends = resolve_packing(objective, run.packing, run.mark_document_ends)
    lengths = run.sequence_lengths
    most = documents_of_a_row(policy, run.max_documents)
    try:
        groups = objectives.plan(objective, layout, ids, row_shapes(lengths), most)
    except ValueError as error:  # the message does not name the setting
        raise ValueError(
            f'{error}\nThe run has --gin.training.Run.sequence_lengths="{lengths!r}".'
        ) from None
    if trains:
        check_attention(model, mesh)
        _check_router(model, run)
        _warn_of_undivided(model, mesh)
    _check_experts(model, mesh)
    recipe = Recipe(
        objective,
        model,
        ids,
        groups,
        optimizer,
        microbatches=run.microbatches,
        z_loss=run.z_loss,
        load_balance_loss=run.load_balance_loss,
        router_z_loss=run.router_z_loss,
        hardware_rng=run.hardware_rng,
        ema_decay=run.ema_decay,
        steps=run.steps,
    )
    check_recipe(recipe)
    schedules = schedule(objective, groups, run.batch_size, run.data_shards)
    if trains:
        _check_division(run, recipe, schedules, batch_shards(mesh))
        _check_slots(recipe, mesh)
    packing = plan_packing(policy, objective, layout, groups)
    packing = packing._replace(weighted="weights" in corpus.columns)
    _check_longest(corpus, packing)
    check_own(recipe)
    end = ids.eos if mark_ends else None
    planned = Plan(run, corpus, mesh, recipe, schedules, packing, end)
    if len({member.objective.loss for member in objective.facts.members}) > 1:
        check_terms(recipe, abstract_batch(planned))  # the terms of all members must fit together
    return planned


def open_batches(plan: Plan) -> Batches:
    return Batches(
        [source.train for source in plan.corpus.sources or (plan.corpus,)],
        plan.recipe.groups,
        plan.schedules,
        data_shards=plan.run.data_shards,
        mesh=plan.mesh,
        end_of_document=plan.end_of_document,
        packing=plan.packing,
        member_sources=plan.corpus.member_sources,
    )


def abstract_state_of(plan: Plan) -> AbstractState:
    """Returns the shapes and shardings of the state, without allocating anything."""
    recipe = plan.recipe
    adaptation = recipe.objective.adaptation
    averaged = recipe.ema_decay is not None
    return abstract_state(
        recipe.model,
        recipe.optimizer,
        abstract_batch(plan),
        plan.mesh,
        adaptation,
        averaged,
        spread=plan.run.shard_optimizer_over_data,
    )


def jitted_step(plan: Plan, shapes: State) -> jax.stages.Wrapped:
    """Returns the jitted step (state, rows) -> (state, metrics). The old state is donated.

    The new state keeps the shardings of the old state. Otherwise XLA might choose others and
    compile again for the next step.

    Args:
      plan: the checked run.
      shapes: shapes and shardings of the state (`AbstractState.shapes`).
    """
    step = functools.partial(train_step, plan.recipe, jax.random.key(plan.run.seed))
    shardings = jax.tree.map(lambda x: x.sharding, shapes)
    if plan.run.shard_optimizer_over_data:
        updated = spread_over_data(shapes.params, shardings.params, plan.mesh)
        shard_updates = functools.partial(jax.lax.with_sharding_constraint, shardings=updated)
        step = functools.partial(step, shard_updates=shard_updates)
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, replicated(plan.mesh)))


def compile_lowered(plan: Plan, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compiles a lowered step. On TPUs it uses the run's `tpu_compiler_options`.

    Raises ValueError for an option that the compiler does not have.
    """
    is_tpu = plan.mesh.devices.flat[0].platform == "tpu"
    settings = (plan.run.tpu_compiler_options if is_tpu else None) or {}
    options = {name: x if isinstance(x, bool) else str(x) for name, x in settings.items()}
    try:
        return lowered.compile(compiler_options=options or None)
    except jax.errors.JaxRuntimeError as error:
        if not options or "compile option" not in str(error):
            raise
        raise ValueError(
            f"The compiler refuses --gin.training.Run.tpu_compiler_options={options}: {error}. "
            "Remove the options that this version of libtpu does not have."
        ) from error


def abstract_rows(plan: Plan, sharding=None) -> tuple[Row, ...]:
    """Returns the shapes of the rows that a step takes."""

    def array(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding)

    def rows(group, scheduled):
        text = array(scheduled.rows, group.row_length)
        row = Row(text, text, array(scheduled.rows))
        return row._replace(**dict.fromkeys(plan.packing.columns, text))

    return tuple(map(rows, plan.recipe.groups, plan.schedules))


def abstract_batch(plan: Plan) -> dict:
    """Returns the shapes of the model's features of the first row group."""
    rows = abstract_rows(plan)[0]
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows.member.shape[0]))
    arrange = functools.partial(corrupt_and_arrange, plan.recipe, plan.recipe.groups[0])
    return jax.eval_shape(arrange, keys, rows)


# --- checks ---------------------------------------------------------------------------------------


def check_run(run: Run) -> None:
    """Raises ValueError for settings that no corpus, objective or model can make valid."""
    check_fields(run, "training.Run.")
    _check_checkpoints(run)
    _check_directories_and_processes(run)
    run.optimizer(run.steps)


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
    if local is not None and ("://" in local or "[" in local or "]" in local):
        raise ValueError(
            f"Got training.Run.local_checkpoint_dir = {local!r}, expected a folder on each host's "
            "own disk, without brackets in its name. For a bucket, give the checkpoint_dir."
        )
    if local is not None:
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


def _check_division(run: Run, recipe: Recipe, schedules, shards: int) -> None:
    for group, scheduled in zip(recipe.groups, schedules):
        if scheduled.rows % (run.microbatches * shards):
            raise ValueError(
                f"Got {scheduled.rows} rows in the row group {group.stacks}, expected a multiple "
                f"of {run.microbatches * shards} ({run.microbatches} microbatches over {shards} "
                "devices): change --gin.training.Run.batch_size, or make "
                f"--gin.training.Run.data_shards a multiple of {run.microbatches * shards}."
            )


def _check_slots(recipe: Recipe, mesh: Mesh) -> None:
    """Raises ValueError if the mesh shards slots but does not divide their number.

    Every device would then compute all slots.
    """
    model = recipe.model
    shards = mesh.shape["context"]
    if shards == 1:
        return
    config = model.config
    shard_multiple = 1
    if config is not None and config.positions == "relative":
        shard_multiple = config.mechanism.bias_multiple
    for stacks in (group.stacks for group in recipe.groups):
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


def _check_experts(model: Model, mesh: Mesh) -> None:
    experts = model.config.num_experts if model.config else 0
    devices = mesh.shape["expert"]
    if experts % devices:
        raise ValueError(
            f"Got a model of {experts} experts on a mesh that spreads experts over {devices} "
            f"devices, expected a multiple of {devices}: lower --gin.mesh.make_mesh.expert and "
            "raise fsdp, or change the model's num_experts."
        )


def _warn_of_undivided(model: Model, mesh: Mesh) -> None:
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
        product = " × ".join(f"{axis}={mesh.shape[axis]}" for axis in axes)
        whole = " and ".join(f"{name}={sizes[name][1]}" for name in names)
        does = "computes" if axes == ("tensor",) else "holds"
        part = f"1/{math.prod(mesh.shape[a] for a in left)}" if left else "the whole"
        problem = f"The mesh's {product} does not divide {whole} of the model: every device {does} "
        advice = (
            f" Lower --gin.mesh.make_mesh.{axes[-1]} so that it does, and raise another axis."
            if names != ["num_kv_heads"]  # copies are unavoidable with fewer key heads than devices
            else ""
        )
        warnings.warn(f"{problem}{part} of it.{advice}", stacklevel=1)


def _check_router(model: Model, run: Run) -> None:
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


def _check_sources(corpus: Corpus, objective: Objective) -> None:
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


def _check_longest(corpus: Corpus, packing: Packing) -> None:
    raw = min(limits.raw for limits in packing.limits.values())
    uncut = {*corpus.columns} - {"weights"}
    may_cut = uncut and not packing.rows.column  # parts or labels are not read
    if not may_cut and corpus.longest is not None and corpus.longest > raw:
        raise ValueError(
            f"A document of this corpus may hold {corpus.longest} tokens and a row of the "
            f"objective only {raw}, so that the document would be cut in two: raise "
            "--gin.training.Run.sequence_lengths, give shorter documents, or lower the corpus's "
            "limits (given_tokens and answer_tokens, longest_tokens, arranged_tokens, "
            "docstring_tokens and code_tokens)."
        )
