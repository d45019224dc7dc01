"""Training FLOPs of an objective per token of text, relative to causal language modeling.

All models have the same depth and width, and all rows have the slots of the decoder's small run.
"""

import functools

from pretrax.objectives import Objective, members_of, raw_length
from pretrax.objectives.catalog import CATALOG, run_of
from pretrax.objectives.contract import mean_rate, with_corpus_classes
from pretrax.objectives.layouts import LAYOUTS
from pretrax.objectives.token_ids import specimen_ids
from pretrax.training.run_configuration import read_fields
from pretrax.visualization.rows import first_stack

REFERENCE = "causal_lm"
SLOTS = 256  # number of slots of the encoder or the single stack, as in runs/decoder.gin
VOCABULARY = 2048  # number of rows of the vocabulary of the small runs
MLP_DIM = 352  # as in models/decoder_tiny.gin; the small models differ in no other width


def relative_flops(name: str) -> float:
    """Returns an objective's training FLOPs per token of text, divided by those of `REFERENCE`."""
    return flops_per_token(name) / flops_per_token(REFERENCE)


@functools.cache
def flops_per_token(name: str) -> float:
    """Returns the FLOPs of a training step per token of text, in full rows of `SLOTS` slots.

    The model is that of the objective's small run, with an MLP of `MLP_DIM`. The second stack of an
    encoder-decoder has the slots that the objective needs for the text of a row. A mixture has the
    mean over its rows; members whose rates depend on the step have equal rates.
    """
    files = [f"runs/{run_of(name)}.gin", f"objectives/{name}.gin"]
    fields = read_fields(files, [f"models.{CATALOG[name].architecture}.mlp_dim = {MLP_DIM}"])
    objective = with_corpus_classes(fields["objective"](specimen_ids(VOCABULARY)), 2)
    model = fields["model"](VOCABULARY, objective.facts.heads)
    flops = 0.0
    tokens = 0.0
    for member in members_of(objective):
        rate = mean_rate(member.rate)
        text, stacks = _full_row(member.objective, model.layout)
        flops += rate * 3 * model.flops({"predict": stacks.get("decoder", 0)} | stacks)
        tokens += rate * text
    return flops / tokens


def _full_row(objective: Objective, layout_name: str) -> tuple[int, dict[str, int]]:
    """Returns the number of tokens of text in a full row, and the slots of the model's stacks."""
    layout = LAYOUTS[layout_name]
    stack = first_stack(layout.lengths(objective.lengths(2)))
    text = raw_length(objective, layout, **{stack: SLOTS})
    return text, layout.lengths(objective.lengths(text))
