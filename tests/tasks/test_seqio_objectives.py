"""SeqIO mixtures of objective tasks, whose objectives a run applies on the device."""

import functools

import jax
import numpy as np
import pytest
import seqio

from pretrax import objectives
from pretrax.corpora.vocabularies.special_tokens import token_ids
from pretrax.objectives.contract import build
from pretrax.tasks.seqio import seqio_corpora
from pretrax.tasks.seqio.objective_tasks import add_objective_task
from pretrax.tasks.seqio.preprocessors import ApplyObjective
from pretrax.tasks.seqio.seqio_objectives import builder_of, mixture_objective, without_objective
from pretrax.tasks.seqio.seqio_tasks import SeqioTasks, found_tasks
from pretrax.tasks.seqio.seqio_vocabularies import from_task, tokenizer_of
from pretrax.training.planning import open_batches, plan_run
from pretrax.training.run_configuration import read_run
from tests.refusals import refuses
from tests.tasks.memory_tasks import memory_source
from tests.training.tiny import mesh_of

VOCABULARY = seqio.ByteVocabulary(extra_ids=300)
IDS = token_ids(tokenizer_of(VOCABULARY))
SPANS = functools.partial(objectives.span_corruption, noise_density=0.3)


def add_text(name, letter, splits=("train", "validation")):
    """Registers a task whose documents repeat a single letter."""
    seqio.TaskRegistry.add(
        name,
        source=memory_source({"text": [letter * n for n in range(5, 60)]}, splits),
        preprocessors=[
            lambda dataset: dataset.map(lambda example: {"targets": example["text"]}),
            seqio.preprocessors.tokenize,
        ],
        output_features={"targets": seqio.Feature(VOCABULARY, add_eos=False)},
    )


@pytest.fixture(scope="module", autouse=True)
def tasks():
    add_text("letter_a", "a")
    add_text("letter_b", "b")
    add_text("letter_c", "c", splits=["train"])
    add_objective_task("spans_a", "letter_a", SPANS)
    add_objective_task("ul2_b", "letter_b", objectives.ul2)
    add_objective_task("spans_c", "letter_c", SPANS)
    add_objective_task("masks_a", "letter_a", objectives.masked_lm, columns=True)
    add_objective_task("causal_b", "letter_b", objectives.causal_lm, columns=True)
    seqio.MixtureRegistry.add("spans_and_ul2", [("spans_a", 2), ("ul2_b", 14)])
    seqio.MixtureRegistry.add("masks_and_causal", [("masks_a", 3), ("causal_b", 1)])
    seqio.MixtureRegistry.add("with_c", [("spans_a", 1), ("spans_c", 1)])


def corpus_of(directory, name, corpus=seqio_corpora.seqio_objectives, **settings):
    return corpus(str(directory), tasks=SeqioTasks(name), vocabulary=from_task, **settings)


def read(name, directory, *lines, gin="runs/quickstart.gin"):
    bindings = [f"MIXTURE_OR_TASK_NAME = {name!r}", f"RUN_DIR = {str(directory)!r}", *lines]
    return read_run([gin, "corpora/seqio_objectives.gin"], bindings)


def test_mixture_objective_has_the_tasks_as_members():
    objective = mixture_objective(IDS, tasks=SeqioTasks("spans_and_ul2"))
    ul2 = objectives.ul2(IDS)
    expected = [("spans_a", 2.0)] + [(f"ul2_b.{member.name}", 2.0) for member in ul2.facts.members]
    assert [(member.name, member.rate) for member in objective.facts.members] == expected
    for member, alone in zip(
        objective.facts.members, (build(SPANS, IDS), *(m.objective for m in ul2.facts.members))
    ):
        assert member.objective.lengths(200) == alone.lengths(200)


def test_task_objective_has_no_members():
    objective = mixture_objective(IDS, tasks=SeqioTasks("spans_a"))
    assert not objective.facts.members
    assert objective.lengths(200) == build(SPANS, IDS).lengths(200)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, gin, lines",
    [
        (
            "spans_and_ul2",
            "runs/seqio_objectives.gin",
            [
                "training.Run.sequence_lengths = {'encoder': 64, 'decoder': 64}",
                "training.Run.data_shards = 2",  # SeqIO opens each shard of each task
            ],
        ),
        (
            "masks_and_causal",
            "runs/decoder.gin",
            ["training.Run.sequence_lengths = {'decoder': 64}"],
        ),
    ],
)
def test_each_member_reads_the_text_of_its_task(tmp_path, name, gin, lines):
    run = read(name, tmp_path, "training.Run.batch_size = 16", *lines, gin=gin)
    mesh = mesh_of(1)
    plan = plan_run(run, mesh=mesh)
    members = plan.recipe.objective.facts.members
    letters = {"a": VOCABULARY.encode("a")[0], "b": VOCABULARY.encode("b")[0]}
    expected = np.array([letters[member.name.partition(".")[0][-1]] for member in members])
    rows = jax.device_get(next(open_batches(plan)))
    members_of_rows = np.concatenate([group.member for group in rows])
    assert len(set(members_of_rows)) >= 2
    for group in rows:
        for tokens, segments, member in zip(group.tokens, group.segments, group.member):
            text = set(tokens[segments > 0].tolist()) - {plan.recipe.ids.eos}
            assert text == {expected[member]}


