"""The command `show`: its output and errors."""

import functools
import json
import re
import subprocess
import sys

import pytest

from pretrax.cli import show
from pretrax.corpora import vocabularies
from pretrax.corpora.vocabularies import VocabularySource, special_tokens
from pretrax.objectives.catalog import CATALOG, FAMILIES
from pretrax.tasks import sample_text
from pretrax.visualization import drawing, noise_statistics
from tests.refusals import assert_named, error_of
from tests.tasks.short_library import short_library
from tests.training.tiny import ROOT, environment

BYTES = "--vocabulary=bytes"


def prints(capsys, *arguments) -> str:
    show.run(arguments)
    return capsys.readouterr().out


def fails(capsys, *arguments) -> str:
    return error_of(capsys, show.run, arguments)


# --- output ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_text_without_a_loss_is_reported(capsys, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    name = "objective_on_token_texts.masked_numbers"
    only_numbers = (
        f"--objective={name}",
        BYTES,
        f"--gin.{name}.others=0",
        f"--gin.{name}.digits=1",
    )
    assert show.WITHOUT_LOSS in prints(capsys, *only_numbers, "--text=a cat")
    assert show.WITHOUT_LOSS not in prints(capsys, *only_numbers, "--text=2 cats")


def test_letters_missing_from_the_vocabulary_are_counted(tmp_path):
    dna = vocabularies.letters(str(tmp_path), VocabularySource(), alphabet="dna")
    text = functools.partial(sample_text.from_texts, dna)
    assert not show.lacking(text(["ACGT"]))
    assert_named(show.lacking(text(["ACGT", "xyz"])), 3, 7)


def test_list_has_every_objective(capsys):
    output = prints(capsys, "--list")
    assert re.search(r"masked_lm +mlm +encoder +.*BERT, arXiv:1810\.04805", output)
    lines = output.splitlines()
    for family, entries in FAMILIES.items():
        place = lines.index(family)
        names = [line.split()[0] for line in lines[place + 1 : place + 1 + len(entries)]]
        assert names == list(entries)
    assert output.endswith("To see one: pretrax show --objective=NAME\n")


@pytest.mark.parametrize("width", [80, 100, 120, 136])
def test_list_has_one_line_per_objective_at_any_width(capsys, monkeypatch, width):
    monkeypatch.setattr(show, "LIST_WIDTH", width)
    output = prints(capsys, "--list").partition("\nTo see")[0]
    assert "…" not in output and max(map(len, output.splitlines())) <= width
    assert re.search(r"^span_corruption .* fine-tuning to text-to-text tasks", output, re.MULTILINE)
    assert len(output.splitlines()) == 1 + len(CATALOG) + 2 * len(FAMILIES)


def test_list_is_printed_as_json(capsys):
    found = json.loads(prints(capsys, "--list", "--json"))
    assert [one["objective"] for one in found] == list(CATALOG)
    (masked,) = [one for one in found if one["objective"] == "masked_lm"]
    assert masked["short_names"] == ["mlm"] and masked["run"] == "encoder"
    assert masked["family"] in FAMILIES and masked["attends"] == "bidirectional"
    assert "--list" in fails(capsys, "--json")


@pytest.mark.parametrize(
    "arguments", [["--list"], [BYTES, "--objective=causal_lm", "--text=a b"]], ids=str
)
def test_output_has_no_trailing_spaces(capsys, arguments):
    output = prints(capsys, *arguments)
    padded = [line for line in output.splitlines() if line.endswith(" ")]
    assert not padded


@pytest.fixture(scope="module")
def vocabulary_folder(tmp_path_factory):
    """A folder in which the default vocabulary is trained once, on a part of Python's library."""
    with short_library():
        yield tmp_path_factory.mktemp("show")


@pytest.mark.slow
@pytest.mark.parametrize("name", [next(iter(entries)) for entries in FAMILIES.values()])
def test_default_output_fits_on_two_screens(name, capsys, monkeypatch, vocabulary_folder):
    monkeypatch.chdir(vocabulary_folder)
    monkeypatch.setattr(show, "WIDTH", 80)
    assert len(prints(capsys, f"--objective={name}").splitlines()) <= 100


