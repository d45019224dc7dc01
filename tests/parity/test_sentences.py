"""Embeddings and classes of imported models and exported runs agree with `transformers`."""

import json

import jax
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from pretrax.cli import convert, predict
from pretrax.inference.answering.classifying import classify, tag
from pretrax.inference.answering.embeddings import embed
from pretrax.inference.answering.options import Options
from pretrax.inference.decoding.batching import encoder_batch
from pretrax.inference.trained import mode_of
from pretrax.models.hugging_face import sentences
from pretrax.training.trained_models import open_run
from tests.inference import runs
from tests.parity.berts import WIDTHS
from tests.parity.saved_models import BART, BERT_LIKE, GPT2, NAMES, saved
from tests.refusals import exits, refuses

TEXTS = ["the parser", "return a value if it is not None"]

LLAMA = dict(list(WIDTHS.items())[:4])
T5 = dict(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0)
CLS, LANGUAGE = "[CLS] $A [SEP]", "$A [SEP] [MASK]"  # mBART's rows end with the language code
LEFT_TO_RIGHT = [
    ("GPT2", GPT2, CLS),
    ("GPT2", GPT2, "[CLS] $A"),
    ("Llama", LLAMA, CLS),
    ("Bart", BART, CLS),
    ("MBart", BART, LANGUAGE),
    ("MBart", BART, CLS),
    ("T5", T5, "$A [SEP]"),
    ("MT5", T5, "$A [SEP]"),
    ("UMT5", T5, "$A [SEP]"),
]


def converted(folder, source="in", target="run"):
    """Returns our model of a directory of `transformers`, after converting it to a run."""
    convert.main([f"--from=hf:{folder}/{source}", f"--to={folder}/{target}"])
    return open_run(f"{folder}/{target}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, widths, frame",
    LEFT_TO_RIGHT,
    ids=[f"{name}: {frame}" for name, _, frame in LEFT_TO_RIGHT],
)
def test_causal_classifier_matches_and_exports_unchanged(name, widths, frame, tmp_path, capsys):
    """It answers like `transformers` for single texts, and an export of it is unchanged."""
    kind = getattr(transformers, f"{name}ForSequenceClassification")
    model, tokenizer = saved(tmp_path / "in", kind, widths, frame, **NAMES)
    trained = converted(tmp_path)
    assert mode_of(trained) == "classify"
    for text, found in zip(TEXTS, classify(trained, TEXTS)):
        with torch.no_grad():
            p = model(tokenizer(text, return_tensors="pt").input_ids).logits[0].softmax(-1).tolist()
        assert dict(found) == pytest.approx(dict(zip(NAMES["id2label"].values(), p)), abs=1e-5)
    predict.main([f"--run={tmp_path}/run", TEXTS[0]])
    assert max(found, key=lambda pair: pair[1])[0] in capsys.readouterr().out
    convert.main([f"--from={tmp_path}/run", f"--to=hf:{tmp_path}/out"])
    exported, loaded = kind.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not loaded["missing_keys"] and not loaded["unexpected_keys"]
    torch.testing.assert_close(exported.state_dict(), model.state_dict(), atol=0, rtol=0)


@pytest.mark.slow
def test_decoder_tags_match_transformers(tmp_path):
    kind = transformers.GPT2ForTokenClassification
    model, tokenizer = saved(tmp_path / "in", kind, GPT2, **NAMES)
    trained = converted(tmp_path)
    assert mode_of(trained) == "tag"
    ((found),) = tag(trained, TEXTS[1:])
    read = tokenizer(TEXTS[1], return_tensors="pt")
    with torch.no_grad():
        classes = model(read.input_ids).logits[0].argmax(-1).tolist()
    words = read.word_ids(0)
    firsts = [words.index(number) for number in range(len(TEXTS[1].split()))]
    assert [name for _, name in found] == [NAMES["id2label"][classes[at]] for at in firsts]


