"""A synthetic task of facts that are read in one order and asked in the other.

    Dakiru is the composer of Velomi        (read)
    the composer of Velomi is …             (asked)

Berglund et al. 2023, "The Reversal Curse" (arXiv:2309.12288, experiment 1): of some invented people
every text has the name first, of others the description, and of a third group both orders are read,
so that either order is known to mean the same. Each fact is read in several wordings (as
Allen-Zhu & Li 2023, arXiv:2309.14316, found to be needed for it to be extracted) and asked in
another one. A causal model answers in the order that it has read, and guesses in the other.

Names and titles are invented words of one token; which wording, job, and title belongs to a name is
drawn from the seed.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from ...constraints import AtLeastTwo, checked
from .task import SyntheticQuestion, SyntheticTask

JOBS = ("author", "composer", "director", "founder", "inventor", "mayor", "painter", "owner")
# Wordings by what comes first. Each ends with what comes last, so that any may be asked.
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
    """Facts about people, of whom a third each is read of by name first, by fact first, or both.

        corpora.synthetic_documents.task = @synthetic_tasks.reversal

    Kinds of questions: `reversed`, in the order in which nobody was read of, and `as_read`, in the
    order of the documents and a wording that was left out of them.

    Args:
      people: in each of the three groups.
      choices: answers of a question: those of others of the same group, so that neither has stood
        where it is asked for.

    Raises ValueError for more choices than people of a group.
    """
    if choices > people:
        raise ValueError(
            f"Got {choices} choices of {people} people in a group, expected at most as many as "
            "there are people: raise synthetic_tasks.reversal.people, or lower its choices."
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
