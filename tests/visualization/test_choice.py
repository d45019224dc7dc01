"""The layout on which an objective is shown."""

import functools

import pytest

from pretrax import models, objectives
from pretrax.objectives.catalog import CATALOG
from pretrax.training.run_configuration import read_fields
from pretrax.visualization.choice import Choice, layout_for
from tests.visualization.letters import IDS


@pytest.mark.parametrize(
    "name, layout", [("causal_lm", "decoder"), ("masked_lm", "encoder"), ("ul2", "encoder_decoder")]
)
def test_layout_that_supports_the_objective_is_found(name, layout):
    choice = Choice(name, getattr(objectives, name))
    assert layout_for(choice, IDS) == layout
    assert layout_for(choice._replace(entry=CATALOG[name]), IDS) == layout


def test_layout_that_differs_from_the_paper_is_noted():
    choice = Choice("span_corruption", objectives.span_corruption, CATALOG["span_corruption"])
    assert choice.facts("encoder_decoder")[1].startswith("Model: encoder-decoder")
    assert choice.facts("decoder")[1].startswith(
        "Model: decoder; published on another model: encoder-decoder"
    )


def test_layout_of_the_run_takes_precedence():
    name, build = "span_corruption", objectives.span_corruption
    sizes = dict(num_layers=1, emb_dim=8, num_heads=2, head_dim=4, mlp_dim=8)
    model = functools.partial(models.decoder, **sizes)
    assert layout_for(Choice(name, build, CATALOG[name], model), IDS) == "decoder"


def test_run_that_counts_its_classes_has_a_layout():
    fields = read_fields(["runs/finetune_classification.gin"])
    assert (
        layout_for(Choice("classes", fields["objective"], model=fields["model"]), IDS) == "encoder"
    )
