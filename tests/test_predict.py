"""The command `predict`: the mode of each run, files of items, and errors."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from pretrax.cli import predict
from pretrax.corpora.vocabularies import special_tokens
from pretrax.inference.answering.embeddings import embed
from pretrax.inference.answering.states import states
from pretrax.inference.reporting.printing import print_unknown
from pretrax.settings import atomic_writes
from pretrax.settings.printable import PrintableConsole
from pretrax.training.devices.mesh import make_mesh
from pretrax.training.trained_models import open_run
from tests.inference.runs import CLASSES, TOKENIZER, write_run
from tests.refusals import assert_named, error_of, refuses
from tests.training import tiny

LEARNED = dict(positions="learned", max_positions=32)
RUNS = {  # name -> (builder, objectives, more)
    "elsewhere": ("decoder", (), {}),
    "causal": ("decoder", ("causal_lm",), LEARNED),
    "ahead": ("decoder", ("multi_token_prediction",), dict(num_layers=2)),
    "drafting": ("decoder", ("tidar",), {}),
    "blanks": ("decoder", ("blank_infilling",), {}),
    "pairs": ("encoder", ("next_sentence_prediction",), {}),
    "prefix": ("decoder", ("prefix_lm",), {}),
    "spans": ("encoder_decoder", ("span_corruption",), {}),
    "ul2": ("encoder_decoder", ("ul2",), {}),
    "middle": ("decoder", ("fill_in_the_middle",), {}),
    "bart": ("encoder_decoder", ("bart",), {}),
    "respond": ("encoder_decoder", ("text_to_text",), {}),
    "masked": ("encoder", ("masked_lm",), LEARNED),
    "gpt_bert": ("decoder", ("masked_next_token", "causal_lm"), {}),
    "diffusion": ("encoder", ("masked_diffusion",), {}),
    "random": ("encoder", ("uniform_diffusion",), {}),
    "insertions": ("encoder", ("insertion_lm",), {}),
    "blocks": ("decoder", ("block_diffusion",), {}),
    "towers": ("two_towers", ("contrastive_pairs",), {}),
    "classes": ("encoder", ("sequence_classification",), dict(classes=CLASSES, num_classes=3)),
    "number": ("encoder", ("sequence_regression",), dict(num_classes=1)),
    "tags": ("encoder", ("token_classification",), dict(classes=CLASSES, num_classes=3)),
}


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """Returns a function from a name to its run directory."""
    made = {}

    def write(name):
        if name not in made:
            builder, objectives, more = RUNS[name]
            made[name] = write_run(tmp_path_factory.mktemp(name), builder, *objectives, **more)
        return made[name]

    return write


@pytest.fixture
def predict_lines(capsys, monkeypatch):
    """Returns a function from arguments to the printed lines. The first is the announcement."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        predict.main([*arguments, "--max_new=4"])
        out = capsys.readouterr().out
        return out.split("\n")

    return run


def fails(capsys, *arguments) -> str:
    return " ".join(error_of(capsys, predict.main, arguments).split())


# --- modes of runs --------------------------------------------------------------------------------

BOTH = ["Ada", "so it"]


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


def test_unknown_tokens_of_texts_are_counted(run_of, capsys):
    trained = open_run(run_of("causal"))._replace(encode=lambda x: [*x.encode()], unknown=ord("z"))
    console = PrintableConsole()
    print_unknown(console, trained, [{"text": "az"}, {"prefix": "", "suffix": "z"}, {"error": "z"}])
    assert_named(capsys.readouterr().out, 2, 3)
    letters = trained._replace(encode=lambda x: [*x.encode()], unknown=ord("M"))
    print_unknown(console, letters, [{"text": "a[MASK]"}])
    assert not capsys.readouterr().out


