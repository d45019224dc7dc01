"""Completions of beginnings: how a model is prompted, and what counts as correct."""

import pytest

from pretrax.comparison.eval_metrics import completions
from pretrax.corpora.synthetic_tasks import SyntheticQuestion, SyntheticTask
from tests.comparison.subjects import subject_of_world
from tests.refusals import refuses

QUESTION = SyntheticQuestion("ends", "one", (" two", " one"))
HELDOUT = ["one one two two", "two two one one", "one one two two"]


def pairs(*, seed):
    return SyntheticTask(["one one"], HELDOUT, [QUESTION], {*HELDOUT}.__contains__)


def subject(builder="decoder", objective="causal_lm", of=pairs):
    return subject_of_world(builder, objective, of)


def test_true_completion_is_accepted_and_baseline_reuses_another_ending(monkeypatch):
    rests = {text[:7]: text[8:] for text in HELDOUT}
    monkeypatch.setattr(completions, "continued", lambda _, texts, __: [rests[x] for x in texts])
    (figure,) = completions.synthetic_completions(subject())
    assert figure.value == 1.0 and figure.baseline == pytest.approx(1 / 3)
    assert figure.note == "3 beginnings; the true texts score 1.00"
    monkeypatch.setattr(completions, "continued", lambda *_: ["one"] * 3)
    assert completions.synthetic_completions(subject())[0].value == 0.0


def test_masked_model_fills_one_mask_per_missing_token(monkeypatch):
    asked = []

    def answer(trained, mode, items, options):
        asked.extend(item["text"] for item in items)
        return [{"answer": f"{text.split(' [')[0]} two two</s>"} for text in asked]

    monkeypatch.setattr(completions, "answer", answer)
    (figure,) = completions.synthetic_completions(subject("encoder", "masked_lm"))
    assert asked[0] == f"one one {'[MASK]' * len(' two two')}</s>"  # number of bytes
    assert figure.value == pytest.approx(2 / 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("builder", "objective"), [("decoder", "causal_lm"), ("encoder", "masked_diffusion")]
)
def test_untrained_model_scores_0(builder, objective):
    (figure,) = completions.synthetic_completions(subject(builder, objective), texts=2)
    assert figure.value == 0.0 and figure.baseline == 0.0  # the ending of the other document
    given = figure.note.endswith("the true number of tokens is given")
    assert given == (objective == "masked_diffusion")


def test_unsuitable_tasks_and_models_are_rejected():
    silent = lambda *, seed: pairs(seed=seed)._replace(accepts=None)  # noqa: E731
    with refuses(ValueError, "accepts"):
        completions.synthetic_completions(subject(of=silent))
    with refuses(ValueError, "texts", "2", "1"):
        completions.synthetic_completions(subject(), texts=1)
    single = lambda *, seed: pairs(seed=seed)._replace(heldout=HELDOUT[:1])  # noqa: E731
    with refuses(ValueError, "one", "held-out"):
        completions.synthetic_completions(subject(of=single))
    with refuses(ValueError, "'encoder_decoder'", "infill"):
        completions.synthetic_completions(subject("encoder_decoder", "span_corruption"))
