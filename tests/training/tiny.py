"""Small objects for training tests: ids, objectives, models, rows, and whole runs as gin files."""

import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from pretrax import cli, corpora, models
from pretrax.data.corpus import Codec, Corpus, Document, DocumentStream
from pretrax.data.packing import POOL
from pretrax.data.token_store_files import write_store
from pretrax.objectives import TokenIds, mixture, prefix_lm, span_corruption, ul2
from pretrax.settings.gin_reader import read_settings
from pretrax.training import planning, step_program
from pretrax.training.batches import Batches
from pretrax.training.devices.mesh import make_mesh
from pretrax.training.hooks import Hook
from pretrax.training.run import Run as Settings
from pretrax.training.state import AbstractState, State, abstract_state

ROOT = pathlib.Path(__file__).resolve().parents[2]
IDS = TokenIds(
    size=120,
    text=(2, 100),
    sentinels=tuple(range(119, 103, -1)),
    modes=(("R", 100), ("S", 101), ("X", 102)),
)
ROWS_OF_TWO_SHAPES = ({"encoder": 32, "decoder": 16}, {"encoder": 32, "decoder": 24})


def documents(n: int, seed: int = 0) -> list[np.ndarray]:
    """Returns documents that can be learned: each text id is mostly followed by the next id."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        steps = np.where(rng.random(rng.integers(5, 60)) < 0.8, 1, 7)
        found.append((2 + (rng.integers(98) + np.cumsum(steps)) % 98).astype(np.int32))
    return found


@functools.cache
def document(number: int) -> np.ndarray:
    """Cached, since every test that reads `TextStream` needs the same thousands of documents."""
    (found,) = documents(1, seed=number)
    found.setflags(write=False)
    return found


def write_documents(path) -> str:
    write_store(path, documents(200), IDS)
    return str(path)


class Stream(DocumentStream):
    """Documents 0, 1, 2, … of a shard: document k is [k, k, …], so that documents can be
    identified.

    Every third one is a piece that does not end its document.
    """

    def __init__(self, shard: int, num_shards: int):
        self.number, self.step = shard, num_shards

    def next_document(self):
        number, self.number = self.number, self.number + self.step
        return Document(np.full(3 + number % 11, number, np.int32), ends_document=number % 3 != 0)

    def state(self):
        return {"number": np.int64(self.number)}

    def restore(self, state):
        self.number = int(state["number"])


class TextStream(Stream):
    """The same documents, with ids of the model's vocabulary."""

    def next_document(self):
        piece = super().next_document()
        return piece._replace(tokens=document(int(piece.tokens[0])))


# A single unrolled layer compiles in two thirds of the time of two scanned layers.
SIZES = dict(
    emb_dim=16, num_heads=2, head_dim=8, mlp_dim=32, remat_policy="none", scan_layers=False
)


def decoder(**settings):
    return models.decoder(128, **(SIZES | dict(num_layers=1) | settings))


def encoder_decoder(**settings):
    return models.encoder_decoder(
        128, **(SIZES | dict(num_encoder_layers=1, num_decoder_layers=1) | settings)
    )


def text_of(stream, n: int, end: int | None = None) -> np.ndarray:
    """Returns the first n tokens of a stream, with documents end to end."""
    text = np.zeros(0, np.int32)
    while text.size < n:
        document = stream.next_document()
        has_end = end is not None and document.ends_document
        ending = np.full(int(has_end), end or 0, np.int32)
        text = np.concatenate([text, document.tokens, ending])
    return text[:n]


def span_and_prefix():
    return mixture(IDS, {"span": (span_corruption, 2), "prefix": (prefix_lm, 1)})


@functools.cache
def small_ul2():
    return ul2(IDS)


def run_of(
    model, objective, lengths, *, mesh=None, optimizer=None, longest=None, **settings
) -> Settings:
    """Returns a run that is built from parts in memory, without reading a disk."""
    # Some kinds of rows are columns that the objective reads, such as "labels". The other kinds
    # only select rows, and no document has a column of such a name.
    corpus = Corpus(
        IDS, TextStream, lambda n: [], longest=longest, columns=(objective.facts.rows.kind,)
    )
    return Settings(
        run_dir="unused",
        corpus=lambda run_dir: corpus,
        objective=lambda ids: objective,
        model=lambda rows, heads: model,
        optimizer=lambda steps: optimizer or optax.adamw(1e-2),
        sequence_lengths=lengths,
        mesh=lambda: mesh or mesh_of(1),
        **{"batch_size": 16, "steps": 100, "data_shards": 8} | settings,
    )


