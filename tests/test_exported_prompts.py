"""An export records its prompts, so that its import answers like the run."""

import dataclasses
import json
import re
import shlex

import numpy as np
import pytest

from pretrax import models, objectives
from pretrax.cli import convert, predict
from pretrax.inference.trained import MODES, mode_names
from pretrax.objectives import PromptForm
from pretrax.objectives.prompt_forms import MaskedBlocks
from pretrax.settings.atomic_writes import CHECKSUMS, sealed
from pretrax.training.saved.kept_prompt_forms import (
    PROMPT_RECORD,
    read_prompt_record,
    write_prompt_record,
)
from pretrax.training.trained_models import open_run
from tests.conversion import BERT as LAYERS_OF_BERT
from tests.conversion import bart_model, bert, llama, sentencepiece, t5_model, written
from tests.inference.runs import CLASSES, IDS, ROWS, SETTINGS, settings_of, write_run
from tests.refusals import exits
from tests.training import tiny

ROTARY = dict(num_types=0, positions="rotary", dropout_shared=False)
BERT = LAYERS_OF_BERT | dict(max_positions=128)
NAMED = dict(classes=CLASSES, num_classes=3)
# objective -> (layout, settings of the run, mode of the model)
CASES = {
    "ul2": ("encoder_decoder", {}, "infill"),
    "span_corruption": ("encoder_decoder", {}, "infill"),
    "prefix_lm": ("encoder_decoder", {}, "complete"),
    "bart": ("encoder_decoder", {}, "restore"),
    "text_to_text": ("encoder_decoder", {}, "respond"),
    "causal_lm": ("decoder", {}, "continue"),
    "tidar": ("decoder", {}, "continue"),
    "causal_diffusion": ("decoder", {}, "continue"),
    "mutor": ("decoder", {}, "continue"),
    "fill_in_the_middle": ("decoder", {}, "middle"),
    "causal_masking": ("decoder", {}, "infill"),
    "blank_infilling": ("decoder", {}, "infill"),
    "masked_next_token": ("decoder", {}, "mask"),
    "shifted_diffusion": ("decoder", {}, "unmask"),
    "any_subset_lm": ("decoder", {}, "unmask"),
    "shuffled_lm": ("decoder", {}, "unmask"),
    "block_diffusion": ("decoder", {}, "blocks"),
    "token_editing": ("decoder", {}, "blocks"),
    "masked_lm": ("encoder", BERT, "mask"),
    "masked_diffusion": ("encoder", ROTARY, "unmask"),
    "hybrid_diffusion": ("encoder", ROTARY, "unmask"),
    "mixed_diffusion": ("encoder", ROTARY, "unmask"),
    "uniform_diffusion": ("encoder", ROTARY, "denoise"),
    "next_sentence_prediction": ("encoder", BERT, "pair"),
    "contrastive": ("encoder", BERT, "embed"),
    "sequence_classification": ("encoder", BERT | NAMED, "classify"),
}


def converted(capsys, *arguments) -> list[str]:
    """Converts a model, and returns the printed commands that apply it."""
    convert.main(list(arguments))
    output = capsys.readouterr().out
    (command,) = re.findall(r"^To apply .*?: (pretrax predict .*)$", output, re.MULTILINE)
    return shlex.split(command)[2:]


def answered(capsys, command) -> tuple[str, str]:
    """Runs a printed command, and returns its mode and answers."""
    predict.main([*command, "--max_new=4"] if "--mode=embed" not in command else command)
    mode, _, answer = capsys.readouterr().out.partition("\n")
    return re.match(r".*?: (\w+) — ", mode)[1], answer


def export_and_import(name, tmp_path, capsys):
    """Exports a run and imports it again. Returns both, with the commands that apply them."""
    layout, settings, _ = CASES[name]
    run, back = write_run(tmp_path / "run 1", layout, name, **settings), f"{tmp_path}/run 2"
    given = converted(capsys, f"--from={run}", f"--to=hf:{tmp_path}/there")
    again = converted(capsys, f"--from=hf:{tmp_path}/there", f"--to={back}")
    assert given[1:] == again[1:] and not any(word.startswith("--mode") for word in again)
    assert open_run(back).prompt_forms == open_run(run).prompt_forms
    return given, again


