"""Reading gin files into values, and writing values as gin files."""

import argparse
import copy
import dataclasses
import inspect
import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrax import models, objectives
from pretrax.settings import t5x_names
from pretrax.settings.atomic_writes import write_text
from pretrax.settings.command_line import add_gin_arguments, parse_with_gin
from pretrax.settings.gin_reader import GinReader, plain_fields
from pretrax.settings.partial import flattened, functions_in
from pretrax.training import Call, Partial, Run, differences
from pretrax.training.devices.mesh import make_mesh
from pretrax.training.optimizers import adafactor, warmup_cosine
from pretrax.training.run import FIELDS, fields_of, is_required
from pretrax.training.run_configuration import (
    as_run,
    read_directory,
    read_fields,
    read_lines,
    read_run,
    run_in,
)
from pretrax.training.run_file import run_text
from pretrax.training.saved.imported_runs import config_text
from tests.refusals import refuses
from tests.training import tiny

GIN = tiny.ROOT / "gin_configs"
RUNS = sorted(str(p.relative_to(GIN)) for p in (GIN / "runs").glob("*.gin"))


def write_gin(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "mine.gin"
    path.write_text("\n".join(["from __gin__ import dynamic_registration", *lines, ""]))
    return str(path)


# --- values ---------------------------------------------------------------------------------------


def test_partials_are_comparable_hashable_values():
    one = Partial(adafactor, learning_rate=Partial(warmup_cosine, peak=0.1))
    assert one == Partial(adafactor, learning_rate=Partial(warmup_cosine, peak=0.1))
    assert one != Partial(adafactor, learning_rate=Partial(warmup_cosine, peak=0.2))
    assert Call(warmup_cosine) != Partial(warmup_cosine)
    assert len({one, Partial(adafactor, learning_rate=Partial(warmup_cosine, peak=0.1))}) == 1
    assert pickle.loads(pickle.dumps(one)) == one
    listed = Partial(warmup_cosine, peak=[0.1])
    assert copy.deepcopy(listed).settings["peak"] is not listed.settings["peak"]
    with refuses(AttributeError, "Partial"):
        one.function = warmup_cosine
    with pytest.raises(TypeError):
        one.settings["learning_rate"] = 3


def test_deferred_call_is_evaluated_when_used():
    turn = Call(objectives.turns, every=10, turn=1)
    members = {"a": (objectives.causal_lm, turn), "b": (objectives.causal_lm, 2)}
    mixture = Partial(objectives.mixture, members=members)(tiny.IDS)
    assert [mixture.facts.members[0].rate(step) for step in (0, 10)] == [0.0, 1.0]


def test_parameter_without_a_value_or_with_two_is_named():
    with refuses(ValueError, "warmup_steps", "--gin.optimizers.warmup_cosine.peak"):
        Partial(warmup_cosine)(100)
    with refuses(ValueError, "warmup_cosine", "total_steps"):
        Partial(warmup_cosine, total_steps=5, peak=1.0, warmup_steps=1)(100)
    assert Partial(warmup_cosine, peak=1.0, warmup_steps=1)(100, peak=2.0)(1) == 2.0


def test_explicit_default_is_not_a_difference():
    spelled = {"optimizer": Partial(adafactor, decay_rate=0.8, clip_norm=None), "seed": 0}
    assert differences({"optimizer": adafactor}, spelled) == []
    other = {"optimizer": Partial(adafactor, decay_rate=0.7)}
    assert differences({"optimizer": adafactor}, other) == ["optimizer.decay_rate: was 0.8, is 0.7"]


def test_differences_name_the_nested_setting():
    run = read_run(["runs/decoder.gin"])
    wider = read_run(["runs/decoder.gin"], ["models.decoder.emb_dim = 64", "STEPS = 9"])
    assert differences(fields_of(run), fields_of(wider)) == [
        "model.emb_dim: was 128, is 64",
        "steps: was 700, is 9",
    ]


def test_runs_are_read_independently():
    """No setting of one run is left over in the next run, unlike with gin's global registry."""
    first = read_run(["runs/decoder.gin"], ["models.decoder.emb_dim = 64"])
    second = read_run(["runs/decoder.gin"])
    assert (first.model.settings["emb_dim"], second.model.settings["emb_dim"]) == (64, 128)
    assert second == read_run(["runs/decoder.gin"]) and first != second
    assert dataclasses.replace(second, model=first.model) == first


# --- written and read back ------------------------------------------------------------------------


@pytest.mark.sampled
@pytest.mark.parametrize("run", RUNS)
def test_every_gin_run_round_trips(run, tmp_path):
    fields = tiny.completed(run)
    path = tmp_path / "config.gin"
    written = run_text(fields)
    path.write_text(written.text)
    changed = {k: v for k, v in fields.items() if is_required(k) or v != FIELDS[k].default}
    assert read_fields([str(path)]) == changed and written.unnamed == ()
    assert differences(fields, read_fields([str(path)])) == []


IMPORT = ["from __gin__ import dynamic_registration", "from pretrax import training"]
ANY_TEXT = st.text() | st.text(
    st.sampled_from("\\'\"`%$@#{}[]()=:,/\n\r\t\0\x0c\x85\u2028\u202e\ud800é☃-a1 ")
)
# Texts that a run directory may hold, including in keys and nested values.
ANY_VALUE = st.recursive(
    ANY_TEXT,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(ANY_TEXT, inner),
    max_leaves=8,
)


@pytest.mark.slow
@given(run_dir=ANY_TEXT, value=ANY_VALUE)
@settings(max_examples=80, deadline=None)
def test_every_text_round_trips(run_dir, value):
    fields = {"run_dir": run_dir, "assignment_map": value}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.gin")
        write_text(path, run_text(fields).text)
        assert read_fields([str(path)]) == fields


@pytest.mark.slow
@given(ANY_TEXT)
@settings(max_examples=50, deadline=None)
def test_nested_settings_and_comments_with_any_text_round_trip(text):
    two = [Partial(models.decoder, emb_dim=64), Partial(models.decoder, emb_dim=128)]
    fields = {"assignment_map": {text: two[0], "b": two[1]}}
    nameless = type("Nameless", (), {"__repr__": lambda _: text})()
    commented = fields | {"optimizer": nameless, "model": two[0]}
    imported = config_text(text, f"hf:{text}", "decoder", {"emb_dim": 64}, 128)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.gin")
        for written, expected in (
            (run_text(fields).text, fields),
            (run_text(commented).text, fields | {"model": two[0]}),
        ):
            write_text(path, written)
            assert read_fields([str(path)]) == expected
        write_text(path, imported)
        assert read_fields([str(path)])["initial_run"] == text


def test_function_with_different_settings_in_different_places_round_trips(tmp_path):
    """Two denoisers of a mixture are an example.

    A scope does not get the settings of another scope.
    """
    span = objectives.span_corruption
    members = {
        "a": (Partial(span, noise_density=0.15), 1.0),
        "b": (Partial(span, mean_span_length=8.0), 2.0),
        "c": (span, Call(objectives.turns, every=3, turn=0)),
        "d": (Partial(span, noise_density=0.15), Call(objectives.turns, every=3, turn=1)),
    }
    fields = {"objective": Partial(objectives.mixture, members=members)}
    path = tmp_path / "config.gin"
    path.write_text(run_text(fields).text)
    read = read_fields([str(path)])
    expected = {**members, "c": (Partial(span), members["c"][1])}
    assert read["objective"].settings["members"] == expected


def test_numpy_numbers_and_similar_member_names_round_trip(tmp_path):
    span = objectives.span_corruption
    members = {
        "a-1": (Partial(span, noise_density=np.float64(0.1)), np.int64(1)),
        "a_1": (Partial(span, noise_density=0.5), 2),
    }
    path = tmp_path / "config.gin"
    path.write_text(run_text({"objective": Partial(objectives.mixture, members=members)}).text)
    assert read_fields([str(path)])["objective"].settings["members"] == members
    assert run_text({"z_loss": float("inf")}).unnamed == ("z_loss",)


def test_default_function_accepts_settings():
    run = read_run(["runs/decoder.gin"], ["mesh.make_mesh.fsdp = 4"])
    assert run.mesh == Partial(make_mesh, fsdp=4)


def test_unnamed_functions_are_left_out_and_reported(tmp_path):
    fields = {
        "objective": lambda ids: None,
        "model": Partial(models.decoder, emb_dim=8),
        "steps": 3,
    }
    written = run_text(fields)
    assert written.unnamed == ("objective",) and "# training.Run.objective has no" in written.text
    path = tmp_path / "config.gin"
    path.write_text(written.text)
    assert read_fields([str(path)]) == {"model": fields["model"], "steps": 3}


def test_written_run_accepts_macro_overrides(tmp_path):
    path = tmp_path / "config.gin"
    path.write_text(run_text(tiny.completed("runs/decoder.gin")).text)
    assert read_run([str(path)], ["STEPS = 5", "RUN_DIR = 'x'"]).steps == 5


# --- gin's language -------------------------------------------------------------------------------


def test_gin_scopes_macros_blocks_and_later_bindings_are_read(tmp_path):
    path = write_gin(
        tmp_path,
        "from pretrax import objectives",
        "from pretrax import training",
        "TURN = 1",
        "objectives.turns:",
        "  every = 5",
        "  turn = 0",
        "late/objectives.turns.turn = %TURN",
        "training.Run.objective = @objectives.mixture",
        "objectives.mixture.members = {",
        '    "a": (@objectives.causal_lm, @objectives.turns()),',
        '    "b": (@objectives.prefix_lm, @late/objectives.turns()),',
        "}",
    )
    members = read_fields([path])["objective"].settings["members"]
    assert members["a"][1] == Call(objectives.turns, every=5, turn=0)
    assert members["b"][1] == Call(objectives.turns, every=5, turn=1)
    members = read_fields([path], ["TURN = 0"])["objective"].settings["members"]
    assert members["b"][1] == Call(objectives.turns, every=5, turn=0)


def test_corpus_objective_and_model_are_independent_choices():
    files = [
        "runs/decoder.gin",
        "corpora/text_files.gin",
        "objectives/ul2.gin",
        "models/gpt2_tiny.gin",
    ]
    run = read_run(files, ["FILES = 'data/*.txt'"])
    assert run.corpus.settings["files"] == "data/*.txt"
    assert run.objective.function is objectives.ul2
    assert run.model.settings["positions"] == "learned" and run.sequence_lengths == {"decoder": 256}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["models", "objectives"])
