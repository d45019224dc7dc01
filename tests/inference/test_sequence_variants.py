"""Scores of variants: likelihoods of causal and diffusion models, tables, and bad input."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.cli import evaluate
from pretrax.corpora import vocabularies
from pretrax.data.task_metrics import auroc
from pretrax.inference import Batching
from pretrax.inference.answering.sequence_variants import (
    SequenceVariant,
    score_variants,
    sequence_check,
)
from pretrax.inference.evaluation.variant_tables import read_variants, read_wild_type
from tests.inference.runs import IDS, trained, write_run
from tests.refusals import exits, refuses

WILD_TYPE = "ACGTTGCAAC"
TABLE = """mutant,mutated_sequence,DMS_score,DMS_score_bin
A1C,CCGTTGCAAC,0.5,1
C2G:T4A,AGGATGCAAC,-1,0
,ACGTTAAC,2.5,1
"""


def log_likelihood(model, text):
    """Returns the sum of log-softmax, for a row of the text alone."""
    tokens = [IDS.bos, *model.encode(text)]
    slots = len(tokens)
    batch = {
        "decoder_input_tokens": jnp.array([tokens]),
        "decoder_segment_ids": jnp.ones((1, slots), jnp.int32),
        "decoder_positions": jnp.arange(slots)[None],
        "decoder_key_intervals": jnp.stack([jnp.zeros(slots, int), jnp.arange(slots) + 1])[None],
    }
    outputs = model.model.apply(model.params, batch)
    log_probs = jax.nn.log_softmax(outputs.head("vocabulary", outputs.hidden["top"])[0])
    return float(log_probs[np.arange(slots - 1), np.array(tokens[1:])].sum())


@pytest.mark.slow
@pytest.mark.parametrize("both_strands", [False, True])
def test_causal_variant_scores_are_log_likelihood_ratios(both_strands):
    model = trained("decoder", "causal_lm")
    mutants = {"ACGTAGCAAC": "GTTGCTACGT", "ACGTTGCA": "TGCAACGT"}  # and the other strand
    wild_type = log_likelihood(model, WILD_TYPE), log_likelihood(model, "GTTGCAACGT")
    expected = []
    for strands in mutants.items():
        ratios = [log_likelihood(model, x) - y for x, y in zip(strands, wild_type)]
        expected.append(np.mean(ratios) if both_strands else ratios[0])
    variants = [SequenceVariant.between(WILD_TYPE, sequence) for sequence in mutants]
    scores = score_variants(model, WILD_TYPE, variants, both_strands=both_strands)
    np.testing.assert_allclose(scores, expected, atol=1e-4)


@pytest.mark.slow
def test_reverse_strand_of_rna_has_uracil():
    model = trained("decoder", "causal_lm")
    strands = {"ACGUAGCAAC": "ACGUUGCAAC", "GUUGCUACGU": "GUUGCAACGU"}  # variant and wild type
    expected = [log_likelihood(model, x) - log_likelihood(model, y) for x, y in strands.items()]
    variant = SequenceVariant.of("ACGUUGCAAC", "U5A")
    scores = score_variants(model, "ACGUUGCAAC", [variant], both_strands=True)
    np.testing.assert_allclose(scores, np.mean(expected), atol=1e-4)


def test_overlapping_k_mers_accept_only_letters_of_their_alphabet(tmp_path):
    made = vocabularies.letters(str(tmp_path), None, alphabet="rna", k=3, overlapping=True)
    model = trained("decoder", "causal_lm")
    check = sequence_check(model._replace(encode=made.codec.encode, decode=made.codec.decode))
    assert check("ACGU") is None and "'T'" in check("ACGT")


def test_variant_bound_uses_the_same_noise_for_both_sequences():
    """Exchanging the two sequences negates the score."""
    model = trained("encoder", "masked_diffusion")
    other = "ACGTTGCAAG"
    (forward,) = score_variants(model, WILD_TYPE, [SequenceVariant.between(WILD_TYPE, other)])
    (backward,) = score_variants(model, other, [SequenceVariant.between(other, WILD_TYPE)])
    assert forward == pytest.approx(-backward, abs=1e-5) and abs(forward) > 1e-3


def test_unsupported_variant_scores_are_rejected():
    causal = trained("decoder", "causal_lm")
    masked = trained("encoder", "masked_lm")
    shorter = [SequenceVariant.between(WILD_TYPE, "ACG")]
    with refuses(ValueError, "likelihood", "masked_marginal"):
        score_variants(causal, WILD_TYPE, shorter, "masked_marginal")
    with refuses(ValueError, "ACG", "pseudo_likelihood"):
        score_variants(masked, WILD_TYPE, shorter)
    with refuses(ValueError, "masked_marginal"):
        score_variants(masked, WILD_TYPE, [], both_strands=True)
    with refuses(ValueError, "M"):
        score_variants(causal, "MA", [], both_strands=True)


@pytest.mark.parametrize(
    "row, values",
    [
        ("G1C,,1", ("line 2", "mutant", "G1C", "A", 1)),
        ("A11C,,1", ("line 2", "mutant", "A11C", 10)),
        ("1C,,1", ("line 2", "mutant", "1C")),
        ("A1C:A1G,,1", ("line 2", "mutant", "A1C:A1G", 1)),
        ("A1C,ACGT,1", ("line 2", "mutated_sequence", "ACGT")),
        (",ACGTÄ,1", ("line 2", "mutated_sequence", "ACGTÄ", "Ä")),
        (",ACGTACGTACGTACGT,1", ("line 2", "mutated_sequence", "ACGTACGTACGTACGT", 12, 16)),
        ("A1C,,high", ("line 2", "DMS_score", "high")),
        ("A1C,,1,0", ("line 2", 3)),
    ],
)
def test_invalid_variant_is_named_with_its_row_and_column(row, values, tmp_path):
    causal = trained("decoder", "causal_lm")
    model = causal._replace(
        lengths={"decoder": 13}, encode=lambda text: causal.encode(text.replace("Ä", "?"))
    )
    file = tmp_path / "assay.csv"
    file.write_text(f"mutant,mutated_sequence,DMS_score\n{row}\n", encoding="utf-8")
    with refuses(ValueError, file, *values):
        read_variants(str(file), WILD_TYPE, sequence_check(model))


@pytest.mark.parametrize(
    "header, values",
    [
        ("variant,DMS_score", ("variant", "mutant")),
        ("mutant,score", ("'score'",)),
        ("mutant,step", ("'step'",)),
    ],
)
def test_table_with_other_columns_is_rejected(header, values, tmp_path):
    file = tmp_path / "assay.csv"
    file.write_text(f"{header}\nA1C,1\n")
    with refuses(ValueError, file, *values):
        read_variants(str(file), WILD_TYPE)


def test_spaces_after_commas_are_not_part_of_columns(tmp_path):
    file = tmp_path / "assay.csv"
    file.write_text("mutant, DMS_score\nA1C, 0.5\n")
    assert read_variants(str(file), WILD_TYPE).measured == [0.5]


def test_wild_type_is_a_sequence_or_a_fasta_record(tmp_path, monkeypatch):
    file = tmp_path / "protein.fasta"
    file.write_text(">P1 a protein\nACG\nTT\n")
    assert read_wild_type(str(file)) == "ACGTT"
    assert read_wild_type("ACGTT" * 60) == "ACGTT" * 60
    monkeypatch.chdir(file.parent)
    assert read_wild_type(file.rename("wild").name) == "ACGTT"
    file.write_text(">P1\nACG\n>P2\nTT\n")
    with refuses(ValueError, file, 2):
        read_wild_type(str(file))


def test_auroc_counts_ties_as_half():
    assert auroc([0, 0, 1, 1], [1, 2, 2, 3]) == {"auroc": 7 / 8}


@pytest.mark.slow
def test_evaluate_adds_a_column_of_variant_scores(tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    write_run(run, "decoder", "causal_lm")
    (tmp_path / "assay.csv").write_text(TABLE)
    given = [f"--run={run}", f"--variants={tmp_path}/assay.csv", f"--wild_type={WILD_TYPE}"]
    for name in ("scores.csv", "scores.jsonl"):
        evaluate.main([*given, f"--out={tmp_path}/{name}"])
    printed = capsys.readouterr().out
    assert "spearman" in printed and "auroc" in printed
    lines = (tmp_path / "scores.csv").read_text().splitlines()
    assert lines[0] == "mutant,mutated_sequence,DMS_score,DMS_score_bin,step,score"
    records = [json.loads(x) for x in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert [float(line.rpartition(",")[2]) for line in lines[1:]] == [x["score"] for x in records]
    model = trained("decoder", "causal_lm")
    expected = log_likelihood(model, "ACGTTAAC") - log_likelihood(model, WILD_TYPE)
    assert records[2]["score"] == pytest.approx(expected, abs=1e-4)
    with exits(capsys, "--wild_type"):
        evaluate.main(given[:2])
    with exits(capsys, "scores.xlsx", ".csv", ".jsonl"):
        evaluate.main([*given, "--out=scores.xlsx"])


@pytest.mark.slow
def test_variant_scores_of_all_checkpoints_have_their_steps(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    write_run(run, "decoder", "causal_lm", steps=(1, 50))
    (tmp_path / "assay.csv").write_text(TABLE)
    given = [f"--run={run}", f"--variants={tmp_path}/assay.csv", f"--wild_type={WILD_TYPE}"]
    found = {}
    for which in ("--all_checkpoints", "--step=1", "--step=50"):
        evaluate.main([*given, which, f"--out={tmp_path}/scores.jsonl"])
        lines = (tmp_path / "scores.jsonl").read_text().splitlines()
        found[which] = [json.loads(line) for line in lines]
    assert found["--all_checkpoints"] == found["--step=1"] + found["--step=50"]
    assert [row["step"] for row in found["--all_checkpoints"]] == [1] * 3 + [50] * 3
    assert found["--step=1"][0]["score"] != found["--step=50"][0]["score"]


@pytest.mark.slow
@pytest.mark.parametrize("scoring", ["pseudo_likelihood", "masked_marginal"])
def test_progress_of_variant_scores_sums_to_1(scoring):
    shares = []
    variants = [SequenceVariant.of(WILD_TYPE, mutant) for mutant in ("A1C", "C2G:T4A", "A9C")]
    model = trained("encoder", "masked_lm")
    strands = {"both_strands": scoring == "pseudo_likelihood"}
    batching = Batching(2, shares.append)
    score_variants(model, WILD_TYPE, variants, scoring, batching=batching, **strands)
    assert len(shares) == (40 if scoring == "pseudo_likelihood" else 2)
    assert sum(shares) == pytest.approx(1)