# The prompts of all modes are recorded in the same way, which is tested below. These objectives
# have each layout, the names of classes, and the record of a noise.
EXPORTED = (
    *("span_corruption", "causal_lm", "masked_lm", "uniform_diffusion"),
    "sequence_classification",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED)
def test_reimported_export_answers_like_the_run(name, tmp_path, capsys):
    given, again = export_and_import(name, tmp_path, capsys)
    expected = answered(capsys, given)
    assert expected[0] == CASES[name][-1]
    assert answered(capsys, again) == expected


@pytest.mark.parametrize("name", CASES)
def test_prompt_forms_of_an_objective_are_recorded(name, tmp_path):
    layout, settings, mode = CASES[name]
    objective = getattr(objectives, name)(IDS, **SETTINGS.get(name, {}))
    sizes = settings_of(layout, **{k: v for k, v in settings.items() if k != "classes"})
    model = getattr(models, layout)(ROWS, tuple(objective.facts.heads), **sizes)
    forms = objective.facts.prompt_forms
    assert forms[0].mode == mode
    assert write_prompt_record(str(tmp_path), forms, IDS, model) == []
    assert read_prompt_record(tmp_path, IDS, model) == forms
    if name == "uniform_diffusion":
        (record,) = json.loads((tmp_path / PROMPT_RECORD).read_text())["prompt_forms"]
        assert record == {"mode": "denoise", "noise": {"name": "UniformNoise", "lowest": 0.001}}


def test_numpy_token_ids_are_recorded(tmp_path):
    model = tiny.decoder()
    before = np.array([3, 4], np.int32)
    form = PromptForm("continue", before=tuple(before), causal=True)
    assert write_prompt_record(str(tmp_path), [form], tiny.IDS, model) == []
    assert read_prompt_record(tmp_path, tiny.IDS, model) == (form,)


def test_masked_blocks_are_recorded(tmp_path):
    """An imported model drafts as the exported model does."""
    form = PromptForm("continue", causal=True, masked_blocks=MaskedBlocks(4, False, True))
    for model, kept in ((tiny.decoder(), (form,)), (tiny.decoder(positions="relative"), None)):
        write_prompt_record(str(tmp_path), [form], IDS, model)
        assert read_prompt_record(tmp_path, IDS, model) == kept


def mine(trained, inputs, options):
    """Answers as a mode of a user would; no module of pretrax defines it."""


def test_every_built_in_mode_is_recorded(tmp_path):
    model = tiny.decoder()
    for name in mode_names("decoder"):
        assert write_prompt_record(str(tmp_path), [PromptForm(name)], tiny.IDS, model) == []
        assert read_prompt_record(tmp_path, tiny.IDS, model) == (PromptForm(name),)


def test_mode_of_a_user_module_is_not_recorded(tmp_path, monkeypatch):
    monkeypatch.setitem(MODES, "mine", dataclasses.replace(MODES["continue"], answer=mine))
    model = tiny.decoder()
    forms = [PromptForm("mine"), PromptForm("continue", causal=True)]
    assert write_prompt_record(str(tmp_path), forms, tiny.IDS, model) == ["mine"]
    assert read_prompt_record(tmp_path, tiny.IDS, model) == (forms[1],)


