"""The gin files of known models: sizes, families, sharding, and the loss of fresh tiny models."""

import dataclasses
import fnmatch
import functools
import math
import pathlib
import re
from typing import NamedTuple

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import AbstractMesh, AxisType

from pretrax import objectives
from pretrax.models import builders
from pretrax.models.config import Config
from pretrax.models.experts import active_parameters
from pretrax.models.hugging_face import FAMILIES, family_of
from pretrax.training.devices.mesh import AXES, shardings_of
from pretrax.training.run_configuration import read_fields
from pretrax.training.step import make_batches
from tests.training import tiny

FOLDER = pathlib.Path(__file__).parents[2] / "gin_configs" / "models"
GIN_FILES = {path.stem: path for path in sorted(FOLDER.glob("*.gin"))}


class Preset(NamedTuple):
    family: str  # model_type
    like: str  # preset that has the same settings, except for sizes
    vocab_size: int  # published size of the vocabulary
    parameters: int  # published number of parameters
    also: tuple = ()  # further settings that differ


# Numbers of parameters. `transformers` 5.23 counts them as sum(p.numel() for p in
# model.parameters()), for the class that the family exports. The model is on the meta device and
# has the shape of the gin file's source. For T5 1.1, umT5 and UL2, lm_head (vocabulary times width)
# is added: their checkpoints have it, but that version ties it in a new model. For BART,
# final_logits_bias is left out, since it is a buffer of zeros and not a parameter.
PRESETS = {
    "t5_small": Preset("t5", "t5_base", 32_128, 60_506_624),
    "t5_base": Preset("t5", "t5_base", 32_128, 222_903_552),
    "t5_large": Preset("t5", "t5_base", 32_128, 737_668_096),
    "t5_3b": Preset("t5", "t5_base", 32_128, 2_851_598_336),
    "t5_11b": Preset("t5", "t5_base", 32_128, 11_307_321_344),
    "t5_1_1_small": Preset("t5", "t5_1_1_base", 32_128, 76_961_152),
    "t5_1_1_base": Preset("t5", "t5_1_1_base", 32_128, 247_577_856),
    "t5_1_1_large": Preset("t5", "t5_1_1_base", 32_128, 783_150_080),
    "t5_1_1_xl": Preset("t5", "t5_1_1_base", 32_128, 2_849_757_184),
    "t5_1_1_xxl": Preset("t5", "t5_1_1_base", 32_128, 11_135_332_352),
    "ul2_20b": Preset("t5", "t5_1_1_base", 32_128, 19_591_209_984, ("mlp_activations",)),
    "umt5_base": Preset(
        "umt5", "t5_1_1_base", 256_384, 592_043_520, ("relative_in_every_layer", "scale_logits")
    ),
    "bert_base": Preset("bert", "bert_base", 30_522, 110_106_428),
    "bert_large": Preset("bert", "bert_base", 30_522, 336_226_108),
    "roberta_base": Preset("roberta", "roberta_base", 50_265, 124_697_433),
    "roberta_large": Preset("roberta", "roberta_base", 50_265, 355_412_057),
    # XLM-R is a RoBERTa with another vocabulary, and is exported as RoBERTa.
    "xlm_r_base": Preset("roberta", "roberta_base", 250_002, 278_295_186),
    "distilbert_base": Preset("distilbert", "distilbert_base", 30_522, 66_985_530),
    "electra_small": Preset("electra", "electra_base", 30_522, 13_549_057, ("embedding_dim",)),
    "electra_base": Preset("electra", "electra_base", 30_522, 109_483_009),
    "modernbert_base": Preset("modernbert", "modernbert_base", 50_368, 149_655_232),
    "modernbert_large": Preset("modernbert", "modernbert_base", 50_368, 395_881_664),
    "mmbert_base": Preset(
        "modernbert", "modernbert_base", 256_000, 307_786_240, ("local_rope_theta",)
    ),
    "ettin_decoder_150m": Preset("modernbert-decoder", "ettin_decoder_150m", 50_368, 149_655_232),
    # Without the head for contacts.
    "esm2_8m": Preset("esm", "esm2_8m", 33, 7_512_353),
    "esm2_35m": Preset("esm", "esm2_8m", 33, 33_501_153),
    "esm2_150m": Preset("esm", "esm2_8m", 33, 148_139_553),
    "esm2_650m": Preset("esm", "esm2_8m", 33, 651_042_593),
    "eurobert_210m": Preset("eurobert", "eurobert_210m", 128_256, 310_266_624),
    "bart_base": Preset("bart", "bart_base", 50_265, 139_420_416),
    "bart_large": Preset("bart", "bart_base", 50_265, 406_291_456),
    "mbart_large": Preset("mbart", "mbart_large", 250_027, 610_851_840),
    "pegasus_large": Preset("pegasus", "pegasus_large", 96_103, 570_797_056),
    "gpt2": Preset("gpt2", "gpt2", 50_257, 124_439_808),
    "gpt2_medium": Preset("gpt2", "gpt2", 50_257, 354_823_168),
    "gpt2_large": Preset("gpt2", "gpt2", 50_257, 774_030_080),
    "gpt2_xl": Preset("gpt2", "gpt2", 50_257, 1_557_611_200),
    "llama3_1b": Preset("llama", "llama3_1b", 128_256, 1_235_814_400),
    "llama3_3b": Preset("llama", "llama3_1b", 128_256, 3_212_749_824),
    "llama3_8b": Preset(
        "llama", "llama3_1b", 128_256, 8_030_261_248, ("logits_via_embedding", "rope_scaling")
    ),
    "qwen3_0_6b": Preset("qwen3", "qwen3_0_6b", 151_936, 596_049_920),
    "qwen3_1_7b": Preset("qwen3", "qwen3_0_6b", 151_936, 1_720_574_976),
    "qwen3_4b": Preset("qwen3", "qwen3_0_6b", 151_936, 4_022_468_096),
    "qwen3_8b": Preset("qwen3", "qwen3_0_6b", 151_936, 8_190_735_360, ("logits_via_embedding",)),
    "mistral_7b": Preset("mistral", "mistral_7b", 32_000, 7_241_732_096),
    "qwen2_0_5b": Preset("qwen2", "qwen2_0_5b", 151_936, 494_032_768),
    "qwen2_7b": Preset("qwen2", "qwen2_0_5b", 152_064, 7_615_616_512, ("logits_via_embedding",)),
    "gemma2_2b": Preset("gemma2", "gemma2_2b", 256_000, 2_614_341_888),
    "gemma2_9b": Preset("gemma2", "gemma2_2b", 256_000, 9_241_705_984),
    "gemma3_270m": Preset("gemma3_text", "gemma3_270m", 262_144, 268_098_176),
    "gemma3_1b": Preset("gemma3_text", "gemma3_270m", 262_144, 999_885_952),
    "t5gemma_2b_2b": Preset("t5gemma", "t5gemma_2b_2b", 256_000, 5_596_853_760),
    # Without the image tower, and without the embedding that ends an image.
    "t5gemma2_270m_270m": Preset("t5gemma2", "t5gemma2_270m_270m", 262_144, 368_424_192),
    "olmo2_1b": Preset("olmo2", "olmo2_1b", 100_352, 1_484_916_736),
    "olmo2_7b": Preset("olmo2", "olmo2_1b", 100_352, 7_298_617_344),
    "mixtral_8x7b": Preset("mixtral", "mixtral_8x7b", 32_000, 46_702_792_704),
    "qwen3_moe_30b_a3b": Preset("qwen3_moe", "qwen3_moe_30b_a3b", 151_936, 30_532_122_624),
    "olmoe_1b_7b": Preset("olmoe", "olmoe_1b_7b", 50_304, 6_919_161_856),
    "switch_base_8": Preset("switch_transformers", "switch_base_8", 32_128, 619_339_008),
}
# These sizes are not published. The tests count what the files contain.
TINY = {
    "t5_tiny": Preset("t5", "t5_base", 512, 853_760),
    "t5_1_1_tiny": Preset("t5", "t5_1_1_base", 512, 919_296),
    "ul2_tiny": Preset("t5", "ul2_20b", 512, 919_296),
    "bert_tiny": Preset("bert", "bert_base", 512, 925_954),
    "roberta_tiny": Preset("roberta", "roberta_base", 512, 909_312),
    "modernbert_tiny": Preset("modernbert", "modernbert_base", 512, 739_072),
    "bart_tiny": Preset("bart", "bart_base", 512, 926_208),
    "gpt2_tiny": Preset("gpt2", "gpt2", 512, 891_648),
    "llama3_tiny": Preset("llama", "llama3_1b", 512, 803_712),
    "mixtral_tiny": Preset("mixtral", "mixtral_8x7b", 512, 2_495_616),
    "switch_tiny": Preset("switch_transformers", "switch_base_8", 512, 1_642_240),
    "qwen3_tiny": Preset("qwen3", "qwen3_0_6b", 512, 804_096),
    "gemma3_tiny": Preset("gemma3_text", "gemma3_270m", 512, 953_856),
    "t5gemma2_tiny": Preset("t5gemma2", "t5gemma2_270m_270m", 512, 1_842_176),
}
KNOWN = PRESETS | TINY
# These presets belong to no family. The small runs include them.
OWN = {
    "decoder_8m": (4096, 8_395_008),
    "decoder_slowrun": (50_304, 304_354_304),
    "decoder_small": (50_304, 123_587_328),
    "decoder_tiny": (512, 935_040),
    "encoder_8m": (4096, 8_395_520),
    "encoder_decoder_8m": (4096, 8_394_496),
    "encoder_decoder_tiny": (512, 919_296),
    "encoder_tiny": (512, 787_840),
}
# Settings that define a size, and how they are computed.
SIZES = {
    *("vocab_size", "num_encoder_layers", "num_decoder_layers", "emb_dim", "num_heads"),
    *("num_kv_heads", "head_dim", "mlp_dim", "max_positions", "window", "encoder_window"),
    *("dtype", "remat_policy"),
}
DEFAULTS = {
    "decoder": builders.LLAMA,
    "encoder": builders.MODERN_BERT,
    "encoder_decoder": builders.T5_1_1,
}


