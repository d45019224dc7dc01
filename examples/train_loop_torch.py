"""Trains a small masked language model in PyTorch on batches that a pretrax objective corrupts.

    python examples/train_loop_torch.py

JAX draws the noise on the CPU, and the arrays reach PyTorch through DLPack without a copy. Copy
this file and change the objective, the model or the text. For models of transformers,
`pretrax.Collator` makes the tensors that they take.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # leaves the accelerator to PyTorch

import jax
import numpy as np
import torch

from pretrax import TokenIds, corruptor, objectives

LENGTH = 128  # tokens of a row; the inputs also have [CLS] and [SEP]
BATCH_SIZE = 16
FIRST = 3  # ids 0, 1 and 2 are padding, end-of-sequence and the start
IDS = TokenIds(size=FIRST + 259, text=(FIRST, FIRST + 256), mask=259, cls=260, sep=261)


def read_tokens() -> np.ndarray:
    """Returns the bytes of modules of Python as ids, i32[n]. Replace this by your own text."""
    files = sorted(Path(argparse.__file__).parent.glob("*.py"))
    return np.concatenate([np.frombuffer(file.read_bytes(), np.uint8) for file in files]) + FIRST


class Batches:
    """Makes batches of a masked language model: inputs, labels and the slots of the labels."""

    def __init__(self, tokens: np.ndarray, seed: int = 0):
        self.tokens = tokens.astype(np.int32)
        self.corrupt = corruptor(objectives.masked_lm, IDS, LENGTH)
        self.rng = np.random.default_rng(seed)
        self.key = jax.random.key(seed)

    def __call__(self, step: int, device: torch.device) -> dict[str, torch.Tensor]:
        starts = self.rng.integers(0, len(self.tokens) - LENGTH, BATCH_SIZE)
        rows = self.tokens[starts[:, None] + np.arange(LENGTH)]
        features = self.corrupt(jax.random.fold_in(self.key, step), rows)
        return {name: torch.from_dlpack(x).to(device).long() for name, x in features.items()}


class Encoder(torch.nn.Module):
    """A bidirectional Transformer. Replace it by your own model."""

    def __init__(self, size: int, width: int = 128, layers: int = 2, slots: int = LENGTH + 2):
        super().__init__()
        self.embed = torch.nn.Embedding(size, width)
        self.positions = torch.nn.Parameter(torch.zeros(slots, width))
        layer = torch.nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True
        )
        self.layers = torch.nn.TransformerEncoder(layer, layers)
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Returns logits for the labels, f32[rows, labels, ids]."""
        states = self.embed(batch["inputs"]) + self.positions
        states = self.layers(states, src_key_padding_mask=batch["inputs_segments"] == 0)
        slots = batch["labels_slots"][..., None].expand(-1, -1, states.shape[-1])
        chosen = torch.gather(self.norm(states), 1, slots)  # only these reach the vocabulary
        return chosen @ self.embed.weight.T / chosen.shape[-1] ** 0.5


def loss_of(logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns the mean cross-entropy of the labels that count, in nats."""
    losses = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), batch["labels"], reduction="none"
    )
    weights = batch["labels_weights"]
    return (losses * weights).sum() / weights.sum().clamp(min=1)


def train(steps: int) -> list[float]:
    """Returns the loss of each step. Prints it ten times."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batches = Batches(read_tokens())
    model = Encoder(IDS.size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for step in range(1, steps + 1):
        batch = batches(step, device)
        loss = loss_of(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % max(steps // 10, 1) == 0:
            print(f"step {step:5}  loss {losses[-1]:.3f}")
    show(model, batches(steps + 1, device))
    return losses


@torch.no_grad()
def show(model: Encoder, batch: dict[str, torch.Tensor]) -> None:
    """Prints a text with its masks as ?, and the same text with the guesses of the model."""
    guesses = model(batch)[..., FIRST : FIRST + 256].argmax(-1) + FIRST
    text = batch["inputs"][0].clone()
    print("given:  ", readable(text))
    slots = batch["labels_slots"][0][batch["labels_weights"][0] == 1]
    text[slots] = guesses[0][batch["labels_weights"][0] == 1]
    print("guessed:", readable(text))


def readable(tokens: torch.Tensor) -> str:
    kept = [t for t in tokens.tolist() if t == IDS.mask or FIRST <= t < FIRST + 256]
    return repr("".join("?" if t == IDS.mask else chr(t - FIRST) for t in kept))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300, help="number of steps (default: 300)")
    train(parser.parse_args().steps)