def test_preset_read_after_others_gives_only_its_own_settings(kind, tmp_path):
    """An objective may change settings of the model, which last until a file chooses a model.

    Presets that set the same names overwrite the same settings and leave the same settings behind,
    so one of them is enough.
    """
    model = 'include "models/encoder_decoder_tiny.gin"'
    alone = {}
    for path in sorted((GIN / kind).glob("*.gin")):
        fields = read_fields([write_gin(tmp_path, model, f'include "{path}"')])
        names = tuple((f.function, *sorted(f.settings)) for f in functions_in(fields))
        alone[names] = path, fields
    before = [f'include "{path}"' for path, _ in alone.values()]
    for path, fields in alone.values():
        found = read_fields([write_gin(tmp_path, *before, model, f'include "{path}"')])
        assert found == fields, path.stem


TINY = "models/encoder_tiny.gin"
CHOICE = "training.Run.model = @models.encoder"
DROPOUT = "models.encoder.dropout_rate = 0.1"


@pytest.mark.parametrize(
    "files, dropout_rate, width",
    [
        ([[CHOICE, DROPOUT]], 0.1, None),
        ([[DROPOUT, CHOICE]], 0.1, None),  # within a file, the order does not matter
        ([[f'include "{TINY}"', DROPOUT]], 0.1, 128),
        ([[f'include "{TINY}"', DROPOUT, CHOICE]], 0.1, 128),
        ([[f'include "{TINY}"'], [DROPOUT]], 0.1, 128),  # a later file that does not choose a model
        ([[CHOICE, DROPOUT], [CHOICE]], None, None),
        ([[CHOICE, DROPOUT], [f'include "{TINY}"']], None, 128),
        ([[CHOICE, DROPOUT, f'include "{TINY}"']], None, 128),
        ([[CHOICE, "a/" + DROPOUT], ["training.Run.model = @a/models.encoder"]], None, None),
        ([[CHOICE, DROPOUT], ["models.encoder.emb_dim = 64", CHOICE]], None, 64),
        # The command line is read last, and its choice does not discard other bindings.
        ([[CHOICE, DROPOUT], CHOICE, "models.encoder.emb_dim = 64"], 0.1, 64),
    ],
)
def test_file_that_chooses_a_builder_starts_from_its_defaults(files, dropout_rate, width, tmp_path):
    given = []
    for number, lines in enumerate(files):
        if isinstance(lines, list):
            folder = tmp_path / str(number)
            folder.mkdir()
            imports = ["from pretrax import models", "from pretrax import training"]
            lines = write_gin(folder, *imports, *lines)
        given.append(lines)
    model = read_lines(given)["model"]
    assert model.function is models.encoder
    assert model.settings.get("dropout_rate") == dropout_rate
    assert model.settings.get("emb_dim") == width