@pytest.mark.sampled
@pytest.mark.parametrize(
    "name, arguments, announced, form",
    [
        ("causal", BOTH, "continue — continues a text, prompted as in "
                         "training.", r"Ada.*\nso it"),
        slow("elsewhere", ["Ada"],
             "continue — continues a text, the default for the layout", "Ada"),
        slow("blanks", ["a <extra_id_0> b <extra_id_1>"], "infill — fills blanks", "a .* b .*"),
        slow("pairs", ["a", "--mode=embed"], "embed — computes an embedding", "1 embedding"),
        ("pairs", ["a", "b"],
         "pair — predicts whether a second text follows the first, prompted as",
         r"(follows|does not follow) 0\.\d+, (follows|does not follow) 0\.\d+: 'a' \| 'b'"),
        slow("masked", ["a", "--score"], "score",
             r"nats over 1 tokens, each given all others: 'a'"),
        slow("ahead", ["Ada", "--own_drafts"], "continue",
             r"Ada.*\n(.*\n)*Drafts: \d+ of \d+ accepted"),
        slow("drafting", ["Ada", "--own_drafts"], "continue",
             r"Ada.*\n(.*\n)*Drafts: \d+ of \d+ accepted .*, \d\.\d+ tokens for each call"),
        slow("prefix", ["Ada"], "complete — continues a text that it reads both ways", ".+"),
        ("spans", ["a <extra_id_0> b"], "infill — fills blanks", "a .* b"),
        slow("ul2", ["a <extra_id_0> b", "--denoiser=X"], "infill", "a .* b"),
        slow("bart", ["a <mask> b"], "restore — restores a corrupted text", ".*"),
        ("respond", ["a"], "respond — answers a text with a text", ".*"),
        ("middle", ["--prefix=a(", "--suffix=)z"], "middle — writes the text between", r"a\(.*\)z"),
        ("masked", ["a [MASK] c[MASK]", "--top=2"], "mask — lists the most likely tokens of",
         r"a \[MASK\] c\[MASK\]\s+mask 1 +p +mask 2 +p *\n(.*0\.\d+ +'.*0\.\d+ *\n){2}$"),
        slow("gpt_bert", ["[MASK]"], "mask", r"mask 1 +p(.*\n){6,}"),
        ("causal", ["Ada", "--mode=next", "--top=3"],
         "next — lists the most likely tokens after a text.",
         r"^Ada\s+next token +p *\n( *'.*' +0\.\d{3} *\n){3}$"),
        slow("diffusion", ["a[MASK]b", "--masks=3", "--steps=2", "--order=random"],
         "unmask — fills all [MASK]s, in the order --order", "a.*b.*"),
        slow("random", ["a[MASK]b", "--masks=3", "--steps=2", "--temperature=1"],
         "denoise — fills all [MASK]s by denoising random text", "a.*b.*"),
        slow("insertions", ["a b", "--temperature=1"],
             "insert — inserts missing tokens", ".*a.* .*b.*"),
        slow("blocks", ["a", "--steps=2", "--order=random"],
         "blocks — continues a text block by block", ".*"),
        ("towers", ["a", "b", "--against", "c", "d"], "embed — computes an embedding",
         r"2 embeddings of 16 numbers(.*\n)+Cosines\s+c +d *\n *a +-?[01]\.\d+ +-?[01]\.\d+ *\n"
         r" *b "),
        ("classes", ["a"], "classify — predicts a class or a number for each text",
         r"(red|green|blue) 0\.\d+, (red|green|blue) 0\.\d+, \w+ 0\.\d+: 'a'"),
        ("number", ["a"], "classify", r"-?\d+\.\d{3}: 'a'"),
        ("tags", ["ab cd"], "tag — predicts the class of each word",
         r"ab/(red|green|blue) cd/(red|green|blue)"),
        ("spans", ["abc", "--mode=states"], "states — computes the hidden states of each token",
         r"Layer -1, of 16 numbers(.*\n)+ *'a' +\d.*'[bc<].* -?[01]\.\d\d, .*\n *'b' "),
        ("causal", ["Ada", "--score"], "score — prints the log-probability of a text",
         r"-\d+\.\d+ nats over 3 tokens, \d+\.\d+ bits per byte: 'Ada'\n token +p +nats *\n"
         r" 'A' +0\.\d+ +-\d+\.\d{3} *\n 'd' +0\.\d+ +-\d+\.\d{3} *\n 'a' "),
        ("respond", ["Ada", "--score", "--target=tea"], "score",
         r"nats over 4 tokens, .*: 'tea'\n token(.*\n){4} '</s>' +0\.\d+ +-\d+\.\d{3} *\n"),
        ("prefix", ["Ada", "--mode=respond"],
         "respond — answers a text with a text; the model was not trained for this mode, but for: "
         "complete.", ".*"),
    ],
)  # fmt: skip
def test_each_run_predicts_in_its_trained_mode(
    run_of, predict_lines, name, arguments, announced, form
):
    heading, *others = predict_lines(f"--run={run_of(name)}", *arguments)
    assert heading.startswith(f"{run_of(name)}: {announced}")
    assert re.search(form, "\n".join(others))