@pytest.mark.slow
def test_rows_option_shows_the_details_of_a_mixture(capsys):
    given = BYTES, "--objective=spans_and_prefix", "--text=A text of a few words."
    brief, whole = prints(capsys, *given), prints(capsys, *given, "--rows=1")
    assert (brief.count("Text  "), whole.count("Text  ")) == (1, 2)
    assert (brief.count("attends to encoder"), whole.count("attends to encoder")) == (1, 2)
    assert (brief.count("Encoder  "), whole.count("Encoder  ")) == (2, 2)
    assert "--rows=1" in brief and "--rows=1" not in whole


@pytest.mark.slow
def test_html_page_is_written_and_its_path_printed(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(noise_statistics, "ROWS", 100)
    file = tmp_path / "deep" / "page.html"
    output = prints(
        capsys, BYTES, "--text=Bread & butter, and more.", "--length=64", f"--html={file}"
    )
    assert f"The page is {file}: open it in a browser." in output
    assert len(output.splitlines()) < 5 and "Encoder" not in output
    page = file.read_text()
    assert "butter" in page and page.count("<details") == 3 and page.count("xmlns:xlink") == 2


FOX = "--text=The quick brown fox jumps over the lazy dog"


def test_control_characters_of_texts_are_escaped(capsys):
    output = prints(capsys, BYTES, "--objective=causal_lm", "--text=a\x1b]0;x\x07b")
    assert "a␛]0;x" in output and "\x1b" not in output and "\x07" not in output
    error = fails(capsys, BYTES, "--objective=causal_lm", "--file=\x1b]0;x\x07")
    assert "\x1b" not in error and "\x07" not in error


@pytest.mark.slow
def test_adaptive_noise_is_shown_in_its_initial_state(capsys):
    output = prints(capsys, BYTES, FOX, "--objective=amlm", "--hide=quick")
    assert "Noise: adapts to the model in training; the picture shows the initial noise" in output
    assert "5 hidden" in output
    assert "adapts" not in prints(capsys, BYTES, FOX, "--objective=mlm", "--hide=quick")


@pytest.mark.slow
def test_hide_option_hides_the_given_text(capsys):
    output = prints(capsys, BYTES, FOX, "--hide=quick brown,jumps")
    assert "16 hidden" in output and "The ⟨0⟩ fox ⟨1⟩ over the lazy dog</s>" in output
    call, middle = "--text=def add(a, b): return a + b", "--hide=add(a, b)"  # a piece with a comma
    output = prints(capsys, BYTES, "--objective=fill_in_the_middle", call, middle)
    assert re.search(r"<\|fim_middle\|> a +d.*\n +, · b \).*\n +· b \) </s>", output)


@pytest.mark.slow
def test_hide_option_hides_whole_words(capsys):
    output = prints(capsys, "--vocabulary=words", FOX, "--hide=quick brown,jumps")
    assert "The ⟨0⟩ fox ⟨1⟩ over the lazy dog </s>" in output
    assert re.search(r"\n +▷ +⟨0⟩ +quick brown ⟨1⟩ +jumps ⟨2⟩", output)
    call = "--text=def add(a, b): return a + b"
    fim = "--objective=fill_in_the_middle", "--vocabulary=words"
    output = prints(capsys, *fim, call, "--hide=add(a, b)")
    assert re.search(r"<\|fim_middle\|> add +\( +a +, +b +\)", output)
    later = "--text=an apple a day", "--hide=a"  # the first whole word
    assert "an apple ⟨0⟩ day" in prints(capsys, "--vocabulary=words", *later)


@pytest.mark.slow
@pytest.mark.parametrize(
    "objective", ["masked_input_next_token", "masked_input_regularization", "causal_diffusion"]
)
def test_hidden_words_are_masks_in_causal_inputs(objective, capsys):
    output = prints(
        capsys, f"--objective={objective}", "--vocabulary=words", FOX, "--hide=fox jumps"
    )
    # One of them is in the legend.
    assert "brown [MASK] [MASK] over" in output and output.count("[MASK]") == 3
    assert re.search(r"brown +fox +jumps +over", output)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "objective, hide, values",
    [
        ("span_corruption", "cat", ["cat"]),  # not in the text
        ("span_corruption", "fox,quick", ["quick"]),  # not after "fox"
        ("span_corruption", "dog,", ["dog,", "comma"]),  # an empty piece
        # The message names an objective that can hide tokens.
        ("causal_lm", "fox", ["span_corruption"]),
        ("prefix_lm", "fox", ["fox", "prefix"]),
        ("fill_in_the_middle", "quick,dog", ["quick", "dog", "fill-in-the-middle"]),
    ],
)
def test_invalid_hide_option_is_rejected(objective, hide, values, capsys):
    error = fails(capsys, BYTES, f"--objective={objective}", FOX, f"--hide={hide}")
    assert_named(error, *values)


