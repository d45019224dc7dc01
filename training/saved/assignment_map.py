"""Checks an assignment map, which renames parameters of another run for a warm start."""

import re
from collections.abc import Collection

from ...models.config import Config
from ...models.hugging_face import TRAINING_FIELDS, resolved_settings
from ...objectives.contract import VOCABULARY
from ...settings import run_directory
from ..run import Run
from ..run_configuration import read_directory

# Fields of `Config` in which an encoder-decoder may differ from the decoder that it begins as: the
# number of layers of a stack, what joins the stacks, heads, and a stretch for longer texts.
ADAPTED = """
    num_encoder_layers num_decoder_layers encoder_window merged_attention rotate_encoded
    share_encoder_decoder_embeddings classifier_layer rope_scaling
""".split()


def check_assignment_map(run: Run, trusted: Collection[str] = ()) -> None:
    """Raises ValueError for an assignment map that cannot work.

    The map may have no initial run, or a broken pattern. Or the layers of the two models may differ
    in more than their number. Shapes alone would not show different positions or norms.
    """
    if not run.assignment_map:
        return
    if run.initial_run is None:
        raise ValueError(
            "Got training.Run.assignment_map without training.Run.initial_run, the run whose "
            "parameters the map names: set initial_run, or leave the map out."
        )
    for pattern, name in run.assignment_map.items():
        try:
            re.sub(pattern, name, "")
        except (re.error, IndexError) as error:
            raise ValueError(
                f"Got {pattern!r}: {name!r} in training.Run.assignment_map, expected a regular "
                f"expression and a name with its groups as \\1, \\2, …: {error}."
            ) from error
    if not run_directory.is_run(run.initial_run):
        return  # checkpoints without a run have only names and shapes to compare
    models = read_directory(run.initial_run, trusted).get("model"), run.model
    there, here = (model and model(128, VOCABULARY).config for model in models)
    if there and here and (differ := different_layers(there, here)):
        raise ValueError(
            f"The layers of {run.initial_run} and of this model differ, so that parameters of "
            f"training.Run.assignment_map would have another meaning: "
            f"{'; '.join(differ)}. Configure the layers as in that run's config.gin."
        )


def different_layers(there: Config, here: Config) -> list[str]:
    one = resolved_settings(there)
    other = resolved_settings(here)
    compared = [name for name in one if name not in (*TRAINING_FIELDS, *ADAPTED)]
    differ = [name for name in compared if one[name] != other[name]]
    return [f"{name}: there {one[name]!r}, here {other[name]!r}" for name in differ]