@pytest.mark.slow
def test_modernbert_classifier_uses_config_pooling(tmp_path):
    _, tokenizer = saved(tmp_path / "tokenizer", transformers.BertModel)
    widths = {name: WIDTHS[name] for name in list(WIDTHS)[:4]}
    config = transformers.ModernBertConfig(
        vocab_size=len(tokenizer),
        **dict(pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3),
        classifier_pooling="mean",
        **widths,
    )
    model = transformers.ModernBertForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path / "in")
    tokenizer.save_pretrained(tmp_path / "in")
    ((found),) = classify(converted(tmp_path), TEXTS[1:])
    with torch.no_grad():
        read = tokenizer(TEXTS[1], return_tensors="pt", return_token_type_ids=False)
        logits = model(**read).logits[0]
    p = torch.softmax(logits, -1).tolist()
    assert dict(found) == pytest.approx({"class 0": p[0], "class 1": p[1]}, abs=1e-5)


def pooled(model, tokenizer, text, pooling, dense=None):
    """Returns the unit vector that `sentence-transformers` computes for a text."""
    with torch.no_grad():
        states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        vector = states[0] if pooling == "cls" else states.mean(0)
        if dense is not None:
            vector = torch.tanh(dense["linear.weight"] @ vector + dense["linear.bias"])
        return torch.nn.functional.normalize(vector, dim=-1).numpy()


def pool_by(folder, **config):
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))