def test_functions_used_by_a_chosen_function_keep_their_settings():
    """The vocabulary size that the small runs use is an example, for any text."""
    run = read_run(["runs/decoder.gin", "corpora/text_files.gin"], ["FILES = 'a'"])
    assert run.corpus.settings["vocabulary"].settings["size"] == 2048


def test_quickstart_initialization_applies_only_to_its_own_model(tmp_path):
    def first_settings(*files):
        config = read_run(files, ["RUN_DIR = 'a'"]).model(512).config
        return config.init_locality, config.init_matching

    quickstart = "runs/quickstart.gin"
    assert first_settings(quickstart) == (3.0, True)
    imported = tmp_path / "config.gin"
    imported.write_text(config_text(str(tmp_path), "hf:other", "encoder_decoder", {}, 512))
    for file in (str(imported), "models/t5_1_1_small.gin"):
        assert first_settings(quickstart, file) == (0.0, False), file
    imported.write_text(run_text(fields_of(read_run([quickstart]))).text)
    assert first_settings(str(imported)) == (3.0, True)
    assert first_settings(str(imported), "models/t5_1_1_small.gin") == (0.0, False)


def test_objective_file_may_change_the_model_of_an_earlier_file():
    blocks = "objectives/block_diffusion_encoder_decoder.gin"
    settings = read_run(["runs/quickstart.gin", blocks]).model.settings
    assert (settings["merged_attention"], settings["emb_dim"]) == (True, 128)
    later = read_run(["runs/quickstart.gin", blocks, "models/t5_1_1_tiny.gin"])
    assert later.model == read_run(["runs/quickstart.gin", "models/t5_1_1_tiny.gin"]).model
    with refuses(ValueError, "encoder_decoder.merged_attention"):
        read_run(["runs/decoder.gin", blocks])


