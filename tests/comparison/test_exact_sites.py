"""Effects of variants and conserved columns, for models that know the answers or know nothing."""

import math

import numpy as np
import pytest

from pretrax.comparison.eval_metrics import exact_sites
from pretrax.corpora.synthetic_tasks import (
    SyntheticQuestion,
    SyntheticSite,
    SyntheticTask,
    proteins,
    reversal,
)
from pretrax.inference.answering import scoring
from pretrax.inference.prompting.prompts import Prompt
from pretrax.inference.trained import mode_of, prompt_form
from tests.comparison.subjects import by_name, subject_of_world
from tests.refusals import refuses

SITES = [
    SyntheticSite("conserved", "a<extra_id_0> c", (" b", " a", " c"), (-1.0, -5.0, -7.0)),
    SyntheticSite("free", "c<extra_id_0> c", (" a", " b", " c"), (-2.0, -2.5, -1.0)),
]
DOCUMENTS = ["a a b", "c a"]


def letters(*, seed):
    question = SyntheticQuestion("free", "a", (" b", " c"))
    return SyntheticTask(DOCUMENTS, ["b a"], [question], sites=SITES)


def families(*, seed):
    return proteins(seed=seed, documents=50, families=2, columns=8, sites=6)


def measured(monkeypatch, scores_of, task=letters):
    """Returns the figures of a model whose log-probabilities of a site's candidates are given."""
    by_text = {f"{site.text}</s>": scores_of(site) for site in task(seed=0).sites}
    monkeypatch.setattr(
        exact_sites,
        "answer_log_probs",
        lambda _, asked: [np.stack([by_text[one.text]] * 2, -1) for one in asked],
    )
    subject = subject_of_world("decoder", "causal_lm", task)
    return by_name([*exact_sites.variant_effects(subject), *exact_sites.conserved_columns(subject)])


@pytest.mark.parametrize("task", [letters, families])
@pytest.mark.parametrize("more", [0.0, 3.0])  # as of the letter given the rest of the text
def test_exact_probabilities_have_correlation_1_and_no_error(monkeypatch, task, more):
    found = measured(monkeypatch, lambda site: np.array(site.log_likelihoods) + more, task)
    for kind in ("", "/conserved", "/free"):
        assert found[f"variant_effects{kind}"].value == pytest.approx(1)
    assert found["variant_effects/rmse"].value == pytest.approx(0)
    note = found["conserved_columns"].note
    assert note.endswith(f" {found['conserved_columns'].value:.2f}")


def test_site_figures_match_hand_computed_values(monkeypatch):
    """The exact ratios are -4, -6 (conserved), -0.5 and 1 (free). Counts are 3, 1 and 1."""
    tie = -1.0 - 1e-9  # by rounding
    scores = {"conserved": np.array([0.0, -1.0, tie]), "free": np.array([0.0, 0.0, 2.0])}
    found = measured(monkeypatch, lambda site: scores[site.kind])
    # The ranks of the ratios are 2, 1, 3, 4, and the ranks of the scores are 1.5, 1.5, 3, 4.
    assert found["variant_effects"].value == pytest.approx(4.5 / math.sqrt(5 * 4.5))
    assert found["variant_effects/conserved"].value == 0
    assert found["variant_effects/free"].value == pytest.approx(1)
    assert found["variant_effects/rmse"].value == pytest.approx(math.sqrt((9 + 25 + 0.25 + 1) / 4))
    # The ratios of the frequencies are ln 3, 0, -ln 3 and -ln 3, whose ranks are 4, 3, 1.5, 1.5.
    assert found["variant_effects"].baseline == pytest.approx(-3.5 / math.sqrt(5 * 4.5))
    ratios = np.array([math.log(3), 0, -math.log(3), -math.log(3)])
    error = math.sqrt(np.mean((ratios - [-4, -6, -0.5, 1]) ** 2))
    assert found["variant_effects/rmse"].baseline == pytest.approx(error)
    # The entropies are 0.99 nats at the conserved site, and 0.62 nats at the free site.
    assert found["conserved_columns"].value == 0


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("builder", "objective"),
    [
        ("decoder", "causal_lm"),
        ("encoder", "masked_lm"),
        ("encoder", "masked_diffusion"),
        ("encoder_decoder", "span_corruption"),
        ("encoder_decoder", "ul2"),
        ("encoder_decoder", "prefix_lm"),
    ],
)
def test_constant_model_scores_the_constant_baselines(builder, objective):
    subject = subject_of_world(builder, objective, families, constant=True)
    found = by_name(exact_sites.variant_effects(subject))
    assert found["variant_effects"].value == 0
    assert found["variant_effects/rmse"].value > 1
    assert exact_sites.conserved_columns(subject)[0].value == 0.5
    random = exact_sites.variant_effects(subject_of_world(builder, objective, families))
    assert random[0].value != 0


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("builder", "objective"), [("decoder", "causal_lm"), ("encoder_decoder", "prefix_lm")]
)
def test_whole_text_models_score_the_end_of_both_texts(builder, objective):
    """Without the end, the exact ratios of `genes` differ by 1.7 nats from those of whole texts."""
    subject = subject_of_world(builder, objective, families)
    trained = subject.trained
    form = prompt_form(trained, mode_of(trained))
    errors = []
    for site in families(seed=0).sites:
        before, after = site.text.split("<extra_id_0>")
        answered = []
        for answer in site.answers:
            rest = [*trained.encode(answer + after), trained.ids.eos]
            if builder == "decoder":
                answered.append((Prompt([], [*trained.encode(before), *rest]), len(rest)))
            else:
                inputs = [*form.before, *trained.encode(before), *form.after]
                answered.append((Prompt(inputs, rest), len(rest)))
        scores = np.array([x.sum() for x in scoring.answer_log_probs(trained, answered)])
        exact = np.array(site.log_likelihoods)
        errors.append((scores - scores[0] - exact + exact[0])[1:])
    found = by_name(exact_sites.variant_effects(subject))["variant_effects/rmse"].value
    assert found == pytest.approx(np.sqrt(np.mean(np.concatenate(errors) ** 2)), rel=1e-4)


def test_task_without_sites_of_both_kinds_is_rejected():
    with refuses(ValueError, "sites", "runs/proteins.gin"):
        exact_sites.variant_effects(subject_of_world("decoder", "causal_lm", reversal))

    def conserved(*, seed):
        return letters(seed=seed)._replace(sites=SITES[:1])

    with refuses(ValueError, "conserved", "free"):
        exact_sites.conserved_columns(subject_of_world("decoder", "causal_lm", conserved))