def builder_of(name):
    return read_fields([str(GIN_FILES[name])])["model"].function.__name__


def model_of(name, vocab_size, heads=None, **settings):
    """Returns the model of a gin file.

    By default it has the heads of the published class.
    """
    published = {"bert": ("vocabulary", "pair"), "electra": ("replaced",)}
    heads = heads or published.get(name.partition("_")[0], ("vocabulary",))
    return read_fields([str(GIN_FILES[name])])["model"](vocab_size, heads, **settings)


@functools.cache
def boxed_shapes(name, vocab_size):
    """Returns the shapes of all parameters with the names of their axes, and allocates nothing."""
    row = jax.ShapeDtypeStruct((1, 8), np.int32)
    intervals = jax.ShapeDtypeStruct((1, 2, 8), np.int32)
    batch = {"cross_key_intervals": intervals}
    for stack in ("encoder", "decoder"):
        batch |= {f"{stack}_{name}": row for name in ("input_tokens", "segment_ids", "positions")}
        batch[f"{stack}_key_intervals"] = intervals
    return jax.eval_shape(model_of(name, vocab_size).init, jax.random.key(0), batch)


def count(name, vocab_size):
    return sum(math.prod(x.shape) for x in jax.tree.leaves(boxed_shapes(name, vocab_size)))