@pytest.mark.slow
def test_control_characters_of_texts_are_escaped(run_of, capsys):
    predict.main([f"--run={run_of('causal')}", "Ada\x1b]0;x\x07", "b", "--max_new=1"])
    output = capsys.readouterr().out
    assert "Ada␛]0;x" in output and "\x1b" not in output and "\x07" not in output


@pytest.mark.slow
def test_printed_token_probabilities_match_the_output_file(run_of, predict_lines, tmp_path):
    run, text, out = f"--run={run_of('elsewhere')}", "so it was", tmp_path / "out.jsonl"
    file = write_items(tmp_path / "in.jsonl", [{"text": text}])
    predict_lines(run, "--score", f"--file={file}", f"--out={out}")
    (record,) = read(out)
    _, _, _, *rows, _ = predict_lines(run, "--score", text)
    assert [row.split()[-2:] for row in rows] == [
        [f"{np.exp(x):.3g}", f"{x:.3f}"] for _, x in record["token_log_probs"]
    ]
    _, summary, hint, _ = predict_lines(run, "--score", text * 8)
    assert "over 72 tokens" in summary and hint.startswith("--file and --out write")


@pytest.mark.slow
def test_sequences_of_a_fasta_file_are_embedded(run_of, predict_lines, tmp_path):
    file = tmp_path / "in.fa"
    file.write_text(">x\nacgt\nAC\n>y one\nTTT\n")
    run = f"--run={run_of('masked')}"
    predict_lines(run, "--mode=embed", f"--file={file}", f"--out={tmp_path}/out.jsonl")
    records = read(tmp_path / "out.jsonl")
    assert [(x["id"], x["text"]) for x in records] == [("x", "ACGTAC"), ("y", "TTT")]
    vectors = embed(open_run(run_of("masked")), ["ACGTAC", "TTT"])
    np.testing.assert_allclose([x["embedding"] for x in records], vectors, atol=1e-5)


@pytest.mark.slow
def test_samples_are_separated_and_drafts_change_no_answer(run_of, predict_lines):
    sampled = predict_lines(
        f"--run={run_of('causal')}", "Ada", "--temperature=3", "--samples=3", "--seed=2"
    )
    assert sum("Ada" in line for line in sampled) == 3
    assert sum(line.startswith("────") for line in sampled) == 2
    drafted = predict_lines(f"--run={run_of('causal')}", "Ada", f"--draft={run_of('elsewhere')}")
    assert "accepted" in drafted[-2]
    assert drafted[1] == predict_lines(f"--run={run_of('causal')}", "Ada")[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["causal", "spans", "ahead", "masked"])
def test_number_of_devices_changes_no_answer(run_of, predict_lines, monkeypatch, name):
    """Rows over eight devices, rows and parameters over eight devices, and one device agree."""
    text = {"spans": "a <extra_id_0> b", "masked": "a [MASK]"}.get(name, "Ada")
    drafts = ["--own_drafts"] if name == "ahead" else []
    asked = [f"--run={run_of(name)}", text, f"so {text}", *drafts]
    each, spread = predict_lines(*asked), predict_lines(*asked, "--fsdp=2", "--tensor=2")
    monkeypatch.setattr(predict, "make_mesh", lambda **_: make_mesh(devices=jax.devices()[:1]))
    assert each == spread == predict_lines(*asked)


# --- files of items -------------------------------------------------------------------------------


