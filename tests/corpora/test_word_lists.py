"""Lists of labeled words: the meaning of labels in a list, and the questions."""

import numpy as np

from pretrax.corpora.synthetic_tasks import labeled_words


def test_a_kind_has_one_label_in_a_list_and_others_in_other_lists():
    kind_of = {word: i for i, kind in enumerate(labeled_words.KINDS) for word in kind}
    assert len(kind_of) == sum(map(len, labeled_words.KINDS))  # No word has two kinds.
    rng, seen = np.random.default_rng(0), set()
    for _ in range(100):
        labels: dict[int, str] = {}
        for word, label in labeled_words.word_list(rng, 12):
            assert labels.setdefault(kind_of[word], label) == label
        seen |= labels.items()
    assert len(seen) == len(labeled_words.KINDS) * len(labeled_words.LABELS)


def test_the_share_that_can_be_known_is_what_a_reader_knows():
    kind_of = {word: i for i, kind in enumerate(labeled_words.KINDS) for word in kind}
    rng, lists, right = np.random.default_rng(1), 4000, 0.0
    for _ in range(lists):
        *shown, asked = labeled_words.word_list(rng, 3)
        known = any(kind_of[asked.word] == kind_of[one.word] for one in shown)
        right += 1 if known else 1 / len(labeled_words.LABELS)
    assert abs(right / lists - labeled_words.known_share(2)) < 0.02


def test_documents_and_questions():
    task = labeled_words.word_lists(seed=0, lists=40, examples=4, questions=3)
    assert (len(task.documents), len(task.heldout)) == (40, 2)
    # Each example has a word and a label.
    assert {len(document.split()) for document in task.documents} == {8}
    assert [question.kind for question in task.questions[::3]] == [
        f"after_{shots}" for shots in (3, 2, 1, 0)
    ]
    whole, few = task.questions[:3], task.questions[3:]
    for question in whole:  # A question and its answer are a document.
        lines = f"{question.text}{question.answers[0]}{question.after}".splitlines(keepends=True)
        assert len(lines) == 4 and all(line.endswith("\n") for line in lines)
    assert {question.after for question in few} == {None}
    other = labeled_words.word_lists(seed=1, lists=40, examples=4, questions=3)
    assert not set(other.documents) & set(task.documents)