def plan(model, objective, lengths, **settings) -> planning.Plan:
    return planned(run_of(model, objective, lengths, **settings))


def planned(run: Settings) -> planning.Plan:
    """Returns the plan of a run with its corpus."""
    return planning.plan_run(run)


def parameters(one: planning.Plan):
    """Returns parameters of a plan, drawn by NumPy; vectors are scales near one.

    Compiling the model's own draws takes longer than using the parameters.
    """
    rng = np.random.default_rng(0)

    def draw(x):
        drawn = rng.normal(x.ndim == 1, 0.25, x.shape).astype(x.dtype)
        return jax.device_put(drawn, x.sharding)

    return jax.tree.map(draw, step_program.abstract_state_of(one).shapes.params)


def abstract_state_of(model, optimizer, mesh) -> AbstractState:
    """Returns the abstract state of a model without a forward pass, by default with Adam."""
    optimizer = optimizer or optax.adam(1e-3)

    def init_state(params):
        return State(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    return abstract_state(functools.partial(model.init, batch={}), init_state, mesh)


def batches(one, mesh, *, data_shards=8, stream=TextStream, **settings):
    return Batches(
        [stream],
        one.recipe.groups,
        one.schedules,
        data_shards=data_shards,
        mesh=mesh,
        packing=one.packing,
        **settings,
    )


def data_files(checkpoint) -> dict:
    """Returns the data files of a checkpoint without the duration of the run."""
    files = {}
    for file in pathlib.Path(checkpoint, "data").glob("*[zn]"):
        if file.name == "unreported.json":
            files[file.name] = json.loads(file.read_text())["steps"]
        elif file.name.startswith("checksums"):
            files[file.name] = json.loads(file.read_text())
            files[file.name].pop("unreported.json", None)
        else:
            files[file.name] = file.read_bytes()
    return files


def on_one_device(patch) -> None:
    """Makes runs find one device, as on a laptop. Steps for eight compile a third longer."""
    on_devices(patch, 1)


def on_devices(patch, count: int) -> None:
    found = jax.devices()[:count]
    patch.setattr(jax, "devices", lambda: found)


def mesh_of(data, fsdp=1, tensor=1, context=1):
    devices = jax.devices()[: data * fsdp * tensor * context]
    return make_mesh(data, fsdp, tensor, context=context, devices=devices)


def slow_token_store(run_dir, *, path, shown=False):
    """Makes a token store take WAIT seconds per document, so that a run can be killed while it
    trains.

    The delay applies once rows are cut from the store. It is an environment variable, since a
    resumed run keeps its settings. With `shown`, ids can be decoded to text, so that a run ends
    with passages.
    """
    corpus = corpora.token_store(run_dir, stores=path)
    seconds = float(os.getenv("WAIT", "0"))
    codec = Codec(lambda text: [int(t) for t in text.split()], str) if shown else None

    def open_shard(shard, num_shards):
        stream = corpus.open_shard(shard, num_shards)
        read, first = stream.next_document, iter(range(POOL))

        def read_slowly():
            if next(first, None) is None:
                time.sleep(seconds)
            return read()

        stream.next_document = read_slowly
        return stream

    return corpus._replace(open_shard=open_shard, codec=codec)


def asks_to_stop(plan, *, after: int) -> Hook:
    """Sends SIGTERM after this number of steps. The run takes one more step and stops."""
    return Hook(lambda at: os.kill(os.getpid(), signal.SIGTERM), after, at_end=False)


CONFIG = """
from __gin__ import dynamic_registration

from pretrax import models
from pretrax import training
from pretrax import objectives
from tests.training import tiny
from pretrax.training.devices import mesh
from pretrax.training import optimizers

RUN_DIR = None
DATA = None
STEPS = 12
PEAK = 3e-3

training.Run.run_dir = %RUN_DIR
training.Run.corpus = @tiny.slow_token_store
tiny.slow_token_store.path = %DATA
training.Run.objective = @objectives.mixture
objectives.mixture.members = {
    "span": (@objectives.span_corruption, 2),
    "prefix": (@objectives.prefix_lm, 1),
}
training.Run.model = @models.decoder
models.decoder.emb_dim = 16
models.decoder.num_heads = 2
models.decoder.head_dim = 8
models.decoder.mlp_dim = 32
models.decoder.num_layers = 1
models.decoder.remat_policy = "none"
models.decoder.scan_layers = False
training.Run.mesh = @mesh.make_mesh
training.Run.optimizer = @optimizers.adamw
optimizers.adamw.learning_rate = @optimizers.warmup_constant
optimizers.warmup_constant.peak = %PEAK
training.Run.sequence_lengths = {"decoder": 32}
training.Run.batch_size = 8
training.Run.steps = %STEPS
training.Run.data_shards = 4
training.Run.log_every = 1
training.Run.checkpoint_every = 4
training.Run.keep_checkpoints = 10
training.Run.heldout_tokens = 100
"""


def environment(devices: int = 1, **more) -> dict[str, str]:
    """Returns the environment of a program with this number of devices.

    The program finds what this session has compiled.
    """
    shared = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_")
    own = ("JAX_", "XLA_", "PYTHON")
    kept = {k: v for k, v in os.environ.items() if k.startswith(shared) or not k.startswith(own)}
    # A checkout that is not installed, such as a worktree, is found by PYTHONPATH=.ci/links.
    paths = [env.get("PYTHONPATH", "") for env in (more, os.environ)]
    paths = [os.path.abspath(path) for path in os.pathsep.join(paths).split(os.pathsep) if path]
    return kept | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": re.sub(r"(device_count=)\d+", rf"\g<1>{devices}", os.environ["XLA_FLAGS"]),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        **more,
        "PYTHONPATH": os.pathsep.join(paths),
    }


