"""Protein families and genes: their texts, the grammar of genes, and sites with exact answers."""

import collections
import functools
import itertools
import re

import numpy as np
import pytest

from pretrax.corpora import sequence_files, vocabularies
from pretrax.corpora.synthetic_tasks import (
    SyntheticQuestion,
    SyntheticSite,
    SyntheticTask,
    gene_grammar,
    genes,
    protein_families,
    proteins,
)
from pretrax.corpora.synthetic_tasks.hidden_markov import (
    PADDING,
    hidden_markov,
    log_likelihoods,
    sampled,
)
from pretrax.corpora.synthetic_tasks.sequence_sites import (
    SequenceWorld,
    sequence_task,
    write_sequences,
)
from pretrax.corpora.synthetic_tasks.task import drawn_task
from pretrax.inference.evaluation.sequence_regions import check_regions, read_regions
from tests.corpora.synthetic_tasks import shares_of_reader
from tests.refusals import refuses

PROTEINS = {"documents": 200, "families": 3, "columns": 12, "sites": 40}
TASKS = {
    "proteins": proteins(seed=0, **PROTEINS),
    "genes": genes(seed=0, documents=200, sites=40),
}
CODON = "(?:(?!TAA|TAG|TGA)[ACGT]{3})"
GENE = re.compile(  # The letters of the promoter vary, so only their number is checked.
    f"[ACGT]{{10,13}}ATG{CODON}(?:(?:GT[ACGT]+?AG)?{CODON})*(?:TAA|TAG|TGA)"
)


def world(name):
    if name == "genes":
        return gene_grammar.gene_world()
    return protein_families.protein_families(np.random.default_rng(0), 3, 12, 0.03)


def likelihoods_of_models(name, texts):
    """Returns the likelihood of each text under each model of its world, f64[models, texts]."""
    made = world(name)
    numbers = [[made.alphabet.index(x) for x in text.split()] for text in texts]
    letters = np.array([*itertools.zip_longest(*numbers, fillvalue=PADDING)]).T
    return np.exp([log_likelihoods(model, letters) for model in made.models])


def log_likelihoods_of(name, texts):
    """Returns the log-likelihood of each text under the mixture of the models of its world."""
    return np.log(np.mean(likelihoods_of_models(name, texts), axis=0))


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_sites_have_exact_whole_text_likelihoods(name):
    task = TASKS[name]
    read = {*task.documents}
    for site in task.sites:
        texts = [site.text.replace("<extra_id_0>", answer) for answer in site.answers]
        np.testing.assert_allclose(site.log_likelihoods, log_likelihoods_of(name, texts))
        assert texts[0] not in read
        assert {*site.answers} == {f" {letter}" for letter in world(name).alphabet}
    assert [site.kind for site in task.sites] == ["conserved"] * 40 + ["free"] * 40
    assert [site.question for site in task.sites] == [*task.questions]


def test_sites_come_from_unread_sequences():
    transitions = {"begin": {"x": 1}, "x": {"y": 1}, "y": {"z": 1}, "z": {"end": 1}}
    model = hidden_markov(transitions, dict.fromkeys("xyz", (0.5, 0.5)))
    both = SequenceWorld("AB", [model, model], [["", "free", ""], ["", "conserved", ""]], (3, 3))
    task = sequence_task(np.random.default_rng(0), both, documents=4, sites=20)
    for site in task.sites:
        assert site.text.replace("<extra_id_0>", site.answers[0]) not in {*task.documents}


@pytest.mark.parametrize("name", TASKS)
def test_drawn_letter_is_usually_the_likeliest_at_conserved_sites(name):
    def drawn(question):
        return next(site for site in TASKS[name].sites if site.text == question.text).answers[0]

    shares = shares_of_reader(TASKS[name], drawn)
    assert shares["conserved"] > 0.7 and shares["free"] < 0.45
    chance = shares_of_reader(TASKS[name], lambda question: None)
    assert chance["conserved"] == pytest.approx(1 / len(world(name).alphabet))


def test_reverse_complements_are_equally_likely():
    texts = [*TASKS["genes"].documents[:50], "A C G T T", "T A T A A T"]
    complement = dict(zip("ACGT", "TGCA"))
    reversed_texts = [" ".join(complement[x] for x in text.split()[::-1]) for text in texts]
    np.testing.assert_allclose(
        log_likelihoods_of("genes", texts), log_likelihoods_of("genes", reversed_texts)
    )
    assert np.mean([a == b for a, b in zip(texts, reversed_texts)]) < 0.1


def test_genes_follow_their_grammar():
    forward = gene_grammar.gene()
    backward = gene_grammar.reverse_complement(forward)
    complement = dict(zip("ACGT", "TGCA"))
    introns = 0
    for model in (forward, backward):
        drawn = sampled(np.random.default_rng(0), model, 300, longest=200)
        assert len(drawn) > 290
        for letters, states in drawn:
            gene = "".join("ACGT"[x] for x in letters)
            names = [model.names_S[s] for s in states]
            if model is backward:
                gene = "".join(complement[x] for x in reversed(gene))
                names = names[::-1]
            assert GENE.fullmatch(gene), gene
            begun = "".join(x for x, name in zip(gene, names) if name.startswith("start"))
            assert begun == "ATG" and names[:6] == [f"promoter{k}" for k in range(6)]
            introns += names.count("donorG")
    assert introns > 200


