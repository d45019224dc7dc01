"""Checksums of the settings of every gin file, including defaults.

They allow files to be rearranged safely. A file may state or leave out defaults.

`python -m tests.test_gin_settings` updates the checksums. With names of files, such as
`models/gpt2.gin`, it prints their settings, for comparison with another version.
"""

import dataclasses
import hashlib
import inspect
import json
import sys
from pathlib import Path

import pytest

from pretrax import models
from pretrax.comparison import Comparison
from pretrax.comparison.variants import read_comparison, runs_of_variants
from pretrax.models import builders
from pretrax.models.config import Config
from pretrax.preprocessing import Preparation
from pretrax.settings.gin_reader import named_gin_files
from pretrax.settings.partial import Partial, flattened
from pretrax.training.run import Run, fields_of
from tests.training import tiny

PINNED = Path(__file__).with_suffix(".json")
FILES = named_gin_files()
# Objectives that change settings of a model are read after a file that chooses the model.
BEFORE = {"objectives/block_diffusion_encoder_decoder.gin": "models/encoder_decoder_tiny.gin"}
# The builders of models, which take all fields of `Config`, with their defaults.
BUILDERS = {
    models.encoder_decoder: builders.T5_1_1,
    models.decoder: builders.LLAMA,
    **dict.fromkeys(
        (
            *(models.encoder, models.electra, models.masked_autoencoder),
            *(models.step_unrolled, models.embedding_denoiser, models.two_towers),
        ),
        builders.MODERN_BERT,
    ),
}


def settings_of(file: str) -> list[str]:
    """Returns all settings of a file, one per line. A comparison includes its variants' runs."""
    folder, name = file.removesuffix(".gin").split("/")
    if folder == "comparisons":
        comparison = read_comparison(name)
        values = vars(comparison) | {
            f"run of {variant}": fields_of(run)
            for variant, run in runs_of_variants(comparison).items()
        }
    else:
        targets = {"budgets": Comparison, "preprocessing": Preparation}
        before = [BEFORE[file]] if file in BEFORE else []
        values = tiny.completed(file, targets.get(folder, Run), before)
    return sorted(f"{path} = {value!r}" for path, value in flattened(folder, effective(values)))


def effective(value):
    """Returns a value in which models also have the defaults of their builders."""
    if isinstance(value, dict):
        return {key: effective(inner) for key, inner in value.items()}
    if not isinstance(value, Partial) or value.function not in BUILDERS:
        return value
    named = inspect.signature(value.function).parameters.values()
    own = {one.name: one.default for one in named if one.kind is not one.VAR_KEYWORD}
    fields = {field.name: field.default for field in dataclasses.fields(Config)}
    settings = fields | own | BUILDERS[value.function] | dict(value.settings)
    absent = (dataclasses.MISSING, inspect.Parameter.empty)
    return Partial(value.function, **{k: v for k, v in settings.items() if v not in absent})


def checksum(file: str) -> str:
    return hashlib.sha256("\n".join(settings_of(file)).encode()).hexdigest()[:8]


def test_every_gin_file_has_a_checksum():
    assert sorted(json.loads(PINNED.read_text())) == FILES, "python -m tests.test_gin_settings"


@pytest.mark.parametrize("file", FILES)
def test_gin_file_settings_match_their_checksum(file):
    found, pinned = checksum(file), json.loads(PINNED.read_text()).get(file)
    assert found == pinned, (
        f"{file} gives other settings than those pinned in {PINNED.name}. To see them: "
        f"`python -m tests.test_gin_settings {file}`, here and in the version before. To pin them: "
        "the same without a file."
    )


if __name__ == "__main__":
    if shown := sys.argv[1:]:
        print("\n".join(line for file in shown for line in settings_of(file)))
    else:
        PINNED.write_text(json.dumps({file: checksum(file) for file in FILES}, indent=0) + "\n")