def write_items(path, items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return str(path)


def read(path):
    return [json.loads(line) for line in path.read_bytes().decode().split("\n")[:-1]]


FIELDS = {
    "causal": {"answer", "log_prob", "ended"},
    "spans": {"filled", "blanks", "log_prob"},
    "masked": {"masks"},
    "diffusion": {"answer"},
    "insertions": {"answer", "ended"},
    "blocks": {"answer", "ended"},
    "towers": {"embedding"},
    "classes": {"answer", "classes"},
    "tags": {"answer", "words"},
}


QUICK = ("causal", "masked", "classes")


@pytest.mark.sampled
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in FIELDS]
)
def test_file_answers_keep_their_fields_and_are_not_repeated(run_of, predict_lines, tmp_path, name):
    text = {"masked": "a [MASK]", "diffusion": "a [MASK]", "spans": "a <extra_id_0> b"}
    items = [{"text": text.get(name, "a" * k), "id": k} for k in (3, 1, 2)]
    file, out = write_items(tmp_path / "in.jsonl", items), tmp_path / "[out].jsonl"
    arguments = f"--run={run_of(name)}", f"--file={file}", f"--out={out}", "--batch_size=2"
    printed = predict_lines(*arguments)
    assert printed[-2].endswith("3 answers.") and "[out].jsonl" in "".join(printed)
    found = read(out)
    assert [{key: line[key] for key in ("text", "id")} for line in found] == items
    assert all(line.keys() == FIELDS[name] | {"text", "id"} for line in found)
    before = out.read_bytes()
    printed = predict_lines(*arguments)
    # The number of old answers is printed at the start, and the number of all at the end.
    assert sum("3 answers" in line for line in printed) == 2
    assert out.read_bytes() == before


@pytest.mark.slow
def test_few_shot_prompts_are_scored(run_of, predict_lines, tmp_path):
    for field, kept in (("label", "label"), ("answer", "expected")):
        example = write_items(tmp_path / "ex.jsonl", [{"q": "1+1", field: "2"}])
        file = write_items(
            tmp_path / "in.jsonl", [{"q": "2+2", field: "4"}, {"q": "3", field: "3"}]
        )
        out = tmp_path / f"{field}.jsonl"
        template = f"--template=Q: {{q}}\\nA: {{{field}}}"
        printed = predict_lines(
            f"--run={run_of('elsewhere')}",
            f"--file={file}",
            f"--out={out}",
            template,
            f"--examples={example}",
            f"--answer={field}",
            "--stop=\\n",
        )
        right = sum(line["answer"].strip() == line[kept] for line in read(out))
        assert printed[-2] == f"Exact match: {right} of 2 ({right / 2:.1%})."
        assert read(out)[0]["text"] == "Q: 1+1\nA: 2\n\nQ: 2+2\nA:"
        assert [line[kept] for line in read(out)] == ["4", "3"]


@pytest.mark.slow
def test_hidden_states_of_a_file_are_written_as_arrays(run_of, predict_lines, capsys, tmp_path):
    texts, out = ["Ada", "Alan and Ada"], tmp_path / "new" / "states.npz"
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps(text) + "\n" for text in texts))
    asked = f"--run={run_of('masked')}", "--mode=states", f"--file={file}"
    assert "the hidden states of 2 texts." in " ".join(
        predict_lines(*asked, f"--out={out}", "--layer=all")
    )
    trained = open_run(run_of("masked"))
    with np.load(out) as found:
        assert sorted(found) == [
            *("hidden_states_0", "hidden_states_1", "input_ids_0", "input_ids_1", "layers")
        ]
        assert found["layers"].tolist() == [0, 1]
        for i, one in states(trained, texts, layers=[0, 1]):
            np.testing.assert_array_equal(found[f"hidden_states_{i}"], one.layers)
            assert found[f"input_ids_{i}"].tolist() == one.tokens
    assert_named(fails(capsys, *asked, "--out=a.jsonl"), "--out", ".npz")
    assert_named(fails(capsys, *asked, f"--out={out}2.npz", "--layer=7"), "layer 7")
    assert_named(fails(capsys, *asked, f"--out={out}", "--layer=top"), "--layer=top")
    assert_named(fails(capsys, asked[0], "a", "--layer=0"), "--layer", "'mask'")
    file.write_text('{"text": "a"}\nno JSON\n')
    assert_named(fails(capsys, *asked, f"--out={out}3.npz"), "in.jsonl:2", "JSON")
    assert os.listdir(out.parent) == ["states.npz"]


def test_damaged_model_setting_names_its_file(capsys, tmp_path):
    directory = write_run(tmp_path, "decoder", "causal_lm")
    config = tmp_path / "config.gin"
    config.write_text(config.read_text().replace("head_dim", "head_Dim"))
    assert "config.gin" in fails(capsys, f"--run={directory}", "Ada")


