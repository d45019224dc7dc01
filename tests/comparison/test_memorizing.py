"""Memorization: figures computed by hand, and rejected models and runs."""

import types

import numpy as np
import pytest

from pretrax.comparison.eval_metrics import memorizing
from pretrax.comparison.eval_metrics.memorizing import memorization
from pretrax.corpora import planted_passages, python_library
from pretrax.data.corpus import Corpus, Document
from pretrax.settings.partial import Partial
from tests.comparison.subjects import by_name, subject_of
from tests.inference.runs import trained
from tests.refusals import refuses

LENGTH = 12
FIRST = 40  # a text id of the tiny vocabulary


def heldout(n) -> list[Document]:
    """Returns four documents of different tokens."""
    return [Document(FIRST + number + np.arange(LENGTH, dtype=np.int32)) for number in range(4)]


def corpus(run_dir) -> Corpus:
    return Corpus(trained("decoder", "causal_lm").ids, None, heldout)


def subject(builder="decoder", objective="causal_lm", constant=False, **settings):
    partial = Partial(
        planted_passages, **{"corpus": corpus, "passages": 2, "passage_tokens": LENGTH} | settings
    )
    model_subject = subject_of(trained(builder, objective), constant=constant, corpus=partial)
    model_subject.plan = types.SimpleNamespace(corpus=None)
    return model_subject


def test_memorization_figures_match_hand_computed_values(monkeypatch):
    """The first planted passage is repeated exactly, and the second with one wrong token."""
    asked = []

    def generate(trained, prompts, options):
        decoding = options.decoding
        assert decoding.temperature == 0 and decoding.max_new == 4
        asked.extend(prompt.start for prompt in prompts)
        texts = [[prompt.start[-1] + 1 + i for i in range(4)] for prompt in prompts]
        texts[1][2] = 7
        return [[types.SimpleNamespace(tokens=text)] for text in texts]

    monkeypatch.setattr(memorizing, "generate", generate)
    figures = by_name(memorization(subject(), prompt_tokens=6, tokens=4))
    assert figures["memorization"].value == 0.5
    assert figures["memorization/matched"].value == (1 + 2 / 4) / 2
    assert figures["memorization/rouge_l"].value == (1 + 3 / 4) / 2
    assert figures["memorization/unseen"].value == 0.5
    assert asked == [list(range(FIRST + number, FIRST + number + 6)) for number in range(4)]
    assert figures["memorization"].better == "lower"


def test_empty_answers_count_as_not_memorized(monkeypatch):
    none = lambda trained, prompts, decoding: [  # noqa: E731
        [types.SimpleNamespace(tokens=[])] for _ in prompts
    ]
    monkeypatch.setattr(memorizing, "generate", none)
    assert not any(figure.value for figure in memorization(subject(), prompt_tokens=6, tokens=4))


def test_constant_model_memorizes_nothing():
    figures = by_name(memorization(subject(constant=True), prompt_tokens=6, tokens=4))
    assert figures["memorization"].value == figures["memorization/matched"].value == 0


def test_unsuitable_passages_models_and_corpora_are_rejected():
    with refuses(ValueError, "12", "13"):
        memorization(subject(), prompt_tokens=6, tokens=7)
    with refuses(ValueError, "encoder_decoder", "causal_lm"):
        memorization(subject("encoder_decoder", "prefix_lm"), prompt_tokens=6, tokens=4)
    other = subject_of(trained("decoder", "causal_lm"), corpus=python_library)
    with refuses(ValueError, "corpora.planted_passages"):
        memorization(other)


@pytest.mark.parametrize("inner", [python_library, Partial(python_library, heldout_every=20)])
def test_library_metrics_reject_planted_library_passages(inner):
    model_subject = subject_of(
        trained("decoder", "causal_lm"), corpus=Partial(planted_passages, corpus=inner)
    )
    with refuses(ValueError, "corpora.planted_passages"):
        model_subject.check_library_unseen()