def test_seqio_corpus_leaves_no_settings_to_another(tmp_path):
    c4, task = "corpora/c4.gin", "corpora/seqio_task.gin"
    settings = {c4: 'DATA_DIR = "gs://mine"', task: 'MODULE = "my_tasks"'}
    named = ['MIXTURE_OR_TASK_NAME = "my_text"']
    for first, last in ((c4, task), (task, c4)):
        both = write_gin(tmp_path, f'include "{first}"', settings[first], f'include "{last}"')
        assert read_fields([both], named) == read_fields([last], named)


def parser_and_bindings(*arguments, **how):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_gin_arguments(parser)
    _, given = parse_with_gin(parser, arguments, **{"configured": Run, **how})
    return parser, given


def test_later_bindings_on_the_command_line_win():
    def steps(*bindings):
        _, given = parser_and_bindings(*bindings, "--gin_file=runs/decoder.gin")
        return run_in(given.reader()).steps

    assert steps("--gin.STEPS=1", "--gin_bindings=STEPS = 2", "--steps=3") == 3
    assert steps("--gin_bindings", "STEPS = 2", "--gin.STEPS=1") == 1
    assert steps("--steps", "3", "--gin.STEPS=1") == 1


@pytest.mark.parametrize(
    "argument, bound",
    [
        ("--run_dir=runs/mine", "RUN_DIR = 'runs/mine'"),
        ("--run_dir=2026", "RUN_DIR = '2026'"),  # the setting expects a text
        ("--run_dir='2026'", "RUN_DIR = '2026'"),
        ("--run_dir=it's mine", 'RUN_DIR = "it\'s mine"'),
        ("--gin.RUN_DIR=runs/mine", "RUN_DIR = 'runs/mine'"),
        ("--gin.RUN_DIR='runs/mine'", "RUN_DIR = 'runs/mine'"),
        ("--steps=20", "STEPS = 20"),
        ("--files=a*.txt, b/*.jsonl", "FILES = 'a*.txt, b/*.jsonl'"),
        ("--files=['a', 'b']", "FILES = ['a', 'b']"),
        ("--gin.FILES=%RUN_DIR", "FILES = %RUN_DIR"),
        ("--gin.training.Run.z_loss=1e-4", "training.Run.z_loss = 1e-4"),
        ("--gin.training.Run.packing=whole", "training.Run.packing = 'whole'"),
        ("--gin.training.Run.keep_every=None", "training.Run.keep_every = None"),
        ("--gin.training.Run.mesh=@mesh.make_mesh", "training.Run.mesh = @mesh.make_mesh"),
    ],
)
def test_text_values_need_no_quotes(argument, bound):
    _, given = parser_and_bindings(argument, files=["runs/own_text.gin"])
    assert given.bindings == (bound,)