def test_damaged_prompt_forms_name_their_file(capsys, tmp_path):
    directory = write_run(tmp_path, "decoder")
    (tmp_path / "prompt_forms.json").write_text('[{"mo`e": "embed"}]')
    assert_named(fails(capsys, f"--run={directory}", "Ada"), "prompt_forms.json")
    for form, value in (({"head": "pair"}, "pair"), ({"before": [10**6]}, 10**6)):
        text = json.dumps([{"mode": "continue", **form}])
        (tmp_path / "prompt_forms.json").write_text(text)
        assert_named(fails(capsys, f"--run={directory}", "Ada"), "prompt_forms.json", value)


# --- rejected input -------------------------------------------------------------------------------


@pytest.mark.sampled
@pytest.mark.parametrize(
    "name, arguments, values",
    [
        ("causal", [""], ["empty"]),
        ("prefix", [" "], ["' '"]),
        ("masked", [" "], ["[MASK]"]),
        ("classes", [" "], ["' '"]),
        ("towers", [" "], ["' '"]),
        ("causal", ["x" * 40], [64, 32]),
        ("causal", ["x" * 40, "--score"], ["41 slots", "decoder", 32]),
        ("masked", ["x" * 40 + "[MASK]"], ["43 slots", "encoder", 32]),
        ("masked", ["no mask here"], ["[MASK]", "'no mask here'"]),
        ("causal", ["a", "--mode=sing"], ["'sing'", "continue"]),
        ("causal", ["a", "--mode=pair"], ["'pair'", "'decoder'", "continue"]),
        ("causal", ["a", "--mode=classify"], ["'classes'", "sequence_classification"]),
        ("masked", ["a", "--mode=infill"], ["'infill'", "'encoder'", "mask"]),
        (
            "causal",
            ["a [MASK]", "--mode=mask"],
            ["masked_lm, masked_next_token", "masked_diffusion", "'continue'", "'next'"],
        ),
        ("prefix", ["a [MASK]", "--mode=unmask"], ["'complete'", "'next'"]),
        ("classes", ["a [MASK]", "--mode=mask"], ["'classify'"]),
        ("spans", ["a", "--mode=mask"], ["'mask'", "'encoder_decoder'"]),
        ("masked", ["[MASK]", "--mode=unmask", "--order=gibbs"], ["temperature=0"]),
        ("diffusion", ["[MASK]", "--order=first"], ["order", "'confidence', 'margin', 'entropy'"]),
        ("causal", ["a", "--mode=blocks"], ["'blocks'", "'continue'"]),
        ("spans", ["a <extra_id_1> b"], ["<extra_id_0>", "<extra_id_1>"]),
        ("spans", ["<extra_id_0> <extra_id_0>"], ["<extra_id_0>, <extra_id_0>"]),
        ("ul2", ["a", "--denoiser=Q"], ["'Q'"]),
        ("middle", ["a"], ["--prefix", "--suffix"]),
        ("middle", ["--prefix="], ["prefix", "suffix"]),
        ("middle", ["--prefix=a", "--cursor=none.txt:1:1"], ["--prefix", "--cursor"]),
        ("middle", ["--cursor=none.txt:²:1"], ["FILE:LINE:COLUMN"]),
        ("causal", ["a", "--score", "--mode=next"], ["--score", "--mode=next"]),
        ("causal", ["--prefix=a"], ["'continue'", "'middle'"]),
        ("causal", [], ["texts", "--file"]),
        ("causal", ["a", "--file=x", "--out=y"], ["texts", "--file"]),
        ("causal", ["a", "--samples=2"], ["temperature=0"]),
        ("causal", ["a", "--fsdp=3"], [6, 8, "data, fsdp, expert, context"]),
        ("causal", ["a", "--max_new=0"], ["max_new", 1, 0]),
        ("causal", ["a", "--own_drafts"], ["ahead"]),
        ("causal", ["--file=none.jsonl", "--out=out.jsonl"], ["none.jsonl"]),
        ("masked", ["a", "--score", "--target=b"], ["answer", "masks"]),
        ("spans", ["a", "--score"], ["--target=ANSWER"]),
        ("masked", ["a", "--beams=1"], ["--beams", "'mask'"]),
        ("causal", ["a", "--steps=-4"], ["--steps", "'continue'"]),
        ("causal", ["a", "--order=none"], ["--order", "--mode=unmask, --mode=blocks"]),
        ("causal", ["a", "--against", "b"], ["--against", "--mode=embed"]),
        ("causal", ["a", "--top=3"], ["--top", "--mode=next, --mode=mask"]),
        ("causal", ["a", "--denoiser=R"], ["--denoiser", "'continue'"]),
        ("masked", ["[MASK]", "--pooling=none"], ["--pooling", "--mode=embed"]),
        ("masked", ["[MASK]", "--beams=4"], ["--beams", "'mask'"]),
        (
            "prefix",
            ["a <extra_id_0>"],
            ["'a <extra_id_0>'", "'complete'", "span_corruption", "ul2"],
        ),
        ("ul2", ["<extra_id_0>", "--mode=complete"], ["'complete'", "--mode=infill"]),
        ("gpt_bert", ["<extra_id_0>", "--mode=continue"], ["--mode=mask", "[MASK]"]),
        ("middle", ["<extra_id_0>", "--mode=continue"], ["--prefix", "--suffix", "'middle'"]),
        ("middle", ["--prefix=a", "--suffix=<extra_id_0>"], ["blanks", "prefix", "suffix"]),
    ],
)
def test_invalid_requests_are_rejected(
    run_of, capsys, tmp_path, monkeypatch, name, arguments, values
):
    monkeypatch.chdir(tmp_path)
    output = fails(capsys, f"--run={run_of(name)}", *arguments)
    assert_named(output, "--traceback", *values)
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    "arguments, values",
    [
        (["--file=in.jsonl"], ["--file", "--out"]),
        (["--out=out.jsonl", "a"], ["--file", "--out"]),
        (["a", "--examples=ex.jsonl"], ["--examples", "--template"]),
        (["a", "--own_drafts", "--draft=runs/x"], ["--own_drafts", "--draft"]),
        (["a", "--top=many"], ["--top", 1, "'many'"]),
        (["a", "--top=0"], ["--top", 1, "'0'"]),
        (["a", "--masks=-2"], ["--masks", 0, "'-2'"]),
        (["a", "--fsdp=-1"], ["--fsdp", 1, "'-1'"]),
        (["a", "--stop="], ["--stop"]),
        (["a", "--mode=score"], ["--score"]),
        (["a", "--target=b"], ["--target", "--score"]),
        (["--file=a", "--out=b", "--score", "--target=b"], ["--target", "--file"]),
        (["--file=a.jsonl", "--out=b.jsonl", "--against", "c"], ["--against", "--out"]),
        (["--file=a.jsonl", "--out=./a.jsonl"], ["--out", "--file"]),
    ],
)
def test_conflicting_or_invalid_arguments_are_rejected(capsys, arguments, values):
    assert_named(fails(capsys, "--run=not_opened", *arguments), *values)


