"""A synthetic task of nested brackets: filling a gap that depends on the text on both sides.

    ( [ ] { ( ) } )

Brackets of several kinds are closed as in the Dyck languages (Chomsky & Schützenberger 1963). Yao
et al. 2021, "Self-Attention Networks Can Process Bounded Hierarchical Languages"
(arXiv:2105.11115), train on Dyck languages of bounded depth. The brackets resemble code with a
cursor. Brackets closed in the gap were opened before it, and brackets opened in the gap are closed
after it, so neither side alone determines the gap. Bavarian et al. 2022 (arXiv:2207.14255) train
causal models to fill in such a middle.
"""

import itertools

import numpy as np

from ...constraints import AtLeastTwo, Count, checked
from .task import SyntheticQuestion, SyntheticTask, heldout_count, train_and_heldout

KINDS = ("()", "[]", "{}", "<>")
_OPENS = {kind[0]: kind[1] for kind in KINDS}
_DRAWS = 100  # Largest number of draws for a question, and average for a document


def balanced(text: str) -> bool:
    """Returns whether a text consists of brackets that are all closed by brackets of their kind.

    >>> balanced("( [ ] )"), balanced("( [ ) ]"), balanced("( )x")
    (True, False, False)
    """
    stack: list[str] = []
    brackets = text.split()
    for bracket in brackets:
        if bracket in _OPENS:
            stack.append(bracket)
        elif not stack or _OPENS[stack.pop()] != bracket:
            return False
    return bool(brackets) and not stack


def drawn_brackets(rng: np.random.Generator, pairs: int, deepest: int) -> list[str]:
    """Returns `pairs` pairs of brackets of any kinds, with at most `deepest` open at once.

    If the next bracket may open or close, each is drawn with a probability of 0.5.

    drawn_brackets(np.random.default_rng(0), 3, 2)    # ['[', '{', '}', ']', '(', ')']
    """
    brackets: list[str] = []
    stack: list[str] = []
    left = pairs
    while left or stack:
        if left and len(stack) < deepest and (not stack or rng.random() < 0.5):
            stack.append(KINDS[rng.integers(len(KINDS))])
            brackets.append(stack[-1][0])
            left -= 1
        else:
            brackets.append(stack.pop()[1])
    return brackets


@checked
def brackets(
    *,
    seed: int,
    documents: Count = 40_000,
    pairs: AtLeastTwo = 12,
    deepest: AtLeastTwo = 6,
    hidden: AtLeastTwo = 3,
    questions: Count = 200,
    choices: AtLeastTwo = 4,
) -> SyntheticTask:
    """Balanced brackets of four kinds, with questions about the brackets in a gap.

        corpora.synthetic_documents.task = @synthetic_tasks.brackets

    The kind of questions is `filled_in`. The first hidden bracket closes a bracket before the
    blank, and the last one opens a bracket that is closed after it. Only the correct answer of this
    length balances the document. A wrong answer closes the same brackets and then opens the same
    number of brackets of other kinds. It is equally likely given the text before the blank, so a
    model that ignores the text after the blank scores at chance. The task's `accepts` tests for
    balanced documents.

    Args:
      documents: number of training documents; a twentieth more is held out.
      pairs: number of pairs of brackets in a document.
      deepest: largest number of brackets that are open at once.
      hidden: number of consecutive brackets that are hidden in a question.
      questions: number of questions. If there are few pairs, questions may share a document.
      choices: number of answers of a question.

    The documents of questions are not trained on or held out.

    Raises ValueError if fewer than two brackets are visible, if no gap with enough wrong answers is
    found, or if the questions use so many documents that too few are left.
    """
    if hidden > 2 * pairs - 2:
        raise ValueError(
            f"Got {hidden} hidden brackets of {2 * pairs}, expected at most {2 * pairs - 2}: raise "
            "synthetic_tasks.brackets.pairs, or lower its hidden."
        )
    rng = np.random.default_rng(seed)
    asked = [_question(rng, pairs, deepest, hidden, choices) for _ in range(questions)]
    taken = {document for document, _ in asked}
    count = documents + heldout_count(documents)
    drawn = (" ".join(drawn_brackets(rng, pairs, deepest)) for _ in range(_DRAWS * count))
    unread = (document for document in drawn if document not in taken)
    train, heldout = train_and_heldout(unread, documents)
    if len(train) + len(heldout) < count:
        raise ValueError(
            f"Got {questions} questions about documents with {pairs} pairs of brackets, which "
            "leaves too few other documents to train on: raise synthetic_tasks.brackets.pairs, or "
            "lower its questions."
        )
    return SyntheticTask(train, heldout, [question for _, question in asked], balanced)


def _question(rng, pairs, deepest, hidden, choices) -> tuple[str, SyntheticQuestion]:
    """Returns a document, and a question for brackets that depend on the text on both sides."""
    for _ in range(_DRAWS):
        document = drawn_brackets(rng, pairs, deepest)
        start = int(rng.integers(1, len(document) - hidden))
        before = document[:start]
        true = tuple(document[start : start + hidden])
        closing = tuple(itertools.takewhile(lambda bracket: bracket not in _OPENS, true))
        opening = true[len(closing) :]
        crosses = closing and opening and _OPENS.keys() >= {*opening}
        # A pair within the gap could be of any kind, and the opened brackets must be closed later.
        is_only_one = crosses and _OPENS[opening[0]] != closing[-1]
        if is_only_one and len(_OPENS) ** len(opening) >= choices:
            break
    else:
        raise ValueError(
            f"Got {pairs} pairs of brackets, at most {deepest} open brackets, {hidden} hidden "
            f"brackets and {choices} choices: none of {_DRAWS} documents has a gap with "
            f"{choices - 1} wrong answers and a single correct answer. Raise "
            "synthetic_tasks.brackets.hidden, pairs or deepest, or lower its choices."
        )
    kinds = itertools.product(_OPENS, repeat=len(opening))
    wrong = [(*closing, *others) for others in kinds if others != opening]
    chosen = [wrong[k] for k in rng.permutation(len(wrong))[: choices - 1].tolist()]
    blank = f"{' '.join(before)}<extra_id_0> {' '.join(document[start + hidden :])}"
    answers = tuple("".join(f" {bracket}" for bracket in each) for each in (true, *chosen))
    return " ".join(document), SyntheticQuestion("filled_in", blank, answers)
