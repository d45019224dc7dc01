"""Families that are similar to LLaMA, with fields of config.json under other names."""

import pytest

from pretrax.models import builders
from pretrax.models.hugging_face.family import Fields
from pretrax.models.hugging_face.llama import LLAMA, llama_like
from tests.refusals import refuses

RENAMED = {
    "hidden_size": "n_embd",
    "intermediate_size": "ffn_dim",
    "num_key_value_heads": "multi_query_heads",
    "rms_norm_eps": "norm_eps",
}
LLAMA_FIELDS = {
    "vocab_size": 32,
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 16,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}


@pytest.fixture(scope="module")
def family():
    return llama_like("mine", "Mine", renamed=RENAMED)


def has_tensor(name: str) -> bool:
    return name == "lm_head.weight"


def test_renamed_fields_read_like_llama(family):
    renamed_fields = Fields(
        {RENAMED.get(name, name): value for name, value in LLAMA_FIELDS.items()}
    )
    settings = family.settings(renamed_fields, has_tensor)
    assert settings == LLAMA.settings(Fields(LLAMA_FIELDS), has_tensor)
    assert (settings["emb_dim"], settings["mlp_dim"], settings["num_kv_heads"]) == (8, 16, 2)
    assert set(RENAMED.values()) <= renamed_fields.read


def test_llama_names_of_renamed_fields_raise(family):
    with refuses(KeyError, "hidden_size"):
        family.settings(Fields(LLAMA_FIELDS), has_tensor)


def test_renamed_fields_are_written_under_new_names(family):
    settings = LLAMA.settings(Fields(LLAMA_FIELDS), has_tensor)
    config = builders.decoder(32, **settings).config
    written = family.config(config)
    assert not RENAMED.keys() & written.keys()
    llama_names = {renamed: name for name, renamed in RENAMED.items()}
    assert {llama_names.get(name, name): value for name, value in written.items()} == LLAMA.config(
        config
    )