@pytest.mark.slow
def test_mode_whose_head_is_not_exported_is_not_recorded(tmp_path, capsys):
    run = write_run(tmp_path / "run", "encoder", "insertion_lm", **ROTARY)
    convert.main([f"--from={run}", f"--to=hf:{tmp_path}/there"])
    assert "Modes that an import of it lacks: insert." in capsys.readouterr().out
    again = converted(capsys, f"--from=hf:{tmp_path}/there", f"--to={tmp_path}/again")
    assert "--mode" not in again and open_run(f"{tmp_path}/again").prompt_forms[0].mode == "embed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "make, fields, mode, blank",
    [
        (t5_model, {}, "infill", "<extra_id_0>"),
        (t5_model, {"task_specific_params": {"summarization": {}}}, "respond", ""),
        (bart_model, {}, "restore", ""),
        (llama, {}, "continue", ""),
        (bert, {}, "embed", ""),
    ],
)
def test_published_model_gets_the_default_mode_of_its_family(
    make, fields, mode, blank, tmp_path, capsys
):
    source, _ = written(tmp_path / "hf", make(700), extra=fields)
    tokenizer = f"--tokenizer={sentencepiece(tmp_path)}"
    command = converted(capsys, f"--from=hf:{source}", f"--to={tmp_path}/run", tokenizer)
    assert answered(capsys, command)[0] == mode
    assert (blank in command[-1]) and ("<extra_id_0>" in command[-1]) == bool(blank)


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    run = write_run(folder / "run", "encoder_decoder", "span_corruption")
    convert.main([f"--from={run}", f"--to=hf:{folder}/there"])
    (folder / "there" / CHECKSUMS).unlink()  # An attacker can write checksums, too.
    return folder / "there"


FORM = {"mode": "infill", "after": [1]}
NOISE = {"name": "UniformNoise", "lowest": 0.001}


@pytest.mark.parametrize(
    "record, named",
    [
        ([FORM | {"mode": "train"}], "'train'"),
        ([FORM | {"mode": "mask"}], "'mask'"),
        ([FORM | {"before": [IDS.size]}], IDS.size),
        ([FORM | {"before": [-1]}], -1),
        ([FORM | {"before": ["os.system"]}], "PromptForm.before"),
        ([FORM | {"after": 1}], "PromptForm.after"),
        ([FORM | {"head": "pair"}], "'pair'"),
        ([FORM | {"block_size": 0}], "PromptForm.block_size"),
        ([FORM | {"shift": 2**40}], "PromptForm.shift"),
        ([FORM | {"masked_blocks": [0]}], "PromptForm.masked_blocks.size"),
        ([FORM | {"masked_blocks": 3}], PROMPT_RECORD),
        ([FORM | {"noise": NOISE | {"name": "os.system"}}], "os.system"),
        ([FORM | {"noise": NOISE | {"lowest": 2.0}}], "UniformNoise.lowest"),
        ([FORM | {"noise": NOISE | {"text": [0, 9]}}], "text"),
        ([FORM | {"noise": "UniformNoise"}], PROMPT_RECORD),
        ([FORM | {"run": "rm"}], "run"),
        ([FORM, 3], PROMPT_RECORD),
        ({"mode": "infill"}, PROMPT_RECORD),
    ],
)
def test_prompt_record_that_does_not_fit_the_model_is_rejected(
    record, named, export, tmp_path, capsys
):
    text = json.dumps(sealed({"prompt_forms": record}))
    (export / PROMPT_RECORD).write_text(text)
    with exits(capsys, PROMPT_RECORD, named, "--mode"):
        convert.main([f"--from=hf:{export}", f"--to={tmp_path}/run"])
    assert not (tmp_path / "run").exists()


def test_malformed_prompt_record_is_rejected(export, tmp_path, capsys):
    for text in ("[", "[]", '{"prompt_forms": [], "crc32": 1}', '{"forms": []}', "[" * 10**5):
        (export / PROMPT_RECORD).write_text(text)
        with exits(capsys, PROMPT_RECORD):
            convert.main([f"--from=hf:{export}", f"--to={tmp_path}/run"])


def test_symlinked_prompt_record_is_rejected(export, tmp_path, capsys):
    (tmp_path / "elsewhere.json").write_text(json.dumps({"prompt_forms": [FORM]}))
    (export / PROMPT_RECORD).unlink(missing_ok=True)
    (export / PROMPT_RECORD).symlink_to(tmp_path / "elsewhere.json")
    with exits(capsys, PROMPT_RECORD, tmp_path / "elsewhere.json"):
        convert.main([f"--from=hf:{export}", f"--to={tmp_path}/run"])
    (export / PROMPT_RECORD).unlink()