@pytest.mark.slow
def test_positions_in_all_texts_are_restored(tmp_path):
    lines = ["training.Run.sequence_lengths = {'decoder': 64}", "training.Run.batch_size = 16"]
    run = read("masks_and_causal", tmp_path, *lines, gin="runs/decoder.gin")
    plan = plan_run(run, mesh=mesh_of(1))
    whole = open_batches(plan)
    for _ in range(3):
        next(whole)
    resumed = open_batches(plan)
    resumed.restore(3, whole.state().__getitem__)
    for _ in range(5):  # into a later epoch of both texts
        expected, found = jax.device_get((next(whole), next(resumed)))
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_heldout_text_falls_back_to_other_tasks(tmp_path):
    corpus = corpus_of(tmp_path, "with_c")
    texts = [corpus.codec.decode(source.heldout(10)[0].tokens) for source in corpus.sources]
    assert texts == ["aaaaa", "aaaaa"]  # letter_c has no validation split
    assert corpus.member_sources == (0, 1)
    assert "no held-out text from spans_c" in corpus.summary
    trained = [source.open_shard(0, 1).next_document().tokens for source in corpus.sources]
    assert [set(corpus.codec.decode(tokens)) for tokens in trained] == [{"a"}, {"c"}]


@pytest.mark.slow
def test_tasks_of_different_objectives_mix_in_seqio():
    mixed = seqio.get_mixture_or_task("masks_and_causal").get_dataset(
        {"targets": 64}, "train", seed=1, num_epochs=1
    )
    (batch,) = mixed.take(16).padded_batch(16).as_numpy_iterator()
    has_labels = batch["labels_weights"].sum(axis=1) > 0
    has_targets = batch["targets_weights"].sum(axis=1) > 0
    np.testing.assert_array_equal(has_labels, ~has_targets)
    assert has_labels.any() and has_targets.any()


def test_corpus_of_another_objective_is_rejected(tmp_path):
    lines = ["training.Run.objective = @objectives.span_corruption"]
    run = read("spans_and_ul2", tmp_path, "from pretrax import objectives", *lines)
    with refuses(ValueError, "8", "1", "seqio_objectives.gin"):
        plan_run(run, mesh=mesh_of(1))


def test_tasks_without_objectives_are_rejected(tmp_path):
    with refuses(ValueError, "letter_a"):
        corpus_of(tmp_path, "letter_a")
    with refuses(ValueError, "letter_a"):
        mixture_objective(IDS, tasks=SeqioTasks("letter_a"))
    with refuses(ValueError, "spans_a", "seqio_objectives.gin"):
        corpus_of(tmp_path, "spans_and_ul2", seqio_corpora.seqio_mixture)
    spans = seqio.TaskRegistry.get("spans_a")
    later = spans.replace(preprocessors=[*spans.preprocessors, lambda dataset: dataset.take(3)])
    with refuses(ValueError, "spans_a", "1"):
        builder_of(later)
    *text, cut, apply = spans.preprocessors
    between = spans.replace(preprocessors=[*text, cut, lambda dataset: dataset.take(3), apply])
    with refuses(ValueError, "spans_a", "1"):
        builder_of(between)
    twice = spans.replace(preprocessors=[*spans.preprocessors, ApplyObjective(SPANS, name="x")])
    with refuses(ValueError, "spans_a", "1"):
        without_objective(twice)


def test_unknown_task_of_a_mixture_names_similar_tasks(tmp_path):
    path = tmp_path / "mixes_a_mistyped_task.py"
    path.write_text("import seqio\nseqio.MixtureRegistry.add('typo', [('spans_aa', 1)])\n")
    with refuses(ValueError, "spans_aa", "spans_a"):
        found_tasks("typo", str(path), None)
    with refuses(ValueError, "spans_aa", "'spans_a'", "--module=FILE"):
        found_tasks("spans_aa", None, None)


def test_incompatible_features_suggest_columns(tmp_path):
    path = tmp_path / "mixes_other_features.py"
    path.write_text(
        "import seqio\n"
        "from pretrax import objectives\n"
        "from pretrax.tasks.seqio.objective_tasks import add_objective_task\n"
        "add_objective_task('own_masks', 'letter_a', objectives.masked_lm)\n"
        "seqio.MixtureRegistry.add('own_mix', [('own_masks', 1), ('spans_a', 1)])\n"
    )
    with refuses(ValueError, "columns=True"):
        found_tasks("own_mix", str(path), None)
