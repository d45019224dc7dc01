"""Trains a small decoder on bytes with a pre-training objective, and continues a text with it.

    python examples/train_loop.py
    python examples/train_loop.py --steps=2000 my_texts/*.txt

Copy this file and change it. It takes the objective, the model and the decoding from pretrax and
the optimizer from Optax. The text, the batches and the training step are plain Python.
"""

import argparse
import functools
import re
import time
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import pretrax
from pretrax import inference, models, objectives
from pretrax.objectives.contract import scale_at

# --- what to change -------------------------------------------------------------------------------

# An objective and a model with a suitable layout. Two others that work with the same loop:
#   objectives.prefix_lm and models.decoder
#   objectives.span_corruption and models.encoder_decoder, LENGTHS = {"encoder": 128, "decoder": 64}
#     (which also need num_encoder_layers and num_decoder_layers in place of num_layers)
OBJECTIVE = objectives.causal_lm
MODEL = functools.partial(
    models.decoder, emb_dim=128, num_heads=4, head_dim=32, mlp_dim=384, num_layers=2
)
LENGTHS = {"decoder": 128}  # slots of each stack of the model
BATCH_SIZE = 16
PEAK_LEARNING_RATE = 3e-3
PROMPT = "import "
MODE = "continue"  # a mode of inference, such as "infill" after span_corruption

# --- the text, as bytes ---------------------------------------------------------------------------

FIRST = 3  # ids 0, 1 and 2 are padding, end-of-sequence and the start
SENTINELS = 64  # for objectives that hide spans
IDS = objectives.TokenIds(
    size=FIRST + 256 + SENTINELS,
    text=(FIRST, FIRST + 256),
    pad=0,
    eos=1,
    bos=2,
    sentinels=tuple(range(FIRST + 256, FIRST + 256 + SENTINELS)),
)


def encode(text: str) -> list[int]:
    """Returns the ids of a text in which <extra_id_0>, <extra_id_1> and so on are blanks."""
    tokens: list[int] = []
    for i, part in enumerate(re.split(r"<extra_id_(\d+)>", text)):
        tokens += [IDS.sentinels[int(part)]] if i % 2 else [FIRST + x for x in part.encode()]
    return tokens


def decode(tokens: list[int]) -> str:
    return bytes(t - FIRST for t in tokens if FIRST <= t < FIRST + 256).decode(errors="replace")


def read_tokens(paths: list[str]) -> np.ndarray:
    """Returns the text of all files as one array of ids, i32[n]. Default: modules of Python."""
    files = [Path(path) for path in paths] or sorted(Path(argparse.__file__).parent.glob("*.py"))
    documents = [
        FIRST + np.frombuffer(file.read_bytes(), np.uint8).astype(np.int32) for file in files
    ]
    return np.concatenate([np.append(document, IDS.eos) for document in documents])


def raw_rows(tokens: np.ndarray, length: int, size: int, rng: np.random.Generator):
    """Returns random stretches of the text as raw rows, each a single document."""
    starts = rng.integers(0, len(tokens) - length, size)
    rows = tokens[starts[:, None] + np.arange(length)]
    return objectives.Row(rows, segments=np.ones_like(rows), member=np.zeros(size, np.int32))


# --- training -------------------------------------------------------------------------------------