@pytest.mark.parametrize("name", GIN_FILES)
def test_gin_file_sets_builder_or_includes_one_that_does(name):
    def included(name):
        return re.findall(r'include "models/(\w+)\.gin"', GIN_FILES[name].read_text())

    assert len(included(name)) == ("training.Run.model = " not in GIN_FILES[name].read_text())
    assert not any(included(other) for other in included(name))


@pytest.mark.parametrize("name", GIN_FILES)
def test_gin_files_do_not_repeat_builder_defaults(name):
    text = GIN_FILES[name].read_text()
    if "training.Run.model = " not in text:
        return  # a file may undo bindings of the file that it includes
    settings = read_fields([str(GIN_FILES[name])])["model"].settings
    fields = {field.name: field.default for field in dataclasses.fields(Config)}
    defaults = fields | DEFAULTS[builder_of(name)]
    sizes = SIZES | {"num_layers"}
    assert {k: v for k, v in settings.items() if k not in sizes and v == defaults[k]} == {}


def test_every_gin_file_has_a_test_entry():
    assert set(GIN_FILES) == set(KNOWN) | set(OWN)


@pytest.mark.sampled
@pytest.mark.parametrize("name", KNOWN)
def test_active_parameter_counts(name):
    params = nn.unbox(boxed_shapes(name, KNOWN[name].vocab_size))
    config = model_of(name, KNOWN[name].vocab_size).config
    active = active_parameters(params, config)
    if not config.num_experts:
        assert active == KNOWN[name].parameters
        return
    assert active < KNOWN[name].parameters
    if name in PRESETS:
        assert f"; {active / 1e9:.1f} billion are active.\n" in GIN_FILES[name].read_text()