def test_run_without_a_vocabulary_is_rejected(capsys, tmp_path):
    mute = write_run(tmp_path / "mute", "decoder", "causal_lm", vocabulary=None)
    assert_named(fails(capsys, f"--run={mute}", "a"), mute, "vocabulary.json")


@pytest.mark.slow
def test_draft_model_of_another_vocabulary_or_layout_is_rejected(
    run_of, capsys, tmp_path, monkeypatch
):
    ids = special_tokens.token_ids(TOKENIZER, sentinels=3)
    other = write_run(tmp_path, "decoder", "causal_lm", vocabulary=ids)
    causal = f"--run={run_of('causal')}"
    assert_named(fails(capsys, causal, "a", f"--draft={other}"), "draft", "vocabulary")
    output = fails(capsys, causal, "a", f"--draft={run_of('spans')}")
    assert_named(output, "draft", "'encoder_decoder'", "'decoder'")
    monkeypatch.setenv("HOME", str(tmp_path))  # Copies of buckets are there.
    output = fails(capsys, causal, "a", "--draft=memory://bucket/none")
    assert_named(output, "memory://bucket/none", "config.gin")


@pytest.mark.slow
def test_invalid_input_files_are_rejected(run_of, capsys, tmp_path):
    run, out = f"--run={run_of('elsewhere')}", f"--out={tmp_path / 'out.jsonl'}"
    file = tmp_path / "in.jsonl"
    ask = [run, f"--file={file}", out]
    template = ["--template=Q: {question} A: {answer}", f"--examples={tmp_path / 'ex.jsonl'}"]
    write_items(tmp_path / "ex.jsonl", [{"question": "1", "answer": "1"}])
    for content, arguments, values in (
        ('{"text"\n', [], ["in.jsonl:1", "JSON"]),
        ('{"words": "a"}\n', [], ["words", '"text"']),
        ('{"text": " "}\n', ["--mode=complete"], ["Item 1", "' '"]),
        ('{"text": 5}\n', [], ['"text"']),
        ('{"text": "a", "target": 5}\n', ["--score"], ["Item 1", "target = 5"]),
        ('{"prefix": 5}\n', ["--mode=middle"], ["prefix = 5"]),
        ('{"text": 5}\n', ["--masks=2", "--mode=mask"], ['"text"']),
        ('{"text": "a"}\n', template, ["text", "'question'"]),
        ('{"question": "2"}\n', [*template, "--answer=label"], ["{label}"]),
    ):
        file.write_text(content)
        assert_named(fails(capsys, *ask, *arguments), *values)
        assert not (tmp_path / "out.jsonl").exists()
    file.write_text('{"text": "a"}\n')
    (tmp_path / "out.jsonl").write_text('{"text": "b", "answer": "c"}\n')
    assert_named(fails(capsys, *ask), "out.jsonl:1", "--out")
    assert (tmp_path / "out.jsonl").read_text() == '{"text": "b", "answer": "c"}\n'


