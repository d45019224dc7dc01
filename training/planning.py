"""`plan`: solves the lengths of a run and checks it, before any parameter exists."""

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
from ..data.packing import Packing, documents_of_a_row, plan_packing, resolve
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
from .state import Abstract, State, abstract_state
from .step import Recipe, arranged, check_recipe, train_step


class Plan(NamedTuple):
    """A checked run with its lengths solved, from which training and evaluation start."""

    run: Run
    corpus: Corpus
    mesh: Mesh
    recipe: Recipe  # objective, model, row groups and optimizer
    schedules: tuple[GroupSchedule, ...]  # of the recipe's row groups
    packing: Packing
    end_of_document: int | None  # the id after every document; None: none


def open_corpus(run: Run) -> Corpus:
    """Opens a run's corpus, which on a first start learns its vocabulary and tokenizes its text.

    Raises ValueError before that for what `check_run` refuses, and for a warm start from what is
    not there.
    """
    check_run(run)
    if run.initial_run is not None and not is_run(run.run_dir):
        check_source(run.initial_run)
    return first_process_first(lambda: run.corpus(run.run_dir))


def plan_evaluation(run: Run) -> Plan:
    """Returns the plan of a run that has begun, on whatever devices there are.

    What is evaluated is padded to their number: only the rows of a training step must divide over
    them, and only training needs the kernels of fused attention.
    """
    return _plan(run, open_corpus(run), evaluation_mesh(run.mesh), trains=False)


def plan(run: Run, corpus: Corpus, mesh: Mesh | None = None) -> Plan:
    """Builds a run's objective and model, solves all lengths and checks them.

        planned = plan(run, open_corpus(run))

    Creates no parameters, and writes nothing. `mesh` None is that of the run.

    Raises ValueError for settings that cannot work: what was got, expected and to be changed.
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
    policy, mark_ends = resolve(objective, run.packing, run.mark_document_ends)
    lengths = run.sequence_lengths
    most = documents_of_a_row(policy, run.max_documents)
    try:
        groups = objectives.plan(objective, layout, ids, row_shapes(lengths), most)
    except ValueError as error:  # whose messages name no setting of a run
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
    )
    check_recipe(recipe)
    schedules = schedule(objective, groups, run.batch_size, run.data_shards)
    if trains:
        _check_division(run, recipe, schedules, batch_shards(mesh))
        _check_slots(recipe, mesh)
    packing = plan_packing(policy, objective, layout, groups)
    _check_longest(corpus, packing)
    check_own(recipe)
    end = ids.eos if mark_ends else None
    planned = Plan(run, corpus, mesh, recipe, schedules, packing, end)
    if len({member.objective.loss for member in objective.facts.members}) > 1:
        check_terms(recipe, abstract_batch(planned))  # do their terms add up?
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


def abstract_state_of(plan: Plan) -> Abstract:
    """Returns the shapes and shardings of the state; allocates nothing."""
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


def compiled_step(plan: Plan, shapes: State) -> jax.stages.Wrapped:
    """Returns (state, rows) -> (state, metrics), jitted; the old state is donated.

    The new state has the shardings of the old one, `shapes` (`Abstract.shapes`): XLA might choose
    others, and compile again for the next step.
    """
    step = functools.partial(train_step, plan.recipe, jax.random.key(plan.run.seed))
    shardings = jax.tree.map(lambda x: x.sharding, shapes)
    if plan.run.shard_optimizer_over_data:
        updated = spread_over_data(shapes.params, shardings.params, plan.mesh)
        spread = functools.partial(jax.lax.with_sharding_constraint, shardings=updated)
        step = functools.partial(step, spread=spread)
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, replicated(plan.mesh)))


def compiled(plan: Plan, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compiles a lowered step, for TPUs with the run's `tpu_compiler_options`.

    Raises ValueError for an option that the compiler does not have.
    """
    is_tpu = plan.mesh.devices.flat[0].platform == "tpu"
    given = plan.run.tpu_compiler_options if is_tpu else None
    options = {name: x if isinstance(x, bool) else str(x) for name, x in (given or {}).items()}
    try:
        return lowered.compile(compiler_options=options or None)
    except jax.errors.JaxRuntimeError as error:
        if not options or "compile option" not in str(error):
            raise
        raise ValueError(
            f"The compiler refuses --gin.training.Run.tpu_compiler_options={options}: {error}. "
            "Leave out what this version of libtpu does not have."
        ) from error


def abstract_rows(plan: Plan, sharding=None) -> tuple[Row, ...]:
    """Returns the shapes of the rows that a step takes."""

    def array(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding)

    def rows(group, scheduled):
        text = array(scheduled.rows, group.row_length)
        row = Row(text, text, array(scheduled.rows))
        return row._replace(**{column: text}) if (column := plan.packing.rows.column) else row

    return tuple(map(rows, plan.recipe.groups, plan.schedules))


