"""The benchmark against PyTorch: both take the same first step."""

import contextlib
import re

import pytest

from benchmarks import compare_with_torch
from tests.refusals import refuses

TINY = {
    "gpt2": compare_with_torch.Measured(
        file="gpt2", mlp=2, layers={"num_layers": 1}, lengths={"decoder": 8}
    )
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_first_step_matches_torch(monkeypatch, capsys, dtype):
    # Compiling takes half a minute, and this test does not use the speed.
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    monkeypatch.setattr(compare_with_torch, "VOCABULARY", 64)
    compare_with_torch.compare(2, 1, width=64, dtype=dtype, models=TINY)
    time = r" +[\d,]+\.\d+ m?s"
    assert re.search(rf"gpt2 +\d.* 2 × 8{time}{time} +\d", capsys.readouterr().out)


def test_different_losses_exit(monkeypatch):
    @contextlib.contextmanager
    def theirs(folder, dtype):
        yield lambda: (2.0, 1.0)

    monkeypatch.setattr(compare_with_torch, "torch_steps", theirs)
    monkeypatch.setattr(compare_with_torch, "our_steps", lambda *_: lambda: (4.0, 1.0))
    with refuses(SystemExit, "4.0", "2.0"):
        compare_with_torch.compare(2, 1, width=64, dtype="float32", models=TINY)
