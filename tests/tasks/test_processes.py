"""Processes: sentences compared with each other show the order, and names show the process."""

import collections

import pytest

from pretrax.corpora.synthetic_tasks import processes
from tests.corpora.synthetic_tasks import shares_of_reader
from tests.refusals import refuses

TASK = processes(seed=0, documents=400, sentences=4, states=6, names=5, questions=40)


def sentences(text):
    """Returns the (name, verb, state) of each sentence."""
    return [tuple(one.split()) for one in text.split(" .") if one]


def steps_of(task):
    """Returns the state that follows each state in the documents."""
    read = [sentences(text) for text in task.documents]
    return {a[2]: b[2] for text in read for a, b in zip(text, text[1:])}


AFTER = steps_of(TASK)


def is_right(first, second):
    """Returns whether the second text follows the first, by the name and the order of states."""
    (name, _, state), (next_name, _, next_state) = sentences(first)[-1], sentences(second)[0]
    return name == next_name and AFTER[state] == next_state


def test_documents_have_one_name_and_follow_the_cycle():
    assert (len(TASK.documents), len(TASK.heldout), len(AFTER)) == (400, 20, 6)
    state = first = next(iter(AFTER))
    cycle = [state := AFTER[state] for _ in AFTER]
    assert len({*cycle}) == 6 and cycle[-1] == first
    for text in [*TASK.documents, *TASK.heldout]:
        names, _, states = zip(*sentences(text))
        assert len({*names}) == 1 and len({*states}) == 4
        assert all(AFTER[a] == b for a, b in zip(states, states[1:]))


def test_single_sentence_does_not_reveal_its_place():
    """Each state is about equally frequent in all places."""
    places = collections.Counter(
        (place, state)
        for text in TASK.documents
        for place, (*_, state) in enumerate(sentences(text))
    )
    assert len(places) == 4 * 6
    assert max(abs(count / 400 - 1 / 6) for count in places.values()) < 0.07


def test_comparing_sentences_orders_all_pairs_but_single_words_do_not():
    assert collections.Counter(pair.kind for pair in TASK.pairs) == {"order": 40, "belongs": 40}
    assert TASK.pairs[0].kind == "order"
    for pair in TASK.pairs:
        assert is_right(*pair.right) and not is_right(*pair.wrong)
        same_words = sorted(" ".join(pair.right).split()) == sorted(" ".join(pair.wrong).split())
        assert same_words == (pair.kind == "order")
        if pair.kind == "belongs":
            names = [{name for name, *_ in sentences(text)} for text in pair.wrong]
            assert pair.wrong[0] == pair.right[0] and names[0] != names[1]


def test_reader_of_the_cycle_scores_1_and_guessing_scores_chance():
    def known(question):
        name, _, state = sentences(question.text)[2 - 1]
        return f" {AFTER[state] if question.kind == 'state' else name}"

    assert shares_of_reader(TASK, known) == {"state": 1.0, "name": 1.0}
    chance = dict.fromkeys(("state", "name"), 1 / 4)
    assert shares_of_reader(TASK, lambda question: None) == chance
    for question in TASK.questions:
        whole = sentences(question.text + question.answers[0] + question.after)
        assert len(whole) == 4 and all(AFTER[a[2]] == b[2] for a, b in zip(whole, whole[1:]))


@pytest.mark.slow
@pytest.mark.parametrize(("follows", "share"), [(False, 0.29), (True, 0.32)])
def test_knowing_that_no_state_repeats_raises_chance(follows, share):
    """The share equals chance among the answers that were not read, as in the docstring."""
    task = processes(seed=0, documents=1, questions=3000)
    shares = []
    for question in task.questions:
        if question.kind == "state":
            read = {*(question.text + question.after * follows).split()}
            shares.append(1 / sum(answer[1:] not in read for answer in question.answers))
    assert sum(shares) / len(shares) == pytest.approx(share, abs=0.01)


def test_synthetic_tasks_are_seeded():
    small = dict(documents=5, questions=2)
    assert processes(seed=3, **small) == processes(seed=3, **small) != processes(seed=4, **small)


@pytest.mark.parametrize("settings", [{"states": 6}, {"names": 3}])
def test_invalid_process_settings_are_rejected(settings):
    with refuses(ValueError, *(f"{number} {name}" for name, number in settings.items())):
        processes(seed=0, documents=1, questions=1, **settings)
