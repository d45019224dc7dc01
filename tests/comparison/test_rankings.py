"""Ranking of answers: what is scored for each kind of model, and the score without knowledge."""

import numpy as np
import pytest

from pretrax.comparison.eval_metrics import context_learning, known_answers, rankings
from pretrax.comparison.eval_metrics.parts import ranking
from pretrax.comparison.eval_metrics.parts.ranking import Question, answer_log_probs
from pretrax.corpora.synthetic_tasks import labeled_words
from pretrax.inference import score
from pretrax.inference.answering import scoring
from pretrax.inference.answering.scoring import hidden_log_probs
from pretrax.inference.prompting.prompts import Prompt
from tests.comparison.subjects import subject_of
from tests.inference.runs import trained
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("few_library_files")

BLANKED = Question("so <extra_id_0>!", ("he", "she"))
OPEN = Question("so ", ("he", "she"))


def rows(found):
    return [[np.sum(log_probs), np.mean(log_probs)] for log_probs in found]


@pytest.mark.parametrize(
    ("builder", "objective", "blanked", "opened"),
    [
        (
            "decoder",
            "causal_lm",
            [("", "so he!"), ("", "so she!")],
            [("so ", "he"), ("so ", "she")],
        ),
        (
            "encoder_decoder",
            "ul2",
            [("so <extra_id_0>!", "<extra_id_0>he"), ("so <extra_id_0>!", "<extra_id_0>she")],
            [("so ", "he"), ("so ", "she")],
        ),
        (
            "encoder_decoder",
            "span_corruption",
            [("so <extra_id_0>!", "<extra_id_0>he"), ("so <extra_id_0>!", "<extra_id_0>she")],
            [("so <extra_id_0>", "<extra_id_0>he"), ("so <extra_id_0>", "<extra_id_0>she")],
        ),
    ],
)
def test_answers_are_scored_with_training_prompts(builder, objective, blanked, opened):
    trained_model = trained(builder, objective)
    for question, pairs in ((BLANKED, blanked), (OPEN, opened)):
        (found,) = answer_log_probs(trained_model, [question])
        expected = rows([scored.log_probs for scored in score(trained_model, pairs)])
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("builder", ["decoder", "encoder_decoder"])
@pytest.mark.parametrize("before", ["    ", ""])
def test_prefix_model_scores_a_blank_without_preceding_words(builder, before):
    """The model reads the given text and the ids that training puts around it.

    Nothing is refused. The answer does not have to end the document, as for a causal model.
    """
    trained_model = trained(builder, "prefix_lm")
    (found,) = answer_log_probs(trained_model, [Question(f"{before}<extra_id_0>!", ("he", "she"))])
    inputs = [*trained_model.encode(before), trained_model.ids.eos]
    rests = [trained_model.encode(f"{answer}!") for answer in ("he", "she")]
    expected = rows(
        scoring.answer_log_probs(
            trained_model, [(Prompt(inputs, rest), len(rest)) for rest in rests]
        )
    )
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_all_tokens_of_a_masked_answer_are_hidden_at_once():
    trained_model = trained("encoder", "masked_lm")  # The model reads bytes.
    found = answer_log_probs(trained_model, [BLANKED, OPEN])
    (ending,) = answer_log_probs(
        trained_model, [OPEN._replace(after=" of")]
    )  # as documents end in training
    whole = [
        (trained_model.encode(f"so {word} of"), [*range(3, 3 + len(word))]) for word in OPEN.answers
    ]
    whole = [([*tokens, trained_model.ids.eos], slots) for tokens, slots in whole]
    np.testing.assert_allclose(ending, rows(hidden_log_probs(trained_model, whole)), atol=1e-4)
    texts = [("so he!", [3, 4]), ("so she!", [3, 4, 5]), ("so he", [3, 4]), ("so she", [3, 4, 5])]
    expected = rows(
        hidden_log_probs(
            trained_model, [(trained_model.encode(text), slots) for text, slots in texts]
        )
    )
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-4)


