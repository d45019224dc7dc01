"""The catalog of objectives states correct facts about each objective."""

import inspect
import re
import typing

import numpy as np
import pytest

from pretrax import objectives
from pretrax.objectives import Objective, bitmap
from pretrax.objectives.catalog import ALIASES, ARCHITECTURES, CATALOG, find, run_of
from pretrax.objectives.token_ids import specimen_ids
from pretrax.training.run_configuration import read_fields
from pretrax.visualization.choice import Choice, layout_for
from pretrax.visualization.rows import ShownObjective, shown_objectives, view_of
from tests.refusals import refuses
from tests.training.tiny import ROOT

GIN_FILES = sorted((ROOT / "gin_configs" / "objectives").glob("*.gin"))
LENGTH = 512  # number of tokens of text in the counted rows
IDS = 1700  # size of the vocabulary of the counted rows
LONG_SENTENCES = np.arange(IDS) % 16 == 0  # one token in sixteen ends a sentence


def test_catalog_lists_every_gin_file():
    assert [path.stem for path in GIN_FILES] == sorted(CATALOG)


def test_every_exported_builder_has_a_gin_file():
    builders = {
        name
        for name, function in vars(objectives).items()
        if inspect.isfunction(function)
        if typing.get_type_hints(function).get("return") is Objective
    }
    texts = "".join(path.read_text() for path in (ROOT / "gin_configs").rglob("*.gin"))
    named = re.findall(r"@objectives\.(\w+)", texts)
    assert len(builders) > 20 and builders <= set(named)


@pytest.mark.parametrize("name", CATALOG)
def test_catalog_entry_is_complete(name):
    entry = CATALOG[name]
    assert entry.architecture in ARCHITECTURES
    assert re.search(r", (arXiv:\d{4}\.\d{5}|github\.com/[^/]+/[^/]+/pull/\d+)$", entry.paper)
    assert 4 < len(entry.good_for) < 36 and entry.attention
    assert entry.span_distribution in (None, "composition", "poisson")


def test_find_resolves_aliases_and_rejects_unknown_names():
    assert set(ALIASES.values()) <= set(CATALOG) and not set(ALIASES) & set(CATALOG)
    assert find("MLM") == find("masked-lm") == find("masked_lm") == "masked_lm"
    with refuses(ValueError, "mask_lm", "masked_lm"):
        find("mask_lm")
    with refuses(ValueError, "xyz", "--list"):
        find("xyz")


# --- number of slots with a loss -----------------------------------------------------------------

# Textbooks count 511 slots for a causal model, which is given the first token. Here the start token
# predicts the first token, too. Prefix lengths are uniform in 1 … 511, so the mean is 256 plus
# end-of-sequence. Of span corruption's 104 targets, 77 are text (15%), 26 are sentinels and one is
# end-of-sequence. ELECTRA's loss covers all inputs, including [CLS] and [SEP].
TEXTBOOK = {
    "causal_lm": 512,
    "prefix_lm": 256 + 1,
    "masked_lm": 77,
    "span_corruption": 77 + 26 + 1,
    "replaced_token_detection": 512 + 2,
    "masked_diffusion": 256,
    "shifted_diffusion": 256,
    "dual_diffusion": (512 + 256) // 2,
    "block_diffusion": 256,
    "permutation_lm": 85,
    "gpt_bert": round((15 * 77 + 512) / 16),
    "contrastive": 2,
}
QUICK = ("causal_lm", "masked_lm", "span_corruption", "prefix_lm", "contrastive")


def targets_per_token(name: str) -> float:
    """Returns the number of targets per token that the page of an objective gives."""
    page = (ROOT / f"docs/objectives/{name}.md").read_text(encoding="utf-8")
    found = re.search(r"^Targets per token: (\S+)\.", page, re.MULTILINE)
    assert found
    return float(found[1])


@pytest.mark.parametrize("name", TEXTBOOK)
def test_pages_give_textbook_counts_of_targets(name):
    assert targets_per_token(name) == float(f"{TEXTBOOK[name] / LENGTH:.3g}")


@pytest.mark.sampled
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CATALOG]
)
def test_pages_give_counted_targets(name):
    """The tolerance is four standard errors of the count, plus rounding to three digits."""
    build = read_fields([f"runs/{run_of(name)}.gin", f"objectives/{name}.gin"])["objective"]
    entry, ids = CATALOG[name], specimen_ids(IDS)._replace(sentence_ends=bitmap(LONG_SENTENCES))
    rates = np.array([subject.rate for subject in shown_objectives(build(ids), "", ids)])
    layout = layout_for(Choice(name, build, entry), ids)
    whole = ShownObjective("", 1.0, build(ids), layout, ids)
    draw, (first, last) = np.random.default_rng(0), ids.text
    rows = draw.integers(first, last, (64 * len(rates), LENGTH), dtype=np.int32)
    found = view_of(whole, [[row] for row in rows], 0)
    # The members of a mixture take turns.
    counts = found.gives_loss.sum(axis=1).reshape(-1, len(rates))
    error = np.sqrt(np.sum(rates**2 * counts.var(axis=0)) / len(counts))
    slots = targets_per_token(name) * LENGTH
    assert abs(counts.mean(axis=0) @ rates - slots) <= 4 * error + 0.5 + 0.005 * slots
