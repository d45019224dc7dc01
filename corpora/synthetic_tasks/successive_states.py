"""A synthetic task of processes: the order of two sentences shows only if they are compared.

    dipepu was nukilo . dipepu is sefaba . dipepu became togiru .

A process goes through the states of a cycle, one state per sentence. The cycle is the same in all
documents. A process starts at any state and ends before the state returns. A single sentence
therefore does not reveal its position, but two sentences of a process reveal their order by their
states. All sentences of a document have the name of its process, which distinguishes documents.

Lan et al. 2020, ALBERT (arXiv:1909.11942): next sentence prediction (Devlin et al. 2019, BERT,
arXiv:1810.04805) has negatives from another document, which the topic alone reveals. Sentence order
prediction has swapped negatives, which only the order reveals. A model trained on the former
therefore fails on the latter. In this task the name is the topic, and the states are the order.
The states of another text usually break the order, too. With few states and many names, the order
is the easier cue, and next sentence prediction teaches the order.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...constraints import AtLeastTwo, Count, checked
from .one_direction import invented_words
from .task import SyntheticPair, SyntheticQuestion, SyntheticTask, heldout_count

VERBS = ("was", "is", "became", "stayed", "seemed", "turned", "grew", "felt")


class NamedProcess(NamedTuple):
    """A process with its states and the verbs of its sentences, one sentence per state."""

    name: str
    states: Sequence[str]
    verbs: Sequence[str]

    @property
    def sentences(self) -> list[str]:
        """Returns the sentences in order.

        >>> NamedProcess("mira", ["wet", "dry"], ["is", "was"]).sentences
        ['mira is wet .', 'mira was dry .']
        """
        return [f"{self.name} {verb} {state} ." for state, verb in zip(self.states, self.verbs)]

    def halves(self) -> tuple[str, str]:
        """Returns the text in two parts, each with half of the sentences."""
        half = len(self.states) // 2
        sentences = self.sentences
        return " ".join(sentences[:half]), " ".join(sentences[half:])


@checked
def processes(
    *,
    seed: int,
    documents: Count = 20_000,
    sentences: AtLeastTwo = 6,
    states: AtLeastTwo = 24,
    names: AtLeastTwo = 12,
    questions: Count = 200,
    choices: AtLeastTwo = 4,
) -> SyntheticTask:
    """Texts about processes that go through successive states, one sentence per state.

        corpora.synthetic_documents.task = @synthetic_tasks.processes

    Kinds of pairs: in `order`, the wrong pair is the two halves of a text swapped. In `belongs`,
    the wrong pair has the second half of a text about another process.

    Both kinds of questions are about the first sentence of the second half: `state` about its
    state, which follows from the previous sentence, and `name` about its name. A state does not
    occur twice in a text. Excluding the states read so far gives a share of 0.29 of `state`, or
    0.32 if the following text is read, too. Chance is 0.25.

    Args:
      documents: number of training documents; a twentieth more is held out.
      sentences: number of sentences of a text.
      states: number of states of the cycle; more than a text has sentences.
      names: number of names of processes.
      questions: number of questions of each kind, and number of pairs of each kind.
      choices: number of answers of a question.

    Raises ValueError if there are not more states than sentences, and for more choices than states
    or names.
    """
    if states <= sentences or choices > min(states, names):
        raise ValueError(
            f"Got {states} states, {names} names, {choices} choices and {sentences} sentences, "
            "expected more states than sentences, so that a state does not occur twice, and at "
            f"least {choices} states and names: raise synthetic_tasks.processes.states or names."
        )
    rng = np.random.default_rng(seed)
    words = rng.permutation(invented_words(states + names)).tolist()
    cycle = words[:states]
    named = words[states:]

    def drawn(name: str) -> NamedProcess:
        start = rng.integers(states)
        text_states = [cycle[(start + k) % states] for k in range(sentences)]
        return NamedProcess(name, text_states, rng.choice(VERBS, sentences).tolist())

    def several(count: int) -> list[NamedProcess]:
        return [drawn(name) for name in rng.choice(named, count).tolist()]

    *texts, asked = map(several, (documents, heldout_count(documents), questions))
    foreign = [drawn(rng.choice([x for x in named if x != process.name])) for process in asked]
    train, heldout = ([" ".join(process.sentences) for process in each] for each in texts)
    halves = [(process.halves(), other.halves()) for process, other in zip(asked, foreign)]
    words = {"state": cycle, "name": named}
    return SyntheticTask(
        train,
        heldout,
        [_question(rng, kind, each, words[kind], choices) for kind in words for each in asked],
        pairs=[
            *(SyntheticPair("order", (a, b), (b, a)) for (a, b), _ in halves),
            *(SyntheticPair("belongs", (a, b), (a, other)) for (a, b), (_, other) in halves),
        ],
    )


def _question(
    rng: np.random.Generator, kind: str, process: NamedProcess, words: Sequence[str], choices: int
) -> SyntheticQuestion:
    """Returns the question for a word of the first sentence of the second half."""
    before, after = process.halves()
    second_half = after.split()  # a name, a verb, a state, a full stop, …
    at = {"name": 0, "state": 2}[kind]
    others = rng.choice([word for word in words if word != second_half[at]], choices - 1, False)
    return SyntheticQuestion(
        kind,
        " ".join([before, *second_half[:at]]),
        tuple(f" {word}" for word in (second_half[at], *others.tolist())),
        after="".join(f" {word}" for word in second_half[at + 1 :]),
    )
