"""The settings that every gin file gives, pinned by checksums: to rearrange files changes none.

`python -m tests.test_gin_settings` renews the checksums; with names of files, such as
`models/gpt2.gin`, it prints their settings, to compare with those of another version.
"""

import hashlib
import json
import sys
from pathlib import Path

import pytest

from pretrax.comparison import Comparison
from pretrax.comparison.variants import read_comparison, runs_of_variants
from pretrax.preprocessing import Preparation
from pretrax.settings.bound import flattened
from pretrax.settings.gin_reader import named_gin_files
from pretrax.training.run import Run, fields_of
from tests.training import tiny

PINNED = Path(__file__).with_suffix(".json")
FILES = named_gin_files()


def settings_of(file: str) -> list[str]:
    """Every setting of a file on a line; of a comparison, also those of its variants' runs."""
    folder, name = file.removesuffix(".gin").split("/")
    if folder == "comparisons":
        comparison = read_comparison(name)
        values = vars(comparison) | {
            f"run of {variant}": fields_of(run)
            for variant, run in runs_of_variants(comparison).items()
        }
    else:
        targets = {"budgets": Comparison, "preprocessing": Preparation}
        values = tiny.completed(file, targets.get(folder, Run))
    return sorted(f"{path} = {value!r}" for path, value in flattened(folder, values))


def checksum(file: str) -> str:
    return hashlib.sha256("\n".join(settings_of(file)).encode()).hexdigest()[:8]


def test_every_gin_file_is_pinned():
    assert sorted(json.loads(PINNED.read_text())) == FILES, "python -m tests.test_gin_settings"


@pytest.mark.parametrize("file", FILES)
def test_a_gin_file_gives_the_settings_that_are_pinned(file):
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