def test_help_lists_macros_as_options():
    parser, _ = parser_and_bindings("--gin_file=runs/own_text.gin")
    help_text = " ".join(parser.format_help().split())
    assert re.search(r"--steps VALUE [\w\s]*optimizer steps \(STEPS = 1000\)", help_text)
    assert '"gs://…" (RUN_DIR = ' in help_text
    assert re.search(r"--files VALUE [^(]*glob patterns.* \(FILES, required\)", help_text)
    assert "--data_dir" not in help_text  # in other files


def test_every_field_of_a_run_is_documented_with_its_default():
    documented = re.findall(r"^  (\w+) \((.*?)\): \w", inspect.getdoc(Run), re.MULTILINE)
    assert [name for name, _ in documented] == list(FIELDS)
    for name, kind in documented:
        default = FIELDS[name].default
        words = [] if is_required(name) else [getattr(default, "__name__", repr(default))]
        assert kind.replace("_", "").split("; default ")[1:] == [w.replace("_", "") for w in words]


def test_help_explains_why_settings_are_not_listed(tmp_path):
    absent = write_gin(tmp_path, "import of_an_absent_extra")
    parser, _ = parser_and_bindings(f"--gin_file={absent}")
    output = " ".join(parser.format_help().split())
    assert re.search(r"settings of the gin files: cannot be listed: .*'of_an_absent_extra'", output)


def test_macros_may_hold_macros_functions_and_scopes(tmp_path):
    lines = """
from pretrax import models
from pretrax import training
from pretrax.training import optimizers
include "runs/quickstart.gin"
training.Run.model = @wide/models.encoder_decoder
STEPS = %LENGTH
LENGTH = 12
POLICY = @optimizers.warmup_constant
optimizers.adafactor.learning_rate = %POLICY
wide/models.encoder_decoder.emb_dim = %WIDTH
UNUSED = 3
"""
    macros = GinReader(Run).read([write_gin(tmp_path, lines)]).macros()
    assert macros["STEPS"].value == macros["LENGTH"].value == 12
    assert macros["POLICY"].value == "@optimizers.warmup_constant"
    assert macros["WIDTH"] == (None, False, ((models.encoder_decoder, "emb_dim"),))
    assert "UNUSED" not in macros