def test_part_of_a_word_is_not_hidden_with_a_word_vocabulary(capsys):
    assert_named(fails(capsys, "--vocabulary=words", FOX, "--hide=uick brown"), "'uick brown'")


@pytest.mark.slow
def test_omitted_members_of_a_mixture_are_counted(capsys, monkeypatch):
    monkeypatch.setattr(drawing, "MAX_MEMBERS", 1)
    output = prints(capsys, BYTES, "--objective=spans_and_prefix", "--text=A few words here.")
    assert (
        "spans ──" in output and "prefix ──" not in output and "The first 1 of 2 members." in output
    )


def test_several_documents_are_packed_into_segments(capsys):
    output = prints(capsys, BYTES, "--objective=causal_lm", "--text=one\n\ntwo", "--text=three")
    assert "in 3 documents" in output and re.search(r"segments +1×4 2×4 3×6", output)
    assert re.search(r"positions +0…3 0…3 0…5", output)


@pytest.mark.slow
def test_objective_settings_and_layout_are_applied(capsys):
    output = prints(
        capsys,
        BYTES,
        "--objective=span_corruption",
        "--gin.objectives.span_corruption.noise_density=0.5",
        "--layout=decoder",
        "--text=0123456789",
    )
    assert "10 tokens; 5 hidden" in output and "Encoder" not in output
    assert "pretrax train decoder --objective=span_corruption" in output


@pytest.mark.slow
def test_sample_text_is_shown_without_a_user_text(capsys):
    """Two views of the sample text would be longer than a row."""
    output = prints(capsys, BYTES, "--objective=contrastive", "--length=64")
    assert (
        "contrastive" in output and "Model: encoder" in output and "Beautiful is better" in output
    )


@pytest.mark.slow
def test_printed_train_command_has_the_given_files_and_settings(capsys):
    run, setting = "--gin_file=runs/decoder.gin", "--gin.training.Run.packing=single"
    output = prints(capsys, BYTES, run, setting, "--text=Some words of mine.")
    assert f"pretrax train {run} {setting}" in output
    output = prints(capsys, BYTES, run, "--objective=prefix_lm", "--text=Some words of mine.")
    assert f"pretrax train --objective=prefix_lm {run}" in output
    output = prints(
        capsys, BYTES, "decoder", "--objective=prefix_lm", setting, "--text=Some words."
    )
    assert f"pretrax train decoder --objective=prefix_lm {setting}\n" in output


def test_objective_of_a_user_gin_file_is_shown(capsys, tmp_path):
    file = tmp_path / "own.gin"
    file.write_text(
        "from __gin__ import dynamic_registration\nfrom pretrax import objectives\nfrom pretrax "
        "import training\ntraining.Run.objective = @objectives.causal_lm\n"
    )
    output = prints(capsys, BYTES, f"--gin_file={file}", "--text=Some words of mine.")
    assert "causal_lm" in output and "Model: decoder" in output


