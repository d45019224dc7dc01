"""Suggests commands for a trained or imported model: to train it further, and to apply it."""

import shlex
from collections.abc import Collection, Sequence

from ... import objectives
from ...inference import Trained
from ...inference.trained import MODES, Mode, default_mode, mode_of
from ...models import Model
from ...objectives import Builder, TokenIds, row_groups
from ...objectives.layouts import LAYOUTS
from ...objectives.prompt_forms import PromptForm

_SHORT = {"encoder": 128, "decoder": 64}
# layout -> (run and objective of `pretrax train`, objective, sequence lengths), tried in turn
STARTS: dict[str, list[tuple[str, Builder, list[dict[str, int]]]]] = {
    "decoder": [("decoder", objectives.causal_lm, [{"decoder": 256}])],
    "encoder": [("encoder", objectives.masked_lm, [{"encoder": 128}])],
    "encoder_decoder": [
        ("quickstart", objectives.ul2, [_SHORT, {"encoder": 128, "decoder": 128}]),
        ("quickstart --objective=span_corruption", objectives.span_corruption, [_SHORT]),
    ],
}


def next_lines(
    run_dir: str, trained: Trained, rows: int, shown_mode: str | None = None
) -> list[str]:
    """Returns lines for an imported model with a tokenizer: added rows, and commands.

    Args:
      rows: number of rows of the run's embedding, which may exceed the model's.
      shown_mode: the mode to show if the model's training is not known. None: the layout's mode.
    """
    model = trained.model
    ids = trained.ids
    lines = []
    if rows > model.vocab_size:
        lines.append(
            f"The tokenizer has {ids.size} ids, the model's embedding {model.vocab_size} rows: "
            f"{rows - model.vocab_size} were added, each the mean of the others."
        )
    lacking = (
        "The tokenizer lacks special tokens that an objective needs: import it with "
        "--specials=mask,cls,sep (an encoder) or --sentinels=128 --specials=R,S,X (an "
        "encoder-decoder)."
    )
    train = train_command(run_dir, model, ids)
    lines.append(f"To train it further: {train}" if train else lacking)
    return [*lines, f"To apply it: {predict_command(run_dir, trained, shown_mode)}"]


def tokenizer_lines(arguments: str, run_dir: str) -> list[str]:
    """Returns lines for a model without a tokenizer. `arguments` are the options of its import."""
    return [
        "The model came without a tokenizer, so it cannot read text. Delete "
        f"{run_dir} and give the model's own tokenizer, a SentencePiece .model or tokenizer.json:",
        f"  pretrax convert {arguments} --tokenizer=FILE",
    ]


def train_command(run_dir: str, model: Model, ids: TokenIds) -> str | None:
    """Returns a command that trains the model on text files.

    Returns None if the special tokens in `ids` do not suffice for any objective.
    """
    longest = model.max_positions or 256
    for names, objective, lengths in STARTS[model.layout]:
        shapes = [{k: min(n, longest) for k, n in shape.items()} for shape in lengths]
        try:
            row_groups(objective(ids), LAYOUTS[model.layout], ids, shapes)
        except ValueError:  # the vocabulary lacks special tokens
            continue
        value = shapes[0] if len(shapes) == 1 else shapes
        return (
            f"pretrax train {names} --data='texts/*.txt' "
            f"--gin_file={shlex.quote(run_dir + '/config.gin')} "
            f'--run_dir={shlex.quote(run_dir + "_2")} --gin.training.Run.sequence_lengths="{value}"'
        )
    return None


def predict_command(
    run_dir: str, trained: Trained, shown_mode: str | None = None, trusted: Collection[str] = ()
) -> str:
    """Returns a command that applies a model to a text as it was trained.

    Args:
      shown_mode: the mode for a model whose training is not known. None: the layout's mode.
    """
    usual = mode_of(trained)
    mode = usual if trained.prompt_forms else shown_mode or usual
    if mode == "mask" and trained.ids.mask is None:
        mode = "embed"
    words = ["pretrax", "predict", f"--run={run_dir}", *(f"--trust={name}" for name in trusted)]
    words += [f"--mode={mode}"] * (mode != usual)
    return f"{shlex.join(words)} {_inputs(trained, mode)}"


def text_arguments(model: Model, forms: Sequence[PromptForm]) -> str:
    """Returns the arguments of `pretrax predict` for a model's usual mode: TEXT for each text."""
    return _example(default_mode(model, forms))


def _inputs(trained: Trained, mode: str) -> str:
    mask = trained.ids.mask
    if mode == "restore" and not trained.prompt_forms and mask is not None:
        mode = "mask"  # an imported model was probably trained to restore masked text
    example = _example(mode).replace("[MASK]", "" if mask is None else trained.decode([mask]))
    for text in ("The capital of France is", "and a large city."):
        example = example.replace("TEXT", text, 1)
    return example


def _example(mode: str) -> str:
    return MODES[mode].example if mode in MODES else Mode.example
