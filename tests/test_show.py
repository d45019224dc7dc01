"""`show.py`: what it prints, what it says of mistakes, and the catalogue it reads from."""

import re
import subprocess
import sys
import typing

import pytest

from pretrax import objectives, show
from pretrax.objectives import Objective
from pretrax.objectives.catalogue import ARCHITECTURES, CATALOGUE
from pretrax.objectives.layouts import LAYOUTS
from tests.training.tiny import ROOT, environment

BYTES = "--vocabulary=bytes"
GIN_FILES = sorted((ROOT / "gin_configs" / "objectives").glob("*.gin"))


def prints(capsys, *arguments) -> str:
    show.run(arguments)
    return capsys.readouterr().out


def fails(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as end:
        show.run(arguments)
    said = capsys.readouterr().err
    assert end.value.code == 2 and "Traceback" not in said
    return said


# --- the catalogue ---------------------------------------------------------------------------------


def test_every_objective_is_in_the_catalogue():
    assert [path.stem for path in GIN_FILES] == sorted(CATALOGUE)
    assert show.objective_names() == list(CATALOGUE)


def test_every_exported_builder_is_in_some_gin_file():
    builders = {
        name
        for name in objectives.__all__
        if typing.get_type_hints(getattr(objectives, name)).get("return") is Objective
        if callable(getattr(objectives, name))
    }
    texts = "".join(path.read_text() for path in (ROOT / "gin_configs").rglob("*.gin"))
    named = re.findall(r"@objectives\.(\w+)", texts)
    assert len(builders) > 20 and builders <= set(named)


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_entry_says_what_it_should(name):
    entry = CATALOGUE[name]
    assert entry.architecture in ARCHITECTURES
    assert re.search(r"arXiv:\d{4}\.\d{5}$", entry.paper)
    assert 4 < len(entry.good_for) < 36 and entry.attention
    assert entry.span_law in (None, "composition", "poisson")


# --- how many places give a loss: what textbooks say ----------------------------------------------

# In rows of 512 tokens of text. Textbooks count 511 for a causal model, which is given the first
# token; ours predicts that one as well, from the start token. Prefixes are uniform in 1 … 511, so
# the mean is 256 and end-of-sequence. Of span corruption's 104, 77 are text (15%), 26 sentinels
# and one end-of-sequence.
TEXTBOOK = {
    "causal_lm": 512,
    "masked_lm": 77,
    "span_corruption": 77 + 26 + 1,
    "replaced_token_detection": 512,
    "contrastive": 2,
}


@pytest.mark.parametrize("name", TEXTBOOK)
def test_places_that_give_a_loss(name):
    assert show.counted_loss_places(name) == TEXTBOOK[name]


def test_a_prefix_leaves_half_on_average():
    """Within four standard deviations of the mean of 32 uniform numbers."""
    assert show.counted_loss_places("prefix_lm") == pytest.approx(257, abs=4 * 148 / 32**0.5)


def test_the_list(capsys, monkeypatch):
    monkeypatch.setattr(show, "objective_names", lambda: ["masked_lm", "fill_in_the_middle"])
    monkeypatch.setattr(
        show, "counted_loss_places", {"masked_lm": 77, "fill_in_the_middle": 516}.get
    )
    said = prints(capsys, "--list")
    assert re.search(r"masked_lm +77 +encoder +bidirectional +.*BERT, arXiv:1810\.04805", said)
    assert re.search(r"fill_in_the_middle +516 +decoder +causal", said)


# --- what is printed -------------------------------------------------------------------------------


def test_an_example_and_its_page(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(show, "STATISTICS_ROWS", 100)
    file = tmp_path / "deep" / "page.html"
    said = prints(
        capsys, BYTES, "--text=Bread & butter, and more.", "--length=64", f"--html={file}"
    )
    for words in ("span_corruption", "Encoder", "Decoder", "⟨0⟩", "attends to", "1×", "▷"):
        assert words in said
    assert said.rstrip().endswith(f"The page is {file}: open it in a browser.")
    page = file.read_text()
    assert "butter" in page and page.count("<details") == 3 and page.count("xmlns:xlink") == 2


def test_members_of_a_mixture(capsys, monkeypatch):
    monkeypatch.setattr(show, "MOST_MEMBERS", 1)
    said = prints(capsys, BYTES, "--objective=spans_and_prefix", "--text=A few words here.")
    assert "spans ──" in said and "prefix ──" not in said and "The first 1 of 2 members." in said


def test_several_documents_are_packed(capsys):
    said = prints(capsys, BYTES, "--objective=causal_lm", "--text=one\n\ntwo", "--text=three")
    assert "3 documents" in said and re.search(r"segments +1×4 2×4 3×6", said)
    assert re.search(r"positions +0…3 0…3 0…5", said)


def test_settings_and_another_layout(capsys):
    said = prints(
        capsys,
        BYTES,
        "--objective=span_corruption",
        "--gin.objectives.span_corruption.noise_density=0.5",
        "--layout=decoder",
        "--text=0123456789",
    )
    assert "10 tokens, 5 of them hidden" in said and "Encoder" not in said


def test_an_objective_of_ones_own(capsys, tmp_path):
    file = tmp_path / "own.gin"
    file.write_text(
        "from __gin__ import dynamic_registration\nfrom pretrax import objectives\nfrom pretrax import training\n"
        "training.Run.objective = @objectives.causal_masking\n"
    )
    said = prints(capsys, BYTES, f"--gin_file={file}", "--text=Some words of mine.")
    assert "causal_masking  on a decoder" in said


def test_the_vocabulary_is_learned_once_and_kept(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(show, "CACHE", str(tmp_path / "kept"))
    few = show.library_documents()[:60]
    monkeypatch.setattr(show, "library_documents", lambda: few)
    options = show.read_command_line([])[0]
    first = show.open_vocabulary(show.make_console(), options)
    assert "kept in" in capsys.readouterr().out.replace("\n", " ")
    again = show.open_vocabulary(show.make_console(), options)
    assert again.ids == first.ids and not capsys.readouterr().out
    assert show.short_text().startswith("Beautiful is better than ugly.")


def test_tensorflow_is_not_loaded():
    program = "import sys; from pretrax import show; print({'tensorflow', 'seqio'} & set(sys.modules), len(show.CATALOGUE))"
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    assert said.stdout.strip() == f"set() {len(CATALOGUE)}", said.stderr


def test_a_layout_that_suits_is_found():
    for name, layout in (
        ("causal_lm", "decoder"),
        ("masked_lm", "encoder"),
        ("ul2", "encoder_decoder"),
    ):
        chosen = show.choose_objective(*show.read_command_line([f"--objective={name}"]))
        assert show.layout_of(chosen._replace(entry=None), show.specimen()) == layout
        assert show.layout_of(chosen, show.specimen()) == layout in LAYOUTS


# --- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--objective=mask_lm"], r"did you mean masked_lm\? .*causal_lm.*--gin_file"),
        (["--text= \n "], r"text is empty"),
        (["--text=a"], r"a single token"),
        (["--file=absent.txt"], r"absent.txt cannot be read: No such file"),
        (["--file=docs/quickstart.png"], r"no UTF-8 text"),
        (["--text=a b", "--file=b"], r"one of --text and --file"),
        (
            ["--text=" + "long " * 200],
            r"1,000 tokens.*slots of the encoder; there are 512: shorten",
        ),
        (["--length=1", "--text=ab"], r"there are 1"),
        (["--layout=encoder", "--text=some words"], r"An encoder predicts in place"),
        (["--gin.objectives.span_corruption.noise_density=2", "--text=abc"], r"noise_density"),
        (["--run=/tmp"], r"--run or --vocabulary, not both"),
        (["--rows=0"], r"whole number above 0"),
        (["--texts=a"], r"unknown argument '--texts=a'"),
    ],
    ids=lambda x: x[0][:24] if isinstance(x, list) else None,
)
def test_a_mistake_is_told_in_words(capsys, arguments, expected):
    assert re.search(expected, fails(capsys, BYTES, *arguments), re.DOTALL)


def test_a_vocabulary_that_lacks_what_is_needed(capsys, monkeypatch):
    make = show.vocabularies.token_ids
    monkeypatch.setattr(show.vocabularies, "token_ids", lambda t: make(t, specials=("R", "S")))
    said = fails(capsys, BYTES, "--objective=masked_lm", "--text=some words")
    assert "asks for the special token 'mask'" in said


def test_help_names_the_options(capsys):
    with pytest.raises(SystemExit) as end:
        show.run(["--help"])
    said = capsys.readouterr().out
    assert end.value.code == 0
    for words in ("--objective NAME", "--html FILE", "--gin.NAME", "pretrax show --list"):
        assert words in said