def test_circular_macros_are_listed_and_rejected_when_read(tmp_path):
    around = write_gin(tmp_path, 'include "runs/decoder.gin"', "STEPS = %LENGTH", "LENGTH = %STEPS")
    assert GinReader(Run).read([around]).macros()["STEPS"].value == "%STEPS"
    with refuses(ValueError, "gin", "macros"):
        read_run([around])


@pytest.mark.parametrize(
    "files, bindings, expected",
    [
        (
            ["runs/own_text.gin", "runs/decoder.gin"],
            ["FILES = 'a'"],
            ["FILES = 'a'", "python_library.gin, line"],
        ),
        (
            ["runs/decoder.gin", "models/bert_tiny.gin"],
            ["models.decoder.emb_dim = 8"],
            ["models.decoder.emb_dim = 8", "bert_base.gin, line"],
        ),
        (
            ["runs/decoder.gin"],
            ["models.decoder.emb_dim = 8", "training.Run.model = @models.encoder"],
            ["models.decoder.emb_dim = 8", "training.Run.model = @models.encoder"],
        ),
        (["runs/decoder.gin"], ["batch_size = 4"], ["--gin.training.Run.batch_size"]),
        (["runs/decoder.gin"], ["STEPS = %STEPS"], ["gin", "macros"]),
        (
            ["runs/decoder.gin"],
            ["training.Run.sequence_lengths = {'decoder': 256"],
            ["training.Run.sequence_lengths"],
        ),
        (["runs/decoder.gin"], ["models.encoder.emb_dim = 8"], ["models.builders.encoder"]),
        (["runs/decoder.gin"], ["optimizers.warmup_cosine.peek = 8"], ["'peak'", "warmup_steps"]),
        (["runs/decoder.gin"], ["training.Run.model = @models.decodr"], ["'models.decoder'"]),
        (["runs/decoder.gin"], ["training.Runn.seed = 1"], ["'training.Run'"]),
        (["runs/decoder.gin"], ["trainng.Run.seed = 1"], ["'training'"]),
        (["runs/decoder.gin"], ["STEP = 1"], ["'STEPS'"]),
        (["runs/decoder.gin"], ["nowhere.f = 1"], ["'nowhere'", "optimizers"]),
        (["objectives/ul2.gin"], [], ["run_dir", "corpus", "model", "--corpus=python_library"]),
        (["runs/decode.gin"], [], ["'runs/decode.gin'", "runs/decoder.gin"]),
        (["runs/decoder.gin"], ["Run.batch_size = 4"], ["training.Run"]),
        (["runs/decoder.gin"], ["decoder.emb_dim = 64"], ["models.decoder"]),
        (["runs/decoder.gin"], ["model = @decoder"], ["models.decoder"]),
        (["runs/decoder.gin"], ["STEPS = %STOPS"], ["STOPS", "--stops=VALUE"]),
    ],
)
def test_invalid_bindings_name_the_setting_and_alternatives(files, bindings, expected):
    with refuses(ValueError, *expected):
        read_run(files, bindings)


@pytest.mark.parametrize(
    "line, expected",
    [
        ("mesh.make_mesh.data = 'a'", ["mesh.make_mesh.data", "'a'"]),
        ("FILES = 3", ["text_files.files", 3]),
        ("corpora.text_files.seed = 'a'", ["corpora.text_files.seed", "'a'"]),
        ("vocabularies.trained.size = True", ["trained.size", True]),
    ],
)
def test_setting_of_the_wrong_type_is_named(line, expected, tmp_path):
    (tmp_path / "a.txt").write_text("text")
    run = read_run(["runs/own_text.gin"], [f"FILES = '{tmp_path}/a.txt'", line])
    with refuses(ValueError, *expected):
        run.mesh() if "mesh" in line else run.corpus(str(tmp_path / "run"))