def test_masked_model_reads_the_whole_document_of_a_blank(monkeypatch):
    one, asked = trained("encoder", "masked_lm"), []
    record = lambda trained, texts: asked.extend(texts) or hidden_log_probs(trained, texts)  # noqa: E731
    monkeypatch.setattr(ranking, "hidden_log_probs", record)
    answer_log_probs(one, [BLANKED._replace(after=after) for after in ("", " of")])
    texts = ("so he!", "so she!", "so he! of", "so she! of")
    assert [tokens for tokens, _ in asked] == [[*one.encode(x), one.ids.eos] for x in texts]
    assert [slots for _, slots in asked] == [[3, 4], [3, 4, 5]] * 2


def test_in_context_questions_differ_from_training_lists(monkeypatch):
    asked, drawn = [], labeled_words.word_list
    record = lambda *args: asked.append(drawn(*args)) or asked[-1]  # noqa: E731
    monkeypatch.setattr(labeled_words, "word_list", record)
    subject = subject_of(trained("decoder", "causal_lm"), constant=True)
    context_learning.in_context(subject, shots=(15,), examples=20)
    for seed in range(5):
        rng = np.random.default_rng([seed, 0])  # as the corpus draws them
        lists = [drawn(rng, 16) for _ in range(20)]
        assert len(asked) == 20 and not any(one in asked for one in lists)


@pytest.mark.parametrize(
    ("builder", "objective"), [("encoder", "masked_lm"), ("decoder", "causal_lm")]
)
def test_constant_outputs_score_exactly_chance(builder, objective):
    subject = subject_of(trained(builder, objective), constant=True)
    in_context = context_learning.in_context(subject, shots=(0, 2), examples=5)
    assert {figure.value for figure in in_context} == {0.25}
    names = {figure.name: figure for figure in rankings.fill_in(subject, examples=4)}
    assert names["fill_in/per_token"].value == pytest.approx(names["fill_in"].baseline)


def test_context_reader_scores_the_stated_maximum(monkeypatch):
    """A reader knows which words are of one kind, and looks for a label of this kind above."""

    def read(_, questions):
        found = []
        for question in questions:
            *shown, asked = question.text.split("\n")
            kind = next(kind for kind in labeled_words.KINDS if asked in kind)
            labels = [label for word, label in (x.split() for x in shown) if word in kind]
            of = [float(answer[1:] in labels) for answer in question.answers]
            found.append(np.stack([of, of], axis=-1))
        return found

    monkeypatch.setattr(known_answers, "answer_log_probs", read)
    subject = subject_of(trained("decoder", "causal_lm"))
    first, *others = context_learning.in_context(subject, shots=(8, 0, 1), examples=400)
    assert [figure.name for figure in others] == [f"in_context/{n}_shots" for n in (0, 1, 8)]
    assert first.name == "in_context" and first.value == others[-1].value
    assert others[0].value == others[0].baseline == 0.25  # There is nothing above the question.
    for figure, known in zip(others, (0.25, 0.4375, 0.9249)):
        assert figure.value == pytest.approx(known, abs=0.05)
        assert figure.note.startswith("400 questions") and figure.note.endswith(f" {known:.2f}")


def test_classifiers_and_invalid_settings_are_rejected():
    subject = subject_of(trained("encoder", "sequence_classification", num_classes=3))
    with refuses(ValueError, "classify"):
        rankings.fill_in(subject, examples=1)
    with refuses(ValueError, "examples", "1", "0"):
        rankings.fill_in(subject, examples=0)
    responds = trained("encoder_decoder", "text_to_text")
    with refuses(ValueError, "respond", "blank"):
        answer_log_probs(responds, [BLANKED])


def test_fill_in_the_middle_model_scores_the_middle():
    trained_model = trained("decoder", "fill_in_the_middle")
    found = np.concatenate(answer_log_probs(trained_model, [BLANKED, OPEN]))
    before, after, middle = trained_model.ids.fim
    given = [before, *trained_model.encode("so "), after, *trained_model.encode("!"), middle]
    rests = [[*trained_model.encode(word), trained_model.ids.eos] for word in BLANKED.answers]
    asked = [(Prompt([], [*given, *rest]), len(rest)) for rest in rests]
    whole = [trained_model.encode(f"so {word}") for word in OPEN.answers]
    asked += [(Prompt([], tokens), len(tokens) - 3) for tokens in whole]
    expected = rows(scoring.answer_log_probs(trained_model, asked))
    np.testing.assert_allclose(found, expected, atol=1e-4)
