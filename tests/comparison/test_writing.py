"""Fine-tuning to write: what is learned, the gain of pre-training, and hand-computed figures."""

import math

import numpy as np
import pytest

from pretrax.comparison.eval_metrics import writing
from pretrax.comparison.eval_metrics.parts import two_languages
from pretrax.comparison.eval_metrics.parts.finetuning_steps import Peak
from pretrax.comparison.eval_metrics.parts.two_languages import translations
from pretrax.comparison.eval_metrics.writing import finetune_to_write
from pretrax.inference import Decoding, Options, answer
from pretrax.inference.answering.scoring import answered_prompt, score
from tests.comparison.subjects import subject_of
from tests.inference.runs import IDS, trained
from tests.refusals import refuses

MODELS = {"decoder": "causal_lm", "encoder_decoder": "span_corruption"}
PAIRS = [(f"{'ab'[i % 2] * 3} {i}", ("x y", "y x")[i % 2]) for i in range(40)]
FEW = {"train": PAIRS[:32], "validation": PAIRS[32:]}


def by_name(figures) -> dict:
    return {figure.name.removeprefix("finetune_to_write"): figure for figure in figures}


@pytest.fixture
def short_task(monkeypatch):
    monkeypatch.setattr(writing, "texts_and_answers", lambda subject, task: FEW)


# --- the two languages ----------------------------------------------------------------------------


def test_translations_map_words_and_reorder_them():
    pairs = [(first.split(), second.split()) for first, second in translations(300)]
    lexicon: dict[str, str] = {}
    for first, second in pairs:
        assert len(first) == len(second)
        if len(first) == 3:  # noun verb noun -> noun noun verb
            assert all(
                lexicon.setdefault(one, other) == other
                for one, other in zip(first, (second[0], second[2], second[1]))
            )
    nouns = {word for first, _ in pairs if len(first) == 3 for word in (first[0], first[2])}
    for first, second in pairs:
        if len(first) == 5:  # adjective noun verb adjective noun
            first_adjective, subject, verb, second_adjective, other = first
            assert [subject, other] == [word for word in first if word in nouns]
            order = [subject, first_adjective, other, second_adjective, verb]
            known = [(lexicon.get(word), new) for word, new in zip(order, second)]
            assert all(one in (None, new) for one, new in known)
    words = {word for first, _ in pairs for word in first}
    others = {word for _, second in pairs for word in second}
    count = sum(two_languages.WORDS.values())
    assert len(words) == len(others) == count and not words & others


def test_translations_are_unique_and_deterministic():
    sentences = translations(400)
    assert len({first for first, _ in sentences}) == len({second for _, second in sentences}) == 400
    assert translations(400) == sentences and translations(40) == sentences[:40]


# --- what is learned ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("builder", MODELS)
def test_every_layout_that_writes_learns_to_answer(builder):
    one = writing.with_answer_forms(trained(builder, MODELS[builder]))
    answered = [answered_prompt(one, *pair) for pair in PAIRS]
    writer, peak = writing.finetuned_writer(one, answered, 30, [1e-9, 0.1], 8)
    assert peak.best == 0.1 and writing.answer_nats(writer, answered[:8]) < 8 * 0.1
    if builder == "decoder":
        items = [{"text": text} for text, _ in PAIRS[:8]]
        written = answer(writer, "respond", items, Options(Decoding(max_new=4)))
        assert [record["answer"] for record in written] == [text for _, text in PAIRS[:8]]


@pytest.mark.slow
def test_untrained_constant_model_has_no_gain(short_task, monkeypatch):
    monkeypatch.setattr(writing, "answer", lambda trained, mode, items, _: [{"answer": ""}] * 8)
    subject = subject_of(trained("decoder", "causal_lm"), constant=True)
    few_steps = dict(steps=1, peaks=[1e-9], batch_size=8)
    found = by_name(finetune_to_write(subject, task="translation", **few_steps))
    assert found[""].value < 0 and found[""].baseline == 0
    assert found["/exact_match"].value == found["/rouge_2"].value == 0
    assert found["/exact_match"].baseline == 1 / 2  # One of the two answers is always "x y".
    # All ids are equally likely, for each of the three bytes of an answer and its end.
    bits = 4 * math.log2(trained("decoder", "causal_lm").model.vocab_size)
    assert found["/bits_per_byte"].value == pytest.approx(bits / 3, rel=1e-4)
    # Each of the four ids occurs 32 times among 128, and one is added to the count of every id.
    by_frequency = 4 * -math.log2((32 + 1) / (128 + IDS.size))
    assert found["/bits_per_byte"].baseline == pytest.approx(by_frequency / 3)


@pytest.mark.slow
def test_answer_scores_match_hand_computed_values(short_task, monkeypatch):
    """A model writes every answer correctly except the last. The figures are computed by hand."""
    answers = dict(FEW["validation"])
    last = FEW["validation"][-1][0]

    def written(trained, mode, items, options):
        assert mode == "respond" and options.decoding.max_new == 4
        answers[last] = "no words"
        return [{"answer": answers[item["text"]]} for item in items]

    monkeypatch.setattr(writing, "answer", written)
    monkeypatch.setattr(writing, "finetuned_writer", lambda model, *_: (model, Peak(0.1, [0.1])))
    subject = subject_of(trained("encoder_decoder", "span_corruption"))
    found = by_name(finetune_to_write(subject, task="translation"))
    assert found["/exact_match"].value == found["/from_scratch/exact_match"].value == 7 / 8
    assert found["/rouge_2"].value == 7 / 8 and found["/rouge_2"].baseline == 1 / 2
    writer = writing.with_answer_forms(subject.trained)
    scored = score(writer, FEW["validation"])
    bits = -sum(each.log_prob for each in scored) / math.log(2) / 24
    assert found["/bits_per_byte"].value == pytest.approx(bits)


@pytest.mark.sampled
@pytest.mark.parametrize("builder", MODELS)
def test_finetuning_loss_counts_only_answer_tokens(builder):
    writer = writing.with_answer_forms(trained(builder, MODELS[builder]))
    answered = [answered_prompt(writer, *pair) for pair in PAIRS[:8]]
    asked = []

    def stepped(loss, params, batches, *_):
        asked.append(float(loss(params, *next(batches))))
        return params

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "stepped", stepped)
        writing.finetuned_writer(writer, answered, 1, [0.1], 8)
    # The last example chooses the learning rate.
    expected = -np.mean(np.concatenate([each.log_probs for each in score(writer, PAIRS[:7])]))
    assert asked == [pytest.approx(expected, rel=1e-4)]


def test_models_that_do_not_generate_and_unknown_tasks_are_rejected():
    with refuses(ValueError, "encoder"):
        finetune_to_write(subject_of(trained("encoder", "masked_lm")), task="translation")
    with refuses(ValueError, "task", "translation", "summaries"):
        finetune_to_write(subject_of(trained("decoder", "causal_lm")), task="summaries")