@pytest.mark.parametrize("value", ["[" * 3000 + "]" * 3000, "{1: " * 500 + "2" + "}" * 500])
def test_too_deeply_nested_values_name_their_file(tmp_path, value):
    (tmp_path / "config.gin").write_text(f"A = {value}\ntraining.Run.run_dir = 'a'\n")
    for read in (read_fields, lambda files: plain_fields(str(tmp_path))):
        with refuses(ValueError, tmp_path / "config.gin"):
            read([str(tmp_path / "config.gin")])
    with pytest.raises(ValueError):
        read_fields([], [f"training.Run.run_dir = {value}"])


DOUBLED = ("[%M{0}, %M{0}]", "{{1: %M{0}, 2: %M{0}}}", "(%M{0}, %M{0})")
JOINED = (
    "s{0}/optax.join_schedules.schedules = [@s{1}/optax.join_schedules, @s{1}/optax.join_schedules]"
)


@pytest.mark.parametrize(
    "first, each, last",
    [
        *(("M0 = 1", f"M{{1}} = {x}", "training.Run.assignment_map = %M60") for x in DOUBLED),
        pytest.param(
            *("import optax", JOINED, "training.Run.optimizer = @s0/optax.join_schedules"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_exponentially_growing_values_are_rejected(tmp_path, first, each, last):
    lines = [*IMPORT, first, *(each.format(i, i + 1) for i in range(60)), last]
    (tmp_path / "config.gin").write_text("\n".join(lines))
    with refuses(ValueError, "100", "000"):
        read_fields([str(tmp_path / "config.gin")])


def test_similar_user_file_is_suggested(tmp_path):
    (tmp_path / "my_run.gin").write_text("")
    with refuses(ValueError, "my_run.gin") as error:
        read_run([str(tmp_path / "my_rnu.gin")])
    assert str(error.value).count(".gin") <= 6


def test_gin_file_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "a.gin").write_bytes(b"# caf\xe9\n")
    with refuses(ValueError, "a.gin", "8"):
        read_run([str(tmp_path / "a.gin")])


@pytest.mark.parametrize("name", t5x_names.NAMES)
def test_t5x_names_are_recognized(name):
    with refuses(ValueError, name, "T5X"):
        read_run(["runs/decoder.gin"], [f"{name} = 1"])


@pytest.mark.parametrize(
    "lines, expected",
    [
        (["import nothing_of_this_name"], ["mine.gin, line 2", "nothing_of_this_name"]),
        (["from pretrax import models", "models.bert_.x = 1"], ["mine.gin, line 3", "bert_"]),
        (["training.Run.steps = "], ["mine.gin"]),
        (["training.Run.sequence_lengths = {[1]: 2}"], ["mine.gin", [1], "line 2"]),
        (['include "mine.gin"'], ["mine.gin"]),
        (['include "runs/decoder.gin"', "FILES = 'a'"], ["FILES", "mine.gin, line 3"]),
        (["import broken_module_of_mine"], ["broken_module_of_mine", "ValueError", "boom"]),
        (
            [
                "from pretrax.training import optimizers",
                'include "runs/decoder.gin"',
                "optimizers.adamw.b1 = 0.8",
            ],
            ["training.optimizers.adamw.b1", "mine.gin, line 4"],
        ),
        (
            [
                "from pretrax import models",
                'include "runs/decoder.gin"',
                'include "models/bert_tiny.gin"',
                "models.decoder.emb_dim = 8",
            ],
            ["models.builders.decoder.emb_dim", "mine.gin, line 5", "bert_base.gin"],
        ),
        (['include "absent.gin"'], ["'absent.gin'"]),
    ],
)
def test_invalid_gin_files_are_rejected(tmp_path, lines, expected, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_module_of_mine.py").write_text("raise ValueError('boom')")
    with refuses(ValueError, *expected):
        read_fields([write_gin(tmp_path, *lines)])


def test_binding_shadowed_by_a_scope_is_rejected(tmp_path):
    lines = [
        "from pretrax import models",
        "from pretrax import training",
        'include "runs/quickstart.gin"',
        "training.Run.model = @mine/models.encoder_decoder",
        "mine/models.encoder_decoder.dropout_rate = 0.1",
    ]
    binding = "models.encoder_decoder.dropout_rate = 0.2"
    with refuses(ValueError, binding, "mine/models.encoder_decoder.dropout_rate"):
        read_run([write_gin(tmp_path, *lines)], [binding])
    assert (
        read_run([write_gin(tmp_path, *lines)], [f"mine/{binding}"]).model.settings["emb_dim"]
        == 128
    )


def test_settings_of_a_replaced_choice_are_ignored(tmp_path):
    own = write_gin(
        tmp_path,
        "from pretrax import models",
        'include "runs/encoder.gin"',
        "DROPOUT = 0.1",
        "models.encoder.dropout_rate = %DROPOUT",
    )
    assert read_run([own]).model.settings["dropout_rate"] == 0.1
    assert "dropout_rate" not in read_run([own, "models/encoder_tiny.gin"]).model.settings
    assert read_run([own, "models/gpt2_tiny.gin"]).model.function is models.decoder


def test_file_that_sets_what_it_has_replaced_is_rejected(tmp_path):
    lines = ["from pretrax import models", 'include "runs/decoder.gin"']
    lines += ['include "models/encoder_tiny.gin"', "models.decoder.emb_dim = 8"]
    with refuses(ValueError, "decoder.emb_dim", "mine.gin", "encoder_tiny.gin"):
        read_fields([write_gin(tmp_path, *lines)], ["training.Run.model = @models.encoder"])


def test_imported_model_sets_the_vocabulary_of_any_corpus(tmp_path):
    sizes = dict(emb_dim=8, num_heads=1, head_dim=8, mlp_dim=8, num_layers=1)
    path = tmp_path / "config.gin"
    path.write_text(config_text(str(tmp_path), "hf:other", "decoder", sizes, 512))
    run = read_run(["runs/decoder.gin", str(path)])
    assert run.corpus.settings["vocabulary"].settings == {"run": str(tmp_path)}


def test_class_valued_setting_round_trips(tmp_path):
    fields = {"model": Partial(models.decoder, dtype=jnp.bfloat16)}
    path = tmp_path / "config.gin"
    path.write_text(run_text(fields).text)
    assert read_fields([str(path)]) == fields
    assert dict(flattened("model", fields["model"]))["model.dtype"] == "jax.numpy.bfloat16"


def test_moved_run_is_rejected_with_the_new_directory(tmp_path):
    fields = tiny.completed("runs/decoder.gin") | {"run_dir": str(tmp_path / "there")}
    for name in ("there", "moved"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.gin").write_text(run_text(fields).text)
    moved = tmp_path / "moved"
    assert read_run([f"{tmp_path}/there/config.gin"]).run_dir == fields["run_dir"]
    with refuses(ValueError, tmp_path / "there", f"--run_dir={moved}"):
        read_run([f"{moved}/config.gin"])
    assert read_run([f"{moved}/config.gin"], [f"RUN_DIR = '{moved}'"]).run_dir == str(moved)


def test_search_paths_find_gin_files(tmp_path):
    write_gin(tmp_path, 'include "runs/decoder.gin"', "STEPS = 3")
    assert read_run(["mine.gin"], search_paths=[str(tmp_path)]).steps == 3


def test_run_directory_of_another_version_is_rejected(tmp_path):
    path = tmp_path / "config.gin"
    path.write_text("from __gin__ import dynamic_registration\nfrom pretrax.commands import gone\n")
    with refuses(ValueError, "pretrax.commands.gone"):
        read_directory(str(tmp_path))


def test_run_without_a_required_field_is_rejected():
    with refuses(TypeError, "objective"):
        Run(run_dir="a", corpus=len)  # type: ignore[call-arg]
    with refuses(ValueError, "batch_size"):
        as_run({name: 1 for name in FIELDS if name != "batch_size"})


@pytest.mark.slow
def test_training_package_loads_neither_gin_nor_tensorflow():
    program = (
        "import sys; from pretrax import models, objectives, training; "
        "print(sorted({'gin', 'tensorflow', 'seqio', 'matplotlib'} & set(sys.modules)))"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program], env=tiny.environment(), capture_output=True, text=True
    )
    assert completed.stdout.strip() == "[]", completed.stderr
