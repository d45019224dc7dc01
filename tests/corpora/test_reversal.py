"""Facts that are read in one order and asked in the other: what the documents reveal."""

import re

from pretrax.corpora.synthetic_tasks import one_direction
from tests.corpora.synthetic_tasks import shares_of_reader

TASK = one_direction.reversal(seed=0, people=12, choices=4)
FACT = re.compile(r"the \w+ of \w+")
NAME = re.compile(r"\b[bdfgklmnprstvz][aeiou](?:[bdfgklmnprstvz][aeiou]){2}\b")


def name_and_fact(document):
    """Returns the name and the fact of a document, and which of them is last."""
    fact = FACT.search(document)[0]
    (name,) = NAME.findall(document.replace(fact, ""))
    assert document.endswith((name, fact))
    return name, fact, "name" if document.endswith(name) else "fact"


READ = [name_and_fact(document) for document in TASK.documents]


def asked(question):
    """Returns the given part of a question, and whether a name or a fact must follow."""
    last = "fact" if FACT.search(question.answers[0]) else "name"
    found = NAME.findall(question.text) if last == "fact" else FACT.findall(question.text)
    return found[0], last


def reading(both_ways):
    """Returns a reader that knows what follows what, in one direction or in both directions."""
    known = {}
    for name, fact, last in READ:
        if last == "fact" or both_ways:
            known[name] = fact
        if last == "name" or both_ways:
            known[fact] = name

    def read(question):
        answer = known.get(asked(question)[0])
        return answer and f" {answer}"

    return read


def test_reader_of_both_orders_scores_1_and_reader_of_one_order_guesses():
    assert shares_of_reader(TASK, reading(True)) == {"reversed": 1.0, "as_read": 1.0}
    assert shares_of_reader(TASK, reading(False)) == {"reversed": 0.25, "as_read": 1.0}


def test_only_the_facts_determine_an_answer():
    """The answers of a question are different, and all or none of them end documents."""
    last = {"name": {name for name, _, at in READ if at == "name"}}
    last["fact"] = {fact for _, fact, at in READ if at == "fact"}
    for question in TASK.questions:
        answers = [answer[1:] for answer in question.answers]
        assert len(set(answers)) == 4
        stood_last = {answer in last[asked(question)[1]] for answer in answers}
        assert stood_last == {question.kind == "as_read"}


def test_no_training_document_is_a_question_with_its_answer():
    documents = {*TASK.documents}
    for question in TASK.questions:
        assert question.text + question.answers[0] not in documents
    assert not documents & {*TASK.heldout}
    of_read = [one for one in TASK.questions if one.kind == "as_read"]
    assert {one.text + one.answers[0] for one in of_read} <= {*TASK.heldout}


def test_all_seeds_use_the_same_vocabulary():
    words = [
        {w for d in one_direction.reversal(seed=s).documents for w in d.split()} for s in (0, 1)
    ]
    assert (
        words[0] == words[1] and len(words[0]) == 207
    )  # The gin file has the size of the vocabulary.
