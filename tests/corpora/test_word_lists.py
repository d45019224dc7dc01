"""Lists of labeled words: the meaning of labels in a list, and the questions."""

import numpy as np

from pretrax.corpora.synthetic_tasks import labeled_words


def test_each_kind_has_one_label_per_list():
    kind_of = {word: i for i, kind in enumerate(labeled_words.KINDS) for word in kind}
    assert len(kind_of) == sum(map(len, labeled_words.KINDS))  # No word has two kinds.
    rng, assignments = np.random.default_rng(0), set()
    for _ in range(100):
        labels: dict[int, str] = {}
        for word, label in labeled_words.word_list(rng, 12):
            assert labels.setdefault(kind_of[word], label) == label
        assignments |= labels.items()
    assert len(assignments) == len(labeled_words.KINDS) * len(labeled_words.LABELS)


def test_known_share_matches_a_simulated_reader():
    kind_of = {word: i for i, kind in enumerate(labeled_words.KINDS) for word in kind}
    rng, lists, right = np.random.default_rng(1), 4000, 0.0
    for _ in range(lists):
        *shown, asked = labeled_words.word_list(rng, 3)
        known = any(kind_of[asked.word] == kind_of[one.word] for one in shown)
        right += 1 if known else 1 / len(labeled_words.LABELS)
    assert abs(right / lists - labeled_words.known_share(2)) < 0.02


def test_word_lists_have_the_requested_documents_and_questions():
    task = labeled_words.word_lists(seed=0, lists=40, examples=4, questions=3)
    assert (len(task.documents), len(task.heldout)) == (40, 2)
    # Each example has a word and a label.
    assert {len(document.split()) for document in task.documents} == {8}
    assert [question.kind for question in task.questions[::3]] == [
        f"after_{shots}" for shots in (3, 2, 1, 0)
    ]
    whole, open_questions = task.questions[:3], task.questions[3:]
    for question in whole:  # A question and its answer are a document.
        lines = f"{question.text}{question.answers[0]}{question.after}".splitlines(keepends=True)
        assert len(lines) == 4 and all(line.endswith("\n") for line in lines)
    assert {question.after for question in open_questions} == {None}
    other = labeled_words.word_lists(seed=1, lists=40, examples=4, questions=3)
    assert not set(other.documents) & set(task.documents)
