"""Losses on regions of sequences: windows, gaps, masks, and bad BED files."""

import csv
import json
import math

import numpy as np
import pytest

from pretrax.cli import evaluate
from pretrax.corpora import vocabularies
from pretrax.data.reading import MalformedLine
from pretrax.inference.answering.scoring import hidden_log_probs, score
from pretrax.inference.evaluation.sequence_regions import (
    RegionScore,
    check_regions,
    read_regions,
    score_regions,
)
from tests.inference.runs import trained, write_run
from tests.refusals import exits, refuses

RECORDS = ">x\nacgtACGTNNACGTTGCAAC\nGTA\n>y\nGATTACA\n"  # 23 and 7 letters
BED = """# of two records
track name=genes
x\t2\t5\texon
x\t4\t14\texon
y\t1\t4\texon\t0\t+
x\t9\t23\tintron
x\t8\t10\tgap
"""
RUNS_OF_X = ((0, 8), (10, 23))
WINDOW = 9  # number of letters


@pytest.fixture
def files(tmp_path):
    (tmp_path / "genes.bed").write_text(BED)
    (tmp_path / "genome.fa").write_text(RECORDS)
    return str(tmp_path / "genes.bed"), str(tmp_path / "genome.fa")


def dna_model(tmp_path, builder, objective, **settings):
    """Returns a model with random parameters and the letters of DNA."""
    made = vocabularies.letters(str(tmp_path), None, alphabet="dna", **settings)
    model = trained(builder, objective)
    frame = 2 if builder == "encoder" else 1
    return model._replace(
        ids=made.ids,
        encode=made.codec.encode,
        decode=made.codec.decode,
        lengths={builder: WINDOW + frame},
    )


def log_probs_of_window(model, text):
    """Returns the log-probability of each letter of a window that is scored alone."""
    if model.model.layout == "decoder":
        return score(model, [("", text)])[0].log_probs
    tokens = model.encode(text)
    log_probs = np.zeros(len(text))
    for first in range(min(7, len(text))):
        hidden = np.arange(first, len(text), 7)
        (log_probs[hidden],) = hidden_log_probs(model, [(tokens, hidden)])
    return log_probs


@pytest.mark.slow
@pytest.mark.parametrize("builder, objective", [("decoder", "causal_lm"), ("encoder", "masked_lm")])
def test_region_loss_is_the_mean_over_its_letters(tmp_path, files, builder, objective):
    model = dna_model(tmp_path, builder, objective)
    x, y = "ACGTACGTNNACGTTGCAACGTA", "GATTACA"
    by_letter = {}
    for record, letters, runs in (("x", x, RUNS_OF_X), ("y", y, ((0, 7),))):
        for start, end in runs:
            for at in range(start, end, WINDOW):
                window = letters[at : min(at + WINDOW, end)]
                for i, log_prob in enumerate(log_probs_of_window(model, window), at):
                    by_letter[record, i] = -log_prob
    exon = [("x", i) for i in range(2, 14) if i not in (8, 9)] + [("y", i) for i in (1, 2, 3)]
    intron = [("x", i) for i in range(10, 23)]
    text = {"x": x, "y": y}
    all_letters = [text[record][i] for record, i in exon + intron]
    regions = read_regions(files[0])
    check_regions(regions, files[1])
    scores = {one.name: one for one in score_regions(model, files[1], regions, batch_size=2)}
    assert [(name, one.letters) for name, one in scores.items()] == [
        ("exon", 13),
        ("intron", 13),
        ("gap", 0),
    ]
    for name, places in (("exon", exon), ("intron", intron)):
        loss = np.mean([by_letter[place] for place in places])
        assert scores[name].loss == pytest.approx(loss, abs=1e-5)
        shares = [all_letters.count(text[record][i]) / 26 for record, i in places]
        assert scores[name].baseline == pytest.approx(-np.log(shares).mean())


@pytest.mark.parametrize(
    "line, values",
    [
        ("x\t1\t2", ["genes.bed:2", "'x\\t1\\t2'"]),
        ("x one 2 exon", ["genes.bed:2", "'x one 2 exon'"]),
        ("x\t5\t5\texon", ["genes.bed:2", 5]),
        ("x\t-1\t5\texon", ["genes.bed:2", "'x\\t-1\\t5\\texon'"]),
        ("x\t1\t24\texon", ["genes.bed:2", 24, 23, "'x'"]),
        ("chrX\t1\t2\texon", ["genes.bed:2", "'chrX'", "genome.fa", "'x'"]),
    ],
)
def test_invalid_region_is_named(files, line, values):
    bed, genome = files
    with open(bed, "w") as file:
        file.write(f"x\t0\t9\texon\n{line}\n")
    with refuses(MalformedLine, *values):
        check_regions(read_regions(bed), genome)


def test_files_without_regions_or_with_duplicate_records_are_rejected(files):
    bed, genome = files
    with refuses(ValueError, bed, ".fasta"):
        check_regions(read_regions(bed), bed)
    with open(genome, "a") as file:
        file.write(">x\nACGT\n")
    with refuses(MalformedLine, "genome.fa:6", "'x'"):
        check_regions(read_regions(bed), genome)
    with open(bed, "w") as file:
        file.write("# nothing\n")
    with refuses(ValueError, bed):
        read_regions(bed)


def test_tokens_of_several_letters_are_rejected(tmp_path, files):
    model = dna_model(tmp_path, "decoder", "causal_lm", k=3)
    with refuses(ValueError, 8, 4):
        score_regions(model, files[1], read_regions(files[0]))


@pytest.mark.slow
def test_evaluate_prints_the_regions_of_each_checkpoint(tmp_path, files, capsys):
    run = tmp_path / "run"
    run.mkdir()
    write_run(run, "decoder", "causal_lm", steps=(1, 2))
    given = [f"--run={run}", f"--regions={files[0]}"]
    evaluate.main([*given, f"--sequences={files[1]}", "--all_checkpoints"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    named = [row[:3] for row in rows if len(row) == 6 and row[0] in ("1", "2")]
    # In a vocabulary of bytes, N is asparagine.
    assert named == [
        [step, *x] for step in "12" for x in (("exon", "15"), ("intron", "14"), ("gap", "2"))
    ]
    with exits(capsys, "--sequences"):
        evaluate.main(given)
    given += [f"--sequences={files[1]}", "--all_checkpoints"]
    for name in ("losses.csv", "losses.jsonl"):
        evaluate.main([*given, f"--out={tmp_path}/{name}"])
    with open(tmp_path / "losses.csv") as file:
        table = [*csv.DictReader(file)]
    records = [json.loads(line) for line in (tmp_path / "losses.jsonl").read_text().splitlines()]
    assert [{k: str(v) for k, v in record.items()} for record in records] == table
    assert [[row["step"], row["region"], row["letters"]] for row in table] == named
    for row in records:
        assert math.log(row["perplexity"]) == pytest.approx(row["loss"], abs=1e-5)


def test_region_without_letters_has_a_row_without_a_loss():
    row = RegionScore("gap", 0, math.nan, math.nan).row(step=3)
    assert row.pop("region") == "gap"
    assert row == {"step": 3, "letters": 0, "loss": None, "baseline": None, "perplexity": None}