@pytest.mark.slow
def test_gin_file_determines_text_vocabulary_and_row_length(capsys, tmp_path):
    (tmp_path / "mine.txt").write_text("Some words of mine, and some of somebody else.")
    file = tmp_path / "own.gin"
    file.write_text(
        "from __gin__ import dynamic_registration\nfrom pretrax import objectives\n"
        "from pretrax import training\nfrom pretrax import corpora\n"
        "from pretrax.corpora import vocabularies\n"
        "training.Run.objective = @objectives.causal_masking\n"
        "training.Run.corpus = @corpora.text_files\n"
        f"corpora.text_files.files = '{tmp_path}/*.txt'\n"
        "corpora.text_files.heldout_every = 2\n"
        "corpora.text_files.vocabulary = @vocabularies.utf8_bytes\n"
        "training.Run.sequence_lengths = {'decoder': 32}\n"
        "training.Run.packing = 'single'\n"
    )
    given = f"--gin_file={file}"
    output = prints(capsys, given, "--text=Five.")
    assert re.search(r"Text  [56] tokens", output) and "packing = 'single' is not used" in output
    assert "corpus of the gin files" not in output
    assert "Some words" in prints(capsys, given)
    assert "32" in fails(capsys, given, "--text=" + "long " * 20)
    output = prints(capsys, given, BYTES, "--text=Five.")
    assert "corpus of the gin files is not used: --vocabulary" in output