@pytest.mark.sampled
@pytest.mark.parametrize("name", GIN_FILES)
def test_gin_files_start_with_name_size_and_source(name):
    known = KNOWN.get(name)
    vocab_size, parameters = (known.vocab_size, known.parameters) if known else OWN[name]
    comment = GIN_FILES[name].read_text().partition("\n\n")[0]
    assert count(name, vocab_size) == parameters
    first = re.sub(r"\s*\n# ", " ", comment)
    assert f": {parameters:,} parameters with a vocabulary of {vocab_size:,}" in first
    if name in PRESETS:
        assert "\n# Shape: " in comment and "https://" in comment
    if name in TINY:
        assert f"\n# Settings: as {known.like}.gin, except for the sizes." in comment


@pytest.mark.parametrize("name", KNOWN)
def test_preset_has_expected_family(name):
    config = model_of(name, KNOWN[name].vocab_size).config
    assert family_of(config) is FAMILIES[KNOWN[name].family]


@pytest.mark.slow
def test_family_presets_match_exactly_their_gin_files():
    for name in GIN_FILES:
        matching = [
            family
            for family in FAMILIES.values()
            if any(fnmatch.fnmatch(name, pattern) for pattern in family.presets)
        ]
        config = model_of(name, 512).config
        if matching:
            assert [family_of(config)] == matching, name
        else:
            with pytest.raises(ValueError) as caught:
                family_of(config)
            assert re.search(r"models/\w+\*\.gin", str(caught.value))


@pytest.mark.parametrize("name", KNOWN)
def test_presets_of_one_model_differ_only_in_sizes(name):
    ours, base = (model_of(n, KNOWN[n].vocab_size).config for n in (name, KNOWN[name].like))
    differ = {
        field.name
        for field in dataclasses.fields(ours)
        if getattr(ours, field.name) != getattr(base, field.name)
    }
    assert differ - SIZES == set(KNOWN[name].also)
    # All sizes of a model either have a setting or lack it.
    for switch in ("num_kv_heads", "max_positions", "window"):
        assert bool(getattr(ours, switch)) == bool(getattr(base, switch)), switch
    if ours.positions == "learned":
        assert ours.max_positions >= 256


MESH = {"data": 2, "fsdp": 8, "expert": 1, "context": 1, "tensor": 4}
SPREAD = {"vocab": "tensor", "heads": "tensor", "mlp": "tensor", "embed": "fsdp"}
LARGE = 750_000
# Parameters that only one mesh axis divides, and the reason.
ONE_AXIS = {
    "position_embedding": "no axis but embed: a row is looked up for each place",
    "experts/router": "no axis but embed: a router has a column for each expert",
    "vocabulary/layer": "embed by embed, of which one is spread: its output is normed whole",
}
INDIVISIBLE = {
    *{("t5_1_1_small", "heads", 6), ("gpt2_xl", "heads", 25)},
    *{("qwen2_0_5b", "heads", 14), ("qwen2_0_5b", "heads", 2)},
    *((name, "heads", 1) for name in ("gemma3_270m", "gemma3_1b", "t5gemma2_270m_270m")),
}


def kind_of(path):
    """Returns the kind of a parameter, for any stack and layer."""
    keys = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
    above = ("encoder", "decoder", "layers", "first_layer")
    keys = [key for key in keys if key not in above and not key.startswith("repeated_")]
    return re.sub(r"^(self|cross)_", "", "/".join(keys))


def spread_of(kind, names, shape, spec, preset):
    """Returns (mesh axes, remarks) of a large parameter, after checking the mesh axes."""
    used, remarks = [], []
    for name, size, axis in zip(names, shape, spec):
        wanted, axis = SPREAD.get(name), axis if MESH.get(axis) != 1 else None
        if wanted and size % MESH[wanted]:
            assert (preset, name, size) in INDIVISIBLE, f"{kind}: {name} of {size} by {wanted}"
            remarks.append(f"{size} {name} do not split in {MESH[wanted]}")
            wanted = None
        assert axis == wanted, f"{kind}: {name} of {size} is over {axis}, expected {wanted}"
        used += [axis] if axis else []
    one_axis = next((why for end, why in ONE_AXIS.items() if kind.endswith(end)), None)
    if one_axis:
        remarks.append(one_axis)
    expected = ["fsdp"] if remarks else ["fsdp", "tensor"]
    assert sorted(used) == expected, f"{kind} is over {used}, expected {expected}"
    return used, remarks


