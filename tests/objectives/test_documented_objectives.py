"""The objectives of docs/own_objective.md: `show` draws what training computes."""

import importlib
import re

import jax
import numpy as np
import optax
import pytest

from pretrax import corpora, models
from pretrax.corpora import vocabularies
from pretrax.models.builders import abstract_params
from pretrax.models.heads import HEADS
from pretrax.objectives import Row, batched
from pretrax.objectives.laws import check_objective
from pretrax.objectives.token_ids import specimen_ids
from pretrax.settings.partial import Partial
from pretrax.training.planning import open_batches
from pretrax.training.state import unboxed
from pretrax.visualization.hidden import hidden_tokens
from pretrax.visualization.rows import ShownObjective, view_of
from pretrax.visualization.tracing import read
from tests.training import tiny
from tests.training.tiny import ROOT

TEXT = "The old King met Queen Anne in the Tower, and Anne met the old Queen. "


@pytest.fixture(scope="module")
def capitals(tmp_path_factory):
    """Returns the module my_capitals of the page."""
    page = (ROOT / "docs" / "own_objective.md").read_text()
    (text,) = re.findall(r"^```python\n(# my_capitals\.py\n.*?)^```$", page, re.S | re.M)
    folder = tmp_path_factory.mktemp("documented")
    (folder / "my_capitals.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module("my_capitals")
        HEADS.pop("capital")


def planned(folder, objective, model, **lengths):
    """Returns the plan of a run on text files with a byte vocabulary."""
    (folder / "text").mkdir()
    for number in range(8):
        (folder / "text" / f"{number}.txt").write_text(TEXT * 4)
    corpus = Partial(
        corpora.text_files,
        files=f"{folder}/text/*.txt",
        heldout_every=2,
        vocabulary=Partial(vocabularies.utf8_bytes),
    )
    model = Partial(model, **tiny.SIZES, num_layers=1)
    run = tiny.Settings(
        run_dir=str(folder / "run"),
        corpus=corpus,
        objective=objective,
        model=model,
        optimizer=lambda steps: optax.adamw(1e-2),
        sequence_lengths=lengths,
        batch_size=8,
        steps=2,
        mesh=lambda: tiny.mesh_of(1),
    )
    return tiny.planned(run)


@pytest.mark.slow
def test_show_masks_same_capitals_as_training(capitals, tmp_path):
    plan = planned(tmp_path, capitals.masked_capitals, models.encoder, encoder=64)
    rows = next(open_batches(plan))[0]
    tokens, segments = np.asarray(rows.tokens), np.asarray(rows.segments)
    is_capital = np.array([text[:1].isupper() for text in plan.recipe.ids.texts()])[tokens]
    assert is_capital.any()
    objective, width = plan.recipe.objective, tokens.shape[1]
    keys = jax.random.split(jax.random.key(0), len(tokens))
    corrupt = batched(objective, objective.lengths(width), int(segments.max()))
    trained = jax.device_get(jax.jit(corrupt)(keys, Row(tokens, segments, rows.member)))
    np.testing.assert_array_equal(trained["labels_weights"].sum(1), is_capital.sum(1))

    ids = plan.recipe.ids
    subject = ShownObjective("", 1.0, capitals.masked_capitals(ids), "encoder", ids)
    documents = [[row[segment == 1]] for row, segment in zip(tokens, segments)]
    view = view_of(subject, documents, seed=0)
    for row, shown in enumerate(read(view.features["inputs"])[0]):
        used = (segments[row] == 1).sum()
        np.testing.assert_array_equal(shown[:used], trained["inputs"][row][:used])
    in_first_document = segments[:, : view.length] == 1
    np.testing.assert_array_equal(
        hidden_tokens(view) & in_first_document, is_capital[:, : view.length] & in_first_document
    )


def test_second_head_has_parameters(capitals, tmp_path):
    plan = planned(tmp_path, capitals.causal_lm_with_case, models.decoder, decoder=32)
    assert plan.recipe.model.heads == ("vocabulary", "capital")
    params = unboxed(abstract_params(plan.recipe.model))
    assert params["projections_capital"]["kernel"].shape == (tiny.SIZES["emb_dim"], 2)


@pytest.mark.slow
def test_documented_objectives_keep_laws(capitals):
    for build in (capitals.masked_capitals, capitals.causal_lm_with_case):
        check_objective(build(specimen_ids(1000)), specimen_ids(1000))
