"""The benchmark beside PyTorch: both take the same first step."""

import re

import pytest

from benchmarks import beside_torch


def test_steps_of_a_model_beside_torch(monkeypatch, capsys):
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")  # half a minute, for a speed nobody reads here
    monkeypatch.setattr(beside_torch, "VOCABULARY", 64)
    tiny = ("num_layers = 1", "emb_dim = 16", "num_heads = 2", "head_dim = 8", "mlp_dim = 32")
    beside_torch.compare(2, 1, {"gpt2": ("gpt2", tiny, {"decoder": 8})})
    assert re.search(r"gpt2 +\d.* 2 × 8 +\d\.\d\d s +\d\.\d\d s +\d", capsys.readouterr().out)
    monkeypatch.setattr(beside_torch, "our_steps", lambda *_: lambda: (0.0, 1.0))
    with pytest.raises(SystemExit, match=r"gpt2: the first losses are \[0\.0, 4\."):
        beside_torch.compare(2, 1, {"gpt2": ("gpt2", tiny, {"decoder": 8})})