class Trainer:
    """The objective, the model and the optimizer, with a compiled training step."""

    def __init__(self, steps: int, seed: int = 0):
        self.objective = OBJECTIVE(IDS)
        self.model = MODEL(IDS.size, self.objective.facts.heads)
        self.layout = objectives.layouts.LAYOUTS[self.model.layout]
        # The length of the raw rows follows from the slots of the model: with span corruption, for
        # example, more tokens fit than the encoder has slots.
        (self.group,) = objectives.row_groups(self.objective, self.layout, IDS, [LENGTHS])
        warmup = max(steps // 10, 1)
        rate = optax.warmup_cosine_decay_schedule(0.0, PEAK_LEARNING_RATE, warmup, steps)
        self.optimizer = optax.chain(
            optax.clip_by_global_norm(1.0), optax.adamw(rate, weight_decay=0.01)
        )
        self.steps = steps
        self.seed = seed
        self.step = jax.jit(self._step, donate_argnums=(0, 1))
        # Held-out losses have the scales of the end of training, so that they can be compared.
        self.evaluate = jax.jit(
            lambda params, key, rows: self._loss(params, steps, self.batch(key, rows))
        )

    def init(self, rows):
        """Returns fresh parameters and the state of the optimizer."""
        key = jax.random.key(self.seed)
        params = nn.unbox(self.model.init(key, self.batch(key, rows)))
        return params, self.optimizer.init(params)

    def batch(self, key, rows):
        """Corrupts raw rows and arranges the features as the model's batch."""
        keys = jax.random.split(key, rows.tokens.shape[0])
        features = objectives.batched(self.objective, self.group.features)(keys, rows)
        return jax.vmap(self._arrange)(features)

    def _arrange(self, features):
        return self.layout.arrange(features, self.group.stacks, IDS.bos, 1)

    def _loss(self, params, steps_done, batch):
        outputs = self.model.apply(params, batch)
        terms = self.objective.loss(batch).scored(outputs)
        return sum(
            scale_at(term.scale, steps_done, self.steps)
            * jnp.sum(term.sums)
            / jnp.maximum(jnp.sum(term.weights), 1)
            for term in terms.values()
            if term.scale is not None  # a term without a scale is a metric
        )

    def _step(self, params, state, step, rows):
        """Returns the parameters and the optimizer's state after a step, and the loss."""
        key = jax.random.fold_in(jax.random.key(self.seed), step)
        loss, gradients = jax.value_and_grad(self._loss)(params, step - 1, self.batch(key, rows))
        updates, state = self.optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss


def train(tokens: np.ndarray, steps: int) -> tuple[Trainer, dict]:
    """Returns the trainer and the trained parameters. Prints the loss ten times."""
    heldout = tokens[-len(tokens) // 20 :]
    tokens = tokens[: -len(heldout)]
    rng = np.random.default_rng(0)
    trainer = Trainer(steps)
    length = trainer.group.row_length
    validation = raw_rows(heldout, length, BATCH_SIZE, np.random.default_rng(1))
    params, state = trainer.init(validation)
    count = sum(x.size for x in jax.tree.leaves(params))
    print(f"{count:,} parameters, {len(tokens):,} tokens, rows of {length} tokens")
    began = time.monotonic()
    for step in range(1, steps + 1):
        rows = raw_rows(tokens, length, BATCH_SIZE, rng)
        params, state, loss = trainer.step(params, state, step, rows)
        if step % max(steps // 10, 1) == 0:
            held = trainer.evaluate(params, jax.random.key(1), validation)
            seconds = time.monotonic() - began
            print(f"step {step:5}  loss {loss:.3f}  held-out loss {held:.3f}  {seconds:.0f} s")
    return trainer, params


def answer(trainer: Trainer, params: dict, text: str) -> dict:
    """Returns the answer of the trained model to a text, by a mode of `pretrax predict`."""
    trained = inference.Trained(
        model=trainer.model,
        params=params,
        ids=IDS,
        encode=encode,
        decode=decode,
        prompt_forms=trainer.objective.facts.prompt_forms,
        lengths=LENGTHS,
    )
    options = pretrax.Options(decoding=inference.Decoding(max_new=64))
    (found,) = pretrax.answer(trained, MODE, [{"text": text}], options)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", help="text files (default: modules of Python)")
    parser.add_argument("--steps", type=int, default=300, help="number of steps (default: 300)")
    options = parser.parse_args()
    trainer, params = train(read_tokens(options.files), options.steps)
    print(answer(trainer, params, PROMPT))


if __name__ == "__main__":
    main()
