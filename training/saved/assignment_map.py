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
    source_config, run_config = (model and model(128, VOCABULARY).config for model in models)
    if not (source_config and run_config):
        return
    if differences := different_layers(source_config, run_config):
        raise ValueError(
            f"The layers of {run.initial_run} and of this model differ, so that parameters of "
            f"training.Run.assignment_map would have another meaning: "
            f"{'; '.join(differences)}. Configure the layers as in that run's config.gin."
        )


def different_layers(source_config: Config, run_config: Config) -> list[str]:
    in_source = resolved_settings(source_config)
    in_run = resolved_settings(run_config)
    compared = [name for name in in_source if name not in (*TRAINING_FIELDS, *ADAPTED)]
    different = [name for name in compared if in_source[name] != in_run[name]]
    return [f"{name}: there {in_source[name]!r}, here {in_run[name]!r}" for name in different]
