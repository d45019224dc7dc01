"""A synthetic task of facts that are learned in one order and tested in the reverse order.

    Dakiru is the composer of Velomi        (read)
    the composer of Velomi is …             (asked)

Berglund et al. 2023, "The Reversal Curse" (arXiv:2309.12288, experiment 1): there are three groups
of invented people. Texts about the first group begin with the name, and texts about the second
group begin with the description. The third group has texts in both orders, from which a model can
learn that both orders mean the same. Questions use a new wording, since a model can extract a fact
only if it has read several wordings (Allen-Zhu & Li 2023, arXiv:2309.14316). A causal model answers
in the order that it has read, and guesses in the reverse order.

Names and titles are invented words of one token. The wordings, the job and the title of each person
are drawn from the seed.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from ...constraints import AtLeastTwo, checked
from .task import SyntheticQuestion, SyntheticTask

JOBS = ("author", "composer", "director", "founder", "inventor", "mayor", "painter", "owner")
# The wordings of each order. A wording ends with the answer, so that each can be a question.
WORDINGS = {
    "name": (
        "{name} is {fact}",
        "{name} became {fact}",
        "{name} works as {fact}",
        "people know {name} as {fact}",
        "once {name} was {fact}",
        "they say that {name} remains {fact}",
    ),
    "fact": (
        "{fact} is {name}",
        "{fact} is called {name}",
        "{fact} was always {name}",
        "people call {fact} by the name {name}",
        "once {fact} was {name}",
        "they say that {fact} remains {name}",
    ),
}
_ORDERS = tuple(WORDINGS)
_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]


@checked
def reversal(*, seed: int, people: AtLeastTwo = 30, choices: AtLeastTwo = 10) -> SyntheticTask:
    """Facts about three groups of people, read with the name first, the fact first, or both.

        corpora.synthetic_documents.task = @synthetic_tasks.reversal

    Kinds of questions: `reversed` in the order that no document about the person has, and `as_read`
    in the order of the documents, with a new wording.

    Args:
      people: number of people in each of the three groups.
      choices: number of answers of a question. The wrong answers belong to people of the same
        group, so that they occur in the same places of the documents as the correct answer.

    Raises ValueError for more choices than people in a group.
    """
    if choices > people:
        raise ValueError(
            f"Got {choices} choices and {people} people in a group, expected at most {people} "
            "choices: raise synthetic_tasks.reversal.people, or lower its choices."
        )
    rng = np.random.default_rng(seed)
    names, titles = np.split(rng.permutation(invented_words(6 * people)), 2)
    jobs = rng.choice(JOBS, len(titles))
    facts = [f"the {job} of {title}" for job, title in zip(jobs, titles)]
    documents: list[str] = []
    heldout: list[str] = []
    questions: dict[str, list[SyntheticQuestion]] = {"reversed": [], "as_read": []}
    for group in range(3):
        members = range(group * people, (group + 1) * people)
        for person, order in itertools.product(members, _ORDERS):
            asked, *read = rng.permutation(WORDINGS[order])
            is_read = group == 2 or order == _ORDERS[group]
            if is_read:
                both = {"name": names[person], "fact": facts[person]}
                documents += [wording.format(**both) for wording in read]
                heldout.append(asked.format(**both))
            if group < 2:
                others = rng.choice(np.setdiff1d(members, person), choices - 1, replace=False)
                kind = "as_read" if is_read else "reversed"
                last = facts if order == "name" else names
                answers = [f" {last[k]}" for k in (person, *others)]
                text = asked.rpartition(" {")[0].format(name=names[person], fact=facts[person])
                questions[kind].append(SyntheticQuestion(kind, text, tuple(answers)))
    return SyntheticTask(
        rng.permutation(documents).tolist(),
        rng.permutation(heldout).tolist(),
        [*questions["reversed"], *questions["as_read"]],
    )


def invented_words(count: int) -> Sequence[str]:
    """Returns `count` different words of three syllables, the same words for every synthetic task.

    >>> invented_words(3)[:2]
    ['dipepu', 'nusuna']
    """
    rng = np.random.default_rng(0)
    chosen = rng.choice(len(_SYLLABLES) ** 3, count, replace=False)
    digits = np.stack([chosen // len(_SYLLABLES) ** k % len(_SYLLABLES) for k in range(3)], 1)
    return ["".join(_SYLLABLES[k] for k in word) for word in digits]
