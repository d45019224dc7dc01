"""Small models that read and write text, and run directories of such models.

Nothing is trained: parameters are drawn at random, and the vocabulary is bytes.
"""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from pretrax import models, objectives
from pretrax.corpora import vocabularies
from pretrax.corpora.vocabularies import special_tokens, tokenization
from pretrax.inference import Trained
from pretrax.objectives import Row
from pretrax.objectives.layouts import LAYOUTS, supporting_layouts
from pretrax.settings import atomic_writes, run_directory
from pretrax.training.run import padded_vocabulary
from pretrax.training.saved.checkpoints import Checkpoints, Keep
from pretrax.training.state import State
from tests.models.small_models import init
from tests.objectives.registry import quick_jit

TOKENIZER = tokenization.byte_tokenizer()
IDS = special_tokens.token_ids(TOKENIZER, sentinels=12)
CODEC = special_tokens.codec(TOKENIZER, IDS)
ROWS = padded_vocabulary(IDS)
TEXT = "Ada wrote it. Alan read all of it! Then they had tea, or so?"

SIZES = dict(emb_dim=16, num_heads=2, head_dim=8, mlp_dim=16)
LAYERS = {"encoder_decoder": dict(num_encoder_layers=1, num_decoder_layers=1)}
SETTINGS = {  # settings of the objectives that need them
    "sequence_classification": dict(num_classes=3),
    "token_classification": dict(num_classes=3),
}
CLASSES = ("red", "green", "blue")


def settings_of(builder: str, **more) -> dict:
    """Returns the settings of a small model."""
    return SIZES | LAYERS.get(builder, dict(num_layers=1)) | more


def heads_of(names) -> tuple[str, ...]:
    """Returns the heads that these objectives require."""
    return tuple(dict.fromkeys(head for one in _built(names) for head in one.facts.heads))


def _built(names) -> list[objectives.Objective]:
    return [getattr(objectives, name)(IDS, **SETTINGS.get(name, {})) for name in names]


@functools.cache
def small(builder: str, heads=("vocabulary",), **settings):
    """Returns (model, parameters)."""
    model = getattr(models, builder)(ROWS, heads, **settings_of(builder, **settings))
    row = jnp.zeros((1, 2), jnp.int32)
    batch = {"cross_key_intervals": jnp.array([[[0, 0], [2, 2]]])}
    for stack in ("encoder", "decoder"):
        names = ("input_tokens", "segment_ids", "positions")
        names += ("target_tokens", "target_slots", "loss_weights")
        batch |= {f"{stack}_{name}": row for name in names}
        batch[f"{stack}_key_intervals"] = batch["cross_key_intervals"]
    return model, init(model, batch)


def trained(builder: str, *names: str, heads=None, classes=(), **settings) -> Trained:
    """Returns a model of `models.BUILDER` as if these objectives had trained it.

    Without objectives, the model's training is unknown, as for an imported model.
    """
    heads = heads or (heads_of(names) if names else ("vocabulary",))
    model, params = small(builder, heads, **settings)
    prompts = tuple(prompt for one in _built(names) for prompt in one.facts.prompt_forms)
    return Trained(model, params, IDS, CODEC.encode, CODEC.decode, prompts, tuple(classes))


def write_run(
    directory: pathlib.Path,
    builder: str,
    *names: str,
    steps=(0,),
    vocabulary=IDS,
    classes=(),
    more: str = "",
    **settings,
) -> str:
    """Writes a run directory for `trained` with checkpoints of these steps."""
    trained_model = trained(builder, *names, **settings)
    lines = [
        "from __gin__ import dynamic_registration",
        "from pretrax import models",
        "from pretrax import objectives",
    ]
    lines += ["from pretrax import training", f"training.Run.model = @models.{builder}"]
    values = settings_of(builder, **{k: v for k, v in settings.items() if k != "heads"})
    lines += [f"models.{builder}.{name} = {value!r}" for name, value in values.items()]
    if len(names) == 1:
        lines.append(f"training.Run.objective = @objectives.{names[0]}")
    elif names:
        members = ", ".join(f"'{name}': (@objectives.{name}, 1)" for name in names)
        lines.append("training.Run.objective = @objectives.mixture")
        lines.append(f"objectives.mixture.members = {{{members}}}")
    for name in names:
        of = SETTINGS.get(name, {})
        lines += [f"objectives.{name}.{key} = {value!r}" for key, value in of.items()]
    atomic_writes.write_text(directory / run_directory.CONFIG, "\n".join([*lines, more, ""]))
    checkpoints = Checkpoints(str(directory / "checkpoints"), Keep(latest=len(steps)))
    for step in steps:
        scale = 1.0 + step / 100  # the parameters of each step differ
        params = {name: _times(tree, scale) for name, tree in trained_model.params.items()}
        checkpoints.save(State(jnp.int32(step), params, {}), {})
    checkpoints.close()
    if vocabulary is not None:
        kept = vocabularies.Vocabulary(TOKENIZER, vocabulary, {})
        vocabularies.save_vocabulary(str(directory), kept)
    if classes:
        run_directory.save_classes(str(directory), classes)
    return str(directory)


def _times(tree, factor):
    if isinstance(tree, dict):
        return {name: _times(branch, factor) for name, branch in tree.items()}
    return tree * factor


@functools.cache
def _arranging(build, size: int, slack: int):
    objective = build(IDS)
    lengths = objective.lengths(size)

    def arrange(key, tokens, columns):
        row = Row(tokens, jnp.ones_like(tokens), jnp.int32(0), **columns)
        features = objective.corrupt(key, row, row, lengths, 1)
        features |= {"member": jnp.int32(0)}
        found = {}
        for name in supporting_layouts([lengths]):
            stacks = LAYOUTS[name].lengths(lengths)
            stacks = {stack: slots + slack for stack, slots in stacks.items()}
            found[name] = LAYOUTS[name].arrange(features, stacks, IDS.bos, 1)
        return features, found

    return quick_jit(arrange)


@functools.cache
def corrupted_document(build, document: tuple[int, ...], key: int, slack: int = 0, **columns):
    """Returns a document after corruption: (its features, {layout: the model's arrays})."""
    arrange = _arranging(build, len(document), slack)
    columns = {name: jnp.array(column, jnp.int32) for name, column in columns.items()}
    found = arrange(jax.random.key(key), jnp.array(document, jnp.int32), columns)
    return jax.tree.map(np.asarray, found)


def live(features, stream: str) -> list[int]:
    """Returns the tokens of a stream without padding."""
    return [int(x) for x in features[stream][features[f"{stream}_segments"] > 0]]