@pytest.mark.sampled
@pytest.mark.parametrize("pooling, ours", [("cls", "first"), ("mean", "mean")])
def test_imported_sentence_model_uses_pooling_of_its_files(pooling, ours, tmp_path):
    model, tokenizer = saved(tmp_path / "in", transformers.BertModel)
    key = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}[pooling]
    pool_by(tmp_path / "in", pooling_mode_max_tokens=False, **{key: True})
    trained = converted(tmp_path)
    assert mode_of(trained) == "embed"
    expected = np.stack([pooled(model, tokenizer, text, pooling) for text in TEXTS])
    np.testing.assert_allclose(embed(trained, TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(embed(trained, TEXTS, Options(pooling=ours)), expected, atol=1e-5)
    with refuses(ValueError, "pooling", f"'{ours}'"):
        embed(trained, TEXTS, Options(pooling={"first": "mean", "mean": "first"}[ours]))
    convert.main([f"--from={tmp_path}/run", f"--to=hf:{tmp_path}/out"])
    kept = json.loads((tmp_path / "out" / "1_Pooling" / "config.json").read_text())
    assert kept[key] and sum(bool(x) for name, x in kept.items() if "mode" in name) == 1
    kinds = [
        module["type"] for module in json.loads((tmp_path / "out" / "modules.json").read_text())
    ]
    assert [kind.split(".")[-1] for kind in kinds] == ["Transformer", "Pooling", "Normalize"]


@pytest.mark.parametrize(
    "pooling, modules, values",
    [
        ({"pooling_mode_max_tokens": True}, [], ["pooling", "max", "cls, mean"]),
        ({"pooling_mode": ["cls", "mean"]}, [], ["pooling", "cls", "mean"]),
        ({"pooling_mode": "mean"}, ["Transformer", "Pooling", "CNN"], ["'CNN'"]),
        (
            {"pooling_mode": "mean"},
            ["Transformer", "Normalize", "Pooling"],
            ["Transformer, Normalize, Pooling", "Transformer, Pooling"],
        ),
    ],
)
def test_unsupported_pooling_modules_raise(pooling, modules, values, tmp_path, capsys):
    saved(tmp_path / "in", transformers.BertModel)
    pool_by(tmp_path / "in", **pooling)
    types = [{"type": f"sentence_transformers.models.{kind}"} for kind in modules]
    (tmp_path / "in" / "modules.json").write_text(json.dumps(types))
    with exits(capsys, *values):
        convert.main([f"--from=hf:{tmp_path}/in", f"--to={tmp_path}/run"])


BERT_LIKE |= dict(positions="learned", max_positions=40, mlp_activations=("gelu_exact",))


@pytest.mark.slow
def test_electra_export_is_its_discriminator(tmp_path, capsys):
    directory = runs.write_run(tmp_path / "run", "electra", "replaced_token_detection", **BERT_LIKE)
    convert.main([f"--from={directory}", f"--to=hf:{tmp_path}/out"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "as ElectraForPreTraining" in printed
    assert "generator, generator_in, gene" in printed
    kind = transformers.ElectraForPreTraining
    model, loaded = kind.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not loaded["missing_keys"] and not loaded["unexpected_keys"]
    run = open_run(directory)
    row = [run.ids.cls, *run.encode(TEXTS[0]), run.ids.sep]
    batch = encoder_batch([row])
    no_targets = {f"encoder_{name}": np.zeros((1, 1), np.int32) for name in PREDICTED}
    ours = replaced_logits(run, batch | no_targets)[0, : len(row), 0]
    with torch.no_grad():
        theirs = model.eval()(torch.tensor([row])).logits[0]
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    back = replaced_logits(converted(tmp_path, "out", "again"), batch)[0, : len(row), 0]
    np.testing.assert_allclose(back, ours, atol=1e-5)


PREDICTED = ("target_tokens", "target_slots", "loss_weights")


def replaced_logits(trained, batch):
    def run(params, batch):
        outputs = trained.model.apply(params, batch)
        return outputs.head("replaced", outputs.hidden["top"])

    return np.asarray(jax.jit(run)(trained.params, batch))


@pytest.mark.slow
def test_exported_modules_reproduce_embeddings(tmp_path):
    bert = BERT_LIKE | dict(vocabulary_layer=True, vocabulary_bias=True, logits_via_embedding=True)
    directory = runs.write_run(tmp_path / "run", "encoder", "contrastive", **bert)
    convert.main([f"--from={directory}", f"--to=hf:{tmp_path}/out"])
    model = transformers.AutoModel.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    dense = load_file(tmp_path / "out" / "2_Dense" / "model.safetensors")
    expected = np.stack([pooled(model, tokenizer, text, "cls", dense) for text in TEXTS])
    ours = embed(open_run(directory), TEXTS)
    np.testing.assert_allclose(ours, expected, atol=1e-4)
    np.testing.assert_allclose(embed(converted(tmp_path, "out", "again"), TEXTS), ours, atol=1e-5)


@pytest.mark.slow
def test_embeddings_match_sentence_transformers(tmp_path):
    package = pytest.importorskip(
        "sentence_transformers", reason="pip install sentence-transformers"
    )
    bert = BERT_LIKE | dict(vocabulary_layer=True, vocabulary_bias=True, logits_via_embedding=True)
    directory = runs.write_run(tmp_path / "run", "encoder", "contrastive", **bert)
    convert.main([f"--from={directory}", f"--to=hf:{tmp_path}/out"])
    model = package.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    ours = embed(open_run(directory), TEXTS)
    np.testing.assert_allclose(model.encode(list(TEXTS)), ours, atol=1e-4)


@pytest.mark.parametrize(
    "changed, value",
    [
        ({"out_features": 3}, "out_features=3"),
        ({"activation_function": "torch.nn.modules.linear.Identity"}, "activation='Identity'"),
        ({"in_features": 3, "out_features": 3}, (3, 3)),
    ],
)
def test_unsupported_dense_layer_raises(changed, value, tmp_path):
    head = {"kernel": np.zeros((16, 16)), "bias": np.zeros(16)}
    sentences.write_modules(tmp_path, 16, "mean", head)
    assert sentences.open_modules(tmp_path).pooling == "mean"
    file = tmp_path / "2_Dense" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    with refuses(ValueError, value):
        sentences.open_modules(tmp_path)


@pytest.mark.slow
def test_classifier_uses_sigmoid_for_multi_label_and_softmax_otherwise(tmp_path):
    for problem, function in (
        ("multi_label_classification", torch.sigmoid),
        (None, lambda logits: torch.softmax(logits, -1)),
    ):
        folder = tmp_path / str(problem)
        kind = transformers.BertForSequenceClassification
        model, tokenizer = saved(folder / "in", kind, problem_type=problem, **NAMES)
        trained = converted(folder)
        assert mode_of(trained) == "classify"
        for text, found in zip(TEXTS, classify(trained, TEXTS)):
            with torch.no_grad():
                p = function(model(**tokenizer(text, return_tensors="pt")).logits[0]).tolist()
            assert dict(found) == pytest.approx(dict(zip(NAMES["id2label"].values(), p)), abs=1e-5)
