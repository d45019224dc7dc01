"""Commands that are killed at random moments and repeated write the same files in the end."""

import pytest

from pretrax.settings.run_directory import is_run
from tests import conversion
from tests.comparison import small
from tests.preprocessing import planted
from tests.preprocessing.planted import LOG
from tests.storm.commands import start, storm, timed
from tests.training import tiny

pytestmark = pytest.mark.storm


def test_killed_prepare_writes_same_files(draw, tmp_path):
    planted.write_raw(tmp_path / "raw.jsonl")
    raw = str(tmp_path / "raw.jsonl")

    def begin(out):
        arguments = planted.arguments(raw, tmp_path / out, f"--workers={draw.choice([1, 2])}")
        return start("prepare", *arguments)

    lasts = timed(lambda: begin("whole"))
    storm(lambda: begin("killed"), draw, lasts)
    assert planted.tree(tmp_path / "killed", LOG) == planted.tree(tmp_path / "whole", LOG)


def test_killed_compare_writes_same_figures(draw, tmp_path):
    whole, killed = (small.write(tmp_path / name) for name in ("whole", "killed"))

    def begin(file):
        return start("compare", file, "--gin.SEEDS=[0]", "--workers=2")

    lasts = timed(lambda: begin(whole))
    storm(lambda: begin(killed), draw, lasts)
    found, expected = (small.figures(tmp_path / name / "compared") for name in ("killed", "whole"))
    assert found == expected


def test_killed_convert_writes_same_files(draw, tmp_path):
    source, _ = conversion.written(tmp_path / "hf", conversion.bert())
    conversion.word_pieces(tmp_path / "hf")

    def read_in(out):
        return start("convert", f"--from=hf:{source}", f"--to={tmp_path / out}")

    lasts = timed(lambda: read_in("whole"))
    storm(lambda: read_in("killed"), draw, lasts, lambda: is_run(str(tmp_path / "killed")))
    arrays = [tiny.saved_arrays(tmp_path / out, 0) for out in ("killed", "whole")]
    tiny.assert_same(*arrays)
    others = [
        {k: v for k, v in planted.tree(tmp_path / out, "config.gin").items() if "points/" not in k}
        for out in ("killed", "whole")
    ]
    assert others[0] == others[1]

    def write_out(out):
        return start("convert", f"--from={tmp_path}/whole", f"--to=hf:{tmp_path / out}")

    lasts = timed(lambda: write_out("exported"))
    storm(lambda: write_out("again"), draw, lasts, (tmp_path / "again").exists)
    assert planted.tree(tmp_path / "again") == planted.tree(tmp_path / "exported")
    assert not list(tmp_path.glob("*.partial"))