def abstract_batch(plan: Plan) -> dict:
    """Returns the shapes of the model's features of the first row group."""
    rows = abstract_rows(plan)[0]
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows.member.shape[0]))
    arrange = functools.partial(arranged, plan.recipe, plan.recipe.groups[0])
    return jax.eval_shape(arrange, keys, rows)


# --- checks ---------------------------------------------------------------------------------------


def check_run(run: Run) -> None:
    """Raises ValueError for settings that are wrong for any corpus, objective and model."""
    check_fields(run, "training.Run.")
    _check_checkpoints(run)
    _check_directories_and_processes(run)
    run.optimizer(run.steps)


def _check_checkpoints(run: Run) -> None:
    saved = run.checkpoint_every
    evaluated = run.evaluate_every
    if run.keep_every is not None and (saved is None or run.keep_every % saved):
        raise ValueError(
            f"training.Run.keep_every = {run.keep_every} keeps checkpoints of a multiple of so "
            f"many steps, and checkpoint_every = {saved} saves them at others: make keep_every a "
            "multiple of checkpoint_every."
        )
    if run.keep_best is not None and (saved is None or evaluated is None or saved % evaluated):
        raise ValueError(
            f"training.Run.keep_best = {run.keep_best} keeps checkpoints by their held-out loss, "
            f"and with checkpoint_every = {saved} and evaluate_every = {evaluated} they would have "
            "none: make checkpoint_every a multiple of evaluate_every."
        )
    local = run.local_checkpoint_dir
    minutes = run.local_checkpoint_minutes
    if (local is None) != (minutes is None):
        raise ValueError(
            f"training.Run.local_checkpoint_dir = {local!r} says where copies of the newest state "
            f"are kept, and local_checkpoint_minutes = {minutes} how often: give both, or neither."
        )
    if local is not None and ("://" in local or "[" in local or "]" in local):
        raise ValueError(
            f"Got training.Run.local_checkpoint_dir = {local!r}, expected a folder on each host's "
            "own disk, without brackets in its name: a bucket is the checkpoint_dir."
        )
    if local is not None:
        check_place(local)
    if run.rollback_sigmas is not None and run.checkpoint_every is None:
        raise ValueError(
            f"training.Run.rollback_sigmas = {run.rollback_sigmas} goes back to a checkpoint, and "
            "checkpoint_every = None saves none before the end: give "
            "--gin.training.Run.checkpoint_every=NUMBER."
        )


def _check_directories_and_processes(run: Run) -> None:
    if "://" in run.run_dir:
        raise ValueError(
            f"run_dir is a directory on disk, got {run.run_dir}: `pretrax train` alone takes one "
            "in a bucket, so give another (--run_dir=runs/NAME)."
        )
    if os.path.isfile(run.run_dir):
        raise ValueError(
            f"run_dir is a directory, and {run.run_dir} is a file: give another "
            "(--run_dir=runs/NAME)."
        )
    where = checkpoints(run.run_dir, run.checkpoint_dir)
    if "[" in where or "]" in where:  # Orbax reads them as a pattern, and finds nothing
        raise ValueError(f"Checkpoints under a name with brackets cannot be read, got {where}.")
    processes = jax.process_count()
    if processes > 1 and not run.distributed:
        raise ValueError(
            f"There are {processes} processes: set training.Run.distributed = True, so that they "
            "save and stop together."
        )
    if processes > 1 and run.evaluation_tasks is not None:
        raise ValueError(
            "evaluation_tasks are scored by a single process: leave them out, and score the run's "
            "checkpoints by `pretrax evaluate`."
        )


def _check_division(run: Run, recipe: Recipe, schedules, shards: int) -> None:
    for group, scheduled in zip(recipe.groups, schedules):
        if scheduled.rows % (run.microbatches * shards):
            raise ValueError(
                f"The row group {group.stacks} has {scheduled.rows} rows, which {run.microbatches} "
                f"microbatches over {shards} devices do not divide: change "
                "--gin.training.Run.batch_size, or make --gin.training.Run.data_shards a multiple "
                f"of {run.microbatches * shards}."
            )