@pytest.mark.slow
def test_killed_prediction_continues_with_the_same_answers(run_of, predict_lines, tmp_path):
    """The result is the same as without interruption, since samples depend on the line number."""
    items = [{"text": "tea " * (k % 5 + 1)} for k in range(40)]
    file = write_items(tmp_path / "in.jsonl", items)
    how = [f"--run={run_of('elsewhere')}", f"--file={file}", "--batch_size=1", "--temperature=1"]
    predict_lines(*how, f"--out={tmp_path / 'whole.jsonl'}")
    out = tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "pretrax", "predict", *how, f"--out={out}", "--max_new=4"]
    process = subprocess.Popen(command, cwd=tiny.ROOT, env=tiny.environment())
    deadline = time.time() + 300
    while not (out.exists() and out.read_bytes().count(b"\n") >= 8):
        assert process.poll() is None and time.time() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = out.read_bytes()
    assert 8 <= kept.count(b"\n") < 40
    out.write_bytes(kept + b'{"text": "half a li')
    printed = predict_lines(*how, f"--out={out}")
    assert any(f"{kept.count(bytes([10]))} answers" in line for line in printed)
    whole, found = read(tmp_path / "whole.jsonl"), read(out)
    assert [(x["text"], x["answer"]) for x in found] == [(x["text"], x["answer"]) for x in whole]


@pytest.mark.slow
def test_malformed_line_gets_an_error_and_others_are_answered(
    run_of, predict_lines, capsys, tmp_path
):
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    file.write_text('{"text": "a"}\n' + "[" * 100_000 + '\n{"text": " "}\n{"text": "b"}\n')
    command = [f"--run={run_of('elsewhere')}", f"--file={file}", f"--out={out}", "--mode=complete"]
    with atomic_writes.locked(out, "`predict`"):
        assert_named(fails(capsys, *command), out, "process")
    printed = predict_lines(*command)
    assert any(line.startswith("2 ") and '"error"' in line for line in printed)
    found = read(out)
    assert ["answer" in line for line in found] == [True, False, False, True]
    assert_named(found[1]["error"], "in.jsonl:2", "array")
    assert_named(found[2]["error"], "Item 3", "' '")


def test_unreadable_item_gets_an_error_and_others_are_answered(run_of, predict_lines, tmp_path):
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    file.write_text("".join(json.dumps(x) + "\n" for x in ("a", "b <extra_id_0>", "x" * 40, "c")))
    printed = predict_lines(f"--run={run_of('causal')}", f"--file={file}", f"--out={out}")
    assert any(line.startswith("2 ") and '"error"' in line for line in printed)
    found = read(out)
    assert ["answer" in line for line in found] == [True, False, False, True]
    assert_named(found[1]["error"], "'b <extra_id_0>'")
    assert_named(found[2]["error"], 4, 32)


def test_traceback_flag_raises_the_original_error(run_of):
    with refuses(ValueError, "sing"):
        predict.main([f"--run={run_of('causal')}", "a", "--mode=sing", "--traceback"])