@pytest.mark.sampled
@pytest.mark.parametrize("name", PRESETS)
def test_large_parameters_are_sharded(name):
    """`pytest -n 0 -s -k sharded tests/models/test_presets.py` prints the table."""
    mesh = AbstractMesh(tuple(MESH.values()), AXES, axis_types=(AxisType.Auto,) * len(AXES))
    published = PRESETS[name].vocab_size
    # If the vocabulary does not split, training adds rows of padding to the model.
    vocab_size = published if published % MESH["tensor"] == 0 else -(-published // 128) * 128
    boxed = boxed_shapes(name, vocab_size)
    leaves = jax.tree_util.tree_leaves_with_path(
        boxed, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned)
    )
    shardings = jax.tree.leaves(shardings_of(boxed, mesh))
    table, total, held, small = {}, 0, 0, set()
    for (path, box), sharding in zip(leaves, shardings, strict=True):
        shape, spec = box.value.shape, sharding.spec
        total, held = total + box.value.size, held + math.prod(sharding.shard_shape(shape))
        kind = kind_of(path)
        if box.value.size <= LARGE:  # such as the embedding of 33 amino acids and special tokens
            small.add(kind)
            continue
        used, remarks = spread_of(kind, box.names, shape, spec, name)
        table[kind] = (box.names, shape, spec, math.prod(MESH[axis] for axis in used), remarks)
    # All but the small parameters are split into 32 parts, or into 8 if heads do not split.
    rows = "" if vocab_size == published else f", {published:,} rounded up to 128"
    print(
        f"\n{name}: vocabulary {vocab_size:,}{rows}; a device holds {held:,} of {total:,}, "
        f"1 / {total / held:.1f}"
    )
    for kind, (names, shape, spec, parts, remarks) in table.items():
        axes = (f"{n}={s}" + (f"/{a}" if a else "") for n, s, a in zip(names, shape, spec))
        print(f"  {kind:<22} {' '.join(axes):<58} 1/{parts:<3} {'; '.join(remarks)}".rstrip())
    mlp = "experts" if "experts/wi_0" in table else "mlp"
    assert {"token_embedding", f"{mlp}/wi_0", f"{mlp}/wo", "attention/query"} <= {*table, *small}


IDS = tiny.IDS._replace(
    size=128, mask=120, cls=121, sep=122, sentence_ends=objectives.bitmap(np.arange(128) % 7 == 3)
)
BERT = functools.partial(
    objectives.then,
    first=objectives.next_sentence_prediction,
    second=functools.partial(objectives.masked_lm, framed=False),
)
OBJECTIVES = {  # builder: (objective, lengths as in the small runs)
    "encoder": (objectives.masked_lm, {"encoder": 128}),
    "decoder": (objectives.causal_lm, {"decoder": 256}),
    "encoder_decoder": (objectives.span_corruption, {"encoder": 128, "decoder": 64}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_loss_of_fresh_tiny_presets_is_near_chance(name):
    """Rows are as long as in the small runs. tests/parity compares gradients of each family."""
    make, lengths = OBJECTIVES[builder_of(name)]
    objective = (BERT if name == "bert_tiny" else make)(IDS)
    model = model_of(name, 128, objective.facts.heads, remat_policy="none")
    plan = tiny.plan(model, objective, lengths, batch_size=4, data_shards=4)
    rows = next(tiny.batches(plan, tiny.mesh_of(1), data_shards=4))

    @jax.jit
    def fresh_losses(key, rows):
        (batch,) = make_batches(plan.recipe, key, rows)
        params = nn.unbox(builders.fresh_params(model, key))
        terms = objective.loss(batch).scored(model.apply(params, batch))
        return {name: term.sums.sum() / term.weights.sum() for name, term in terms.items()}

    losses = fresh_losses(jax.random.key(0), rows)
    assert all(np.isfinite(loss) for loss in losses.values())
    chance = np.log(128)
    # The losses of T5 and Switch are the largest (1.5): tied logits favor the input token.
    assert 0.95 * chance < losses["tokens"] < 1.6 * chance