class Run:
    """A run of `train.py` in a separate folder. `values` are its --gin values."""

    def __init__(self, folder: pathlib.Path, data: str, **values):
        folder.mkdir(parents=True, exist_ok=True)
        self.dir = folder / "run"
        self.config = folder / "run.gin"
        self.config.write_text(CONFIG)
        self.values = {"RUN_DIR": str(self.dir), "DATA": data} | values

    def arguments(self, **values) -> list[str]:
        values = self.values | {k.replace("__", "."): v for k, v in values.items()}
        return [f"--gin_file={self.config}", *(f"--gin.{k}={v!r}" for k, v in values.items())]

    def start(self, *, devices=1, env=None, program=("train.py",), **values) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, *program, *self.arguments(**values)],
            cwd=ROOT,
            env=environment(devices, **(env or {})),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, **settings) -> str:
        """Runs to the end, and returns the output."""
        process = self.start(**settings)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        return out

    def train_in_process(self, capsys, **values) -> str:
        """Runs to the end in this process, and returns the output."""
        train_in_process(self.arguments(**values))
        return capsys.readouterr().out

    def lines(self) -> list[dict]:
        """Returns the metrics without times and speeds, which differ between starts."""
        from pretrax.training.reporting.metrics import read_metrics

        return [
            {k: v for k, v in line.items() if "second" not in k} for line in read_metrics(self.dir)
        ]


def train_in_process(arguments) -> None:
    """Runs `train.py` in this process."""
    cli.run("train", arguments)


LEFT_OPEN = {  # users complete these gin files on the command line
    **dict.fromkeys(
        (
            *("FILES", "TOKENS", "STORE", "TOKENIZER", "MIXTURE_OR_TASK_NAME", "TASK"),
            *("RUN_DIR", "INITIAL_RUN", "OUT", "DIRECTORY", "PROJECT"),
        ),
        "none",
    ),
    **{"MODULE": None, "CLASSES": ["no", "yes"]},
    **dict.fromkeys(("STEPS", "GIVEN_TOKENS", "ANSWER_TOKENS"), 100),
}


def completed(file: str, target=Settings, before=()) -> dict:
    """Returns the fields of a gin file, a run's by default, with values for required settings.

    The files `before` are read first.
    """
    bindings: list[str] = []
    while True:
        try:
            return read_settings(target, [*before, file], bindings)
        except ValueError as error:
            name = str(error).partition(" has no value")[0]
            bindings.append(f"{name} = {LEFT_OPEN[name]!r}")


def unsealed_config(file: pathlib.Path) -> str:
    """Returns the text of a run's config.gin without its checksum, for a user to edit."""
    return file.read_text().rpartition("# crc32: ")[0]


def truncate(file: pathlib.Path) -> None:
    """Cuts a file in half, as a full disk may do."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def saved_arrays(run_dir, step: int) -> dict[str, np.ndarray]:
    """Returns every array of a checkpoint without reading a configuration."""
    from orbax.checkpoint import v1 as ocp

    root = pathlib.Path(run_dir).resolve() / "checkpoints"
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])  # others may have saved the arrays
    with ocp.training.Checkpointer(root) as checkpoints:
        described = checkpoints.metadata(step).metadata
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), described
        )
        state = checkpoints.load_checkpointables(step, {"state": shapes})["state"]
    flat, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in flat if hasattr(x, "shape")}


def assert_same(a: dict, b: dict) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)