def test_columns_differ_in_conservation():
    made = protein_families.protein_families(np.random.default_rng(0), 4, 30, 0.03)
    for model, kinds in zip(made.models, made.kinds):
        likeliest = {kind: model.emissions_SxA[np.array(kinds) == kind].max(1) for kind in kinds}
        assert likeliest["conserved"].min() >= 0.8 and likeliest["free"].max() <= 0.35
        assert len(likeliest) == 3
        assert all(name.startswith("match") for name, k in zip(model.names_S, kinds) if k)
    assert sum(protein_families.BACKGROUND.values()) == pytest.approx(100)


def test_protein_class_is_its_family():
    task = TASKS["proteins"]
    texts, families = zip(*task.classes)
    assert not {*texts} & {*task.documents} and {*families} == {"0", "1", "2"}
    likeliest = likelihoods_of_models("proteins", texts).argmax(axis=0)
    assert np.mean(likeliest == np.array(families, int)) > 0.95
    assert not TASKS["genes"].classes  # All genes have the same model.


def test_letter_tags_are_gene_regions():
    task = TASKS["genes"]
    assert not {text for text, _ in task.tags} & {*task.documents}
    codes = {"intergenic": "-", "promoter": "p", "exon": "e", "intron": "i"}
    complement = dict(zip("ACGT", "TGCA"))
    introns = 0
    for text, regions in task.tags:
        letters = text.split()
        assert len(regions) == len(letters)
        for found in re.finditer("[pei]+", "".join(codes[region] for region in regions)):
            gene = "".join(letters[found.start() : found.end()])
            parts = found[0]
            if not parts.startswith("p"):
                gene = "".join(complement[x] for x in reversed(gene))
                parts = parts[::-1]
            assert re.fullmatch("p{10,13}e+(i+e+)*", parts)
            coding = "".join(x for x, part in zip(gene, parts) if part == "e")
            assert re.fullmatch(f"ATG({CODON})+(TAA|TAG|TGA)", coding)
            for intron in re.finditer("i+", parts):
                assert re.fullmatch("GT[ACGT]+AG", gene[intron.start() : intron.end()])
                introns += 1
    assert introns > 20
    assert not TASKS["proteins"].tags


def test_written_sequence_files_match_hand_made_ones(tmp_path):
    transitions = {"begin": {"x": 1}, "x": {"y": 1}, "y": {"z": 1}, "z": {"end": 1}}
    models = [
        hidden_markov(
            transitions, {state: (letter == "A", letter == "B") for state, letter in each}
        )
        for each in (zip("xyz", "AAB"), zip("xyz", "BBA"))
    ]
    both = SequenceWorld("AB", models, [[""] * 3] * 2, (3, 3), [["exon", "exon", "intron"]] * 2)
    write_sequences(str(tmp_path / "both"), np.random.default_rng(0), both, 40)
    fasta, bed, tsv = (tmp_path / f"both.{suffix}" for suffix in ("fasta", "bed", "tsv"))
    lines = fasta.read_text().split()
    sequences = lines[1::2]
    assert lines[::2] == [f">{k}" for k in range(1, 41)] and {*sequences} == {"AAB", "BBA"}
    assert bed.read_text().splitlines() == [
        line for k in range(1, 41) for line in (f"{k}\t0\t2\texon", f"{k}\t2\t3\tintron")
    ]
    assert tsv.read_text().splitlines() == [
        f"{sequences.index(sequence) + 1}\t{k}" for k, sequence in enumerate(sequences, 1)
    ]


def test_written_sequence_files_are_read_by_the_corpus(tmp_path):
    for name in TASKS:
        write_sequences(str(tmp_path / name), np.random.default_rng(0), world(name), 90)
    regions = read_regions(str(tmp_path / "genes.bed"))
    check_regions(regions, str(tmp_path / "genes.fasta"))
    assert len(regions) == 90
    corpus = sequence_files(
        str(tmp_path / "run"),
        files=str(tmp_path / "proteins.fasta"),
        alphabet="protein",
        vocabulary=functools.partial(vocabularies.letters, alphabet="protein"),
        heldout_clusters=str(tmp_path / "proteins.tsv"),
    )
    clusters = (tmp_path / "proteins.tsv").read_text().split()[::2]
    assert len(corpus.heldout(10**6)) in collections.Counter(clusters).values()
    assert not (tmp_path / "genes.tsv").exists() and not (tmp_path / "proteins.bed").exists()


def test_task_without_columns_of_a_kind_is_rejected():
    with refuses(ValueError, "families", 1, "columns", 2):
        proteins(seed=1, documents=5, families=1, columns=2, sites=2)


@pytest.mark.parametrize(
    "site",
    [
        ("free", "A<extra_id_0> A", (" A", " B"), (0.0, 1.0)),
        SyntheticSite("other", "A<extra_id_0> A", (" A", " B"), (0.0, 1.0)),
        SyntheticSite("free", "A<extra_id_0> A", (" A", " B"), (0.0,)),
        SyntheticSite("free", "A<extra_id_0> A", (" A",), (0.0,)),
    ],
)
def test_malformed_sites_are_rejected(site):
    def letters(*, seed):
        question = SyntheticQuestion("free", "A A", (" A", " B"))
        return SyntheticTask(["A A"], ["B A"], [question], sites=[site])

    with refuses(ValueError, "letters", "SyntheticSite"):
        drawn_task(letters, 0)
