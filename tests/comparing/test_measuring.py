"""What `pretrax evaluate --yardstick` keeps of its figures."""

import json
from types import SimpleNamespace

from pretrax.comparing import measuring
from pretrax.comparing.figures import LOWER, Figure
from pretrax.training.bound import Bound


def sized(subject, *, layers=(), text=b"", times: int = 1) -> list[Figure]:
    return [Figure("sized", len(layers) * times, "layers", LOWER)]


def test_settings_that_json_lacks_are_kept_with_the_defaults(tmp_path):
    subject = SimpleNamespace(directory=str(tmp_path), step=3)
    measuring.measured(subject, {"sized": Bound(sized, layers={"c", "a", "b"}, text=b"x")})
    line = json.loads((tmp_path / "evaluation/yardsticks.jsonl").read_text())
    assert line["settings"] == {
        "yardstick": "tests.comparing.test_measuring.sized",
        "yardstick.layers": ["a", "b", "c"],  # the same in every process
        "yardstick.text": "b'x'",
        "yardstick.times": 1,
    }