@pytest.mark.slow
def test_seqio_objective_tasks_are_shown(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.txt").write_text("0123456789 0123456789\n")
    (tmp_path / "shown_tasks.py").write_text(
        "import functools\nimport seqio\nfrom pretrax import objectives\n"
        "from pretrax.tasks.seqio.objective_tasks import add_objective_task\n"
        "source = seqio.TextLineDataSource({'train': 'train.txt', 'validation': 'train.txt'})\n"
        "seqio.TaskRegistry.add('shown_text', source=source, preprocessors=[\n"
        "    lambda lines: lines.map(lambda line: {'targets': line}),\n"
        "    seqio.preprocessors.tokenize,\n"
        "], output_features={'targets': seqio.Feature(seqio.ByteVocabulary(), add_eos=False)})\n"
        "spans = functools.partial(objectives.span_corruption, noise_density=0.5)\n"
        "add_objective_task('shown_spans', 'shown_text', spans)\n"
        "add_objective_task('shown_prefixes', 'shown_text', objectives.prefix_lm)\n"
        "tasks = [('shown_spans', 1), ('shown_prefixes', 3)]\n"
        "seqio.MixtureRegistry.add('shown_mixture', tasks)\n"
    )
    module = "--module=shown_tasks.py"
    output = prints(capsys, "--task=shown_spans", module)
    assert (
        "shown_spans" in output
        and "Model: encoder-decoder" in output
        and "21 tokens; 10 hidden" in output
    )
    files = ["--gin_file=runs/quickstart.gin", "--gin_file=corpora/seqio_objectives.gin"]
    for given in (["--task=shown_mixture"], [*files, "--mixture_or_task_name=shown_mixture"]):
        output = prints(capsys, *given, module)
        assert (
            "shown_spans ──" in output and "shown_prefixes ──" in output and "0123456789" in output
        )


def test_missing_corpus_data_suggests_another_vocabulary(capsys, tmp_path):
    files = "--gin_file=runs/decoder.gin", "--gin_file=corpora/text_files.gin"
    given = *files, f"--gin.FILES='{tmp_path}/*.txt'", "--text=Five."
    output = fails(capsys, *given)
    assert f"{tmp_path}/*.txt" in output and BYTES in output
    assert "Five." in prints(capsys, *given, BYTES)


@pytest.mark.slow
def test_longest_row_shape_of_a_run_is_used(capsys):
    shapes = "[{'decoder': 16}, {'decoder': 32}]"
    given = "--gin_file=runs/decoder.gin", BYTES
    lengths = f"--gin.training.Run.sequence_lengths={shapes}"
    assert "causal_lm" in prints(capsys, *given, lengths, "--text=" + "a" * 31)
    assert_named(fails(capsys, *given, lengths, "--text=" + "a" * 40), 32)


@pytest.mark.slow
def test_user_builder_is_shown_with_its_settings(capsys, tmp_path, monkeypatch):
    (tmp_path / "shown_objectives.py").write_text(
        "from pretrax.objectives import span_corruption\n\n\n"
        "def mine(ids, density=0.2):\n    return span_corruption(ids, noise_density=density)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    named, text = "--objective=shown_objectives.mine", (BYTES, "--text=0123456789")
    output = prints(capsys, named, *text)
    assert (
        "mine" in output and "Model: encoder-decoder" in output and "10 tokens; 2 hidden" in output
    )
    output = prints(capsys, named, *text, "--gin.shown_objectives.mine.density=0.5")
    assert "10 tokens; 5 hidden" in output
    error = fails(capsys, "--objective=shown_objectives.other", *text)
    assert_named(error, "'shown_objectives.other'")


def test_objective_file_with_model_settings_keeps_the_default_choices():
    """The model is that of the objective's small run, and does not affect the picture otherwise."""
    options = show.read_command_line(["--objective=block_diffusion_encoder_decoder"])
    choice = show.choose(options)
    assert choice.name == "block_diffusion_encoder_decoder"
    assert choice.model is None and choice.corpus is None and choice.sequence_lengths is None


@pytest.mark.slow
def test_short_name_is_resolved_and_next_commands_are_printed(capsys):
    output = prints(capsys, BYTES, "--objective=CM3", "--text=Some words of mine.")
    assert "causal_masking" in output and "Model: decoder" in output
    assert "pretrax train decoder --objective=causal_masking" in output and "--html=FILE" in output


@pytest.mark.slow
def test_show_does_not_load_tensorflow():
    loaded = "print({'tensorflow', 'seqio'} & set(sys.modules), len(show.CATALOG))"
    program = f"import sys; from pretrax.cli import show; {loaded}"
    completed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    assert completed.stdout.strip() == f"set() {len(CATALOG)}", completed.stderr


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--objective=mask_lm"], ["masked_lm"]),
        (["--text= \n "], ["--text"]),
        (["--text=a"], ["token"]),
        (["--file=absent/a.txt"], ["absent/a.txt", "absent"]),
        (["--text=a b", "--file=b"], ["--text", "--file"]),
        (["--text=" + "long " * 200], ["1,000 tokens", "512 slots", "--length"]),
        (["--length=1", "--text=ab"], ["1 slots"]),
        (["--layout=encoder", "--text=some words"], ["'targets'", "'encoder'"]),
        (["--gin.objectives.span_corruption.noise_density=2", "--text=abc"], ["noise_density", 2]),
        (["--run=/tmp"], ["--run", "--vocabulary"]),
        (["--rows=0"], ["--rows", 1, "'0'"]),
        (["--texts=a"], ["'--texts=a'"]),
    ],
    ids=lambda x: str(x[0])[:24],
)
def test_invalid_arguments_are_rejected(capsys, arguments, expected):
    assert_named(fails(capsys, BYTES, *arguments), *expected)


def test_run_in_a_bucket_is_copied_locally(capsys, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(show, "local_copy", lambda run: asked.append(run) or str(tmp_path))
    assert_named(fails(capsys, "--run=gs://bucket/mine"), tmp_path, "config.gin")
    assert asked == ["gs://bucket/mine"]


def test_vocabulary_without_a_needed_id_is_rejected(capsys, monkeypatch):
    make = special_tokens.token_ids
    monkeypatch.setattr(special_tokens, "token_ids", lambda t: make(t, specials=("R", "S")))
    assert_named(fails(capsys, BYTES, "--objective=masked_lm", "--text=some words"), "'mask'")
