"""The tiny preset of each family of models, with smaller sizes."""

import functools
import pathlib
import re

import jax

from pretrax.training.run_configuration import read_fields

GIN = pathlib.Path(__file__).parents[2] / "gin_configs" / "models"

SHAPE = dict(emb_dim=16, num_heads=4, head_dim=4, mlp_dim=24, dropout_rate=0.0)


def build(family, **changes):
    """Returns a smaller tiny preset of the family, with windows shorter than a row of eight."""
    path = GIN / f"{family}_tiny.gin"
    text = path.read_text()
    (layout,) = set(re.findall(r"^models\.(\w+)\.", text, re.MULTILINE))
    depth = ("num_encoder_layers", "num_decoder_layers")
    settings = SHAPE | dict.fromkeys(depth if layout == "encoder_decoder" else ("num_layers",), 3)
    if ".window" in text:
        settings |= {"window": 2, "global_every": 2}
    if ".encoder_window" in text:
        settings |= {"encoder_window": (1, 2), "first_global": 1}
    if ".num_kv_heads" in text:
        settings |= {"num_kv_heads": 2}
    return read_fields([str(path)])["model"](64, **(settings | changes))


@functools.cache
def logits_of(model):
    @jax.jit
    def forward(params, batch):
        outputs = model.apply(params, batch)
        return outputs.head("vocabulary", outputs.hidden["top"])

    return forward