def _check_slots(recipe: Recipe, mesh: Mesh) -> None:
    """Raises ValueError for rows whose slots the mesh does not divide, so that every device would
    compute all of them."""
    model = recipe.model
    shards = mesh.shape["context"]
    if shards == 1:
        return
    config = model.config
    shard_multiple = 1
    if config is not None and config.positions == "relative":
        shard_multiple = config.mechanism.bias_multiple
    for stacks in (group.stacks for group in recipe.groups):
        for name in sorted({"encoder", "decoder"} & stacks.keys()):  # not "predict", of any number
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
    """Raises ValueError for devices that cannot train with the model's attention mechanism."""
    if model.attention is None:  # a network of one's own
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
            f"Got a model of {experts} experts on a mesh that spreads them over {devices} devices, "
            "expected a multiple: lower --gin.mesh.make_mesh.expert and raise fsdp, or change the "
            "model's num_experts."
        )


def _warn_of_undivided(model: Model, mesh: Mesh) -> None:
    """Says which sizes of a model the mesh does not divide: `models.sharding.spec_of` leaves those
    axes whole, or takes fewer of the mesh's axes for them."""
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
        words = f"The mesh's {product} does not divide {whole} of the model: every device {does} "
        advice = (
            f" Lower --gin.mesh.make_mesh.{axes[-1]} so that it does, and raise another axis."
            if names != ["num_kv_heads"]  # of fewer key heads than devices, each has a copy anyhow
            else ""
        )
        warnings.warn(f"{words}{part} of it.{advice}", stacklevel=1)


def _check_router(model: Model, run: Run) -> None:
    c = model.config
    if c is None or not c.num_experts or run.initial_run is not None:
        return
    if c.experts_per_token == 1 and c.normalize_expert_weights:
        raise ValueError(
            "Got a model with experts_per_token=1 and normalize_expert_weights=True to be trained "
            "from the start: the one weight of a token is always 1, so that its router has no "
            "gradient of the loss. Give the model normalize_expert_weights=False, as Switch "
            "Transformers have, or 2 experts_per_token. A trained router is accepted "
            "(training.Run.initial_run)."
        )


def check_columns(corpus: Corpus, objective: Objective) -> None:
    """Raises ValueError for an objective that reads other columns of documents than the corpus has,
    predicts numbers where it has classes, or labels of tokens where those are of documents."""
    rows = objective.facts.rows
    column = rows.column
    if column is not None and column not in corpus.columns:
        raise ValueError(
            f"The objective is made for {rows.description}, and the documents of this "
            f"corpus have no {column}: choose a corpus that has them, or another objective "
            "(--gin_file=objectives/NAME.gin)."
        )
    if column != "parts" and "parts" in corpus.columns:
        raise ValueError(
            "The documents of this corpus are of several parts, such as a text and its answer, "
            f"which an objective for {rows.description} would read as one text: choose "
            "an objective on parts, or a corpus of text (--gin_file=corpora/NAME.gin)."
        )
    if corpus.classes and 1 in objective.facts.heads.values():
        raise ValueError(
            "The objective predicts numbers, and the labels of this corpus are "
            f"{len(corpus.classes)} classes ({', '.join(corpus.classes[:8])}): choose "
            "sequence_classification (--gin_file=runs/finetune_classification.gin), or a corpus of "
            'numbers (seqio_corpora.seqio_pairs, answers "number").'
        )
    read = "tokens" if "labels" in objective.lengths(2) else "documents"
    if column == "labels" and corpus.labels_of not in (None, read):
        raise ValueError(
            f"The objective predicts labels of {read}, and this corpus has labels of "
            f"{corpus.labels_of}: choose sequence_classification "
            "(--gin_file=runs/finetune_classification.gin) for classes of texts, and for classes "
            "of words token_classification (--gin_file=runs/finetune_tags.gin) with "
            'seqio_corpora.seqio_pairs, answers "tags".'
        )


def _check_sources(corpus: Corpus, objective: Objective) -> None:
    """Raises ValueError for a corpus with a text for each member of another objective."""
    members = members_of(objective)
    if corpus.sources and len(corpus.member_sources) != len(members):
        raise ValueError(
            f"This corpus has a text for each of {len(corpus.member_sources)} members of a "
            f"mixture, and the run's objective has {len(members)} "
            f"({', '.join(member.name for member in members)}): give corpus and objective the "
            "same SeqIO mixture (--gin_file=corpora/seqio_objectives.gin after any other "
            "objective)."
        )


def _check_longest(corpus: Corpus, packing: Packing) -> None:
    raw = min(limits.raw for limits in packing.limits.values())
    may_cut = corpus.columns and not packing.rows.column  # parts or labels that nothing reads
    if not may_cut and corpus.longest is not None and corpus.longest > raw:
        raise ValueError(
            f"A document of this corpus may hold {corpus.longest} tokens and a row of the "
            f"objective only {raw}, which would cut it in two: raise "
            "--gin.training.Run.sequence_lengths, give shorter documents, or lower the corpus's "
            "limits (given_tokens and answer_tokens, longest_tokens, arranged_tokens, "
            "docstring_tokens and code_tokens)."
        )
