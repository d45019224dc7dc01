"""Recomputes the page of claims from the kept results, with NumPy alone.

    python -m tests.recompute_claims

For each claim, this computes the mean difference, its standard deviation over seeds and its
corrected interval from results.jsonl, and prints every figure of the page that differs. It imports
nothing from the project, so that an error in `comparison.statistics` cannot hide itself.
"""

import json
import math
import re
import sys
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np

DOCS = Path(__file__).resolve().parents[1] / "docs"
NUMBER = r"([+−]?\d[\d.]*)"
ROW = re.compile(
    rf"\| \*\*{NUMBER} [^|]*?\*\* at (?P<figure>.+?), "
    r'"(?P<better>.+?)" compared with "(?P<than>.+?)"'
    rf"(?:, margin \S+)? \| {NUMBER} \({NUMBER} to {NUMBER}\) \| [^|]+ \| (?P<seeds>\d+) seeds.*"
    r"\(comparisons/(?P<name>\w+)\.md\)"
)


def mismatches(page: str, comparisons: Path = DOCS / "comparisons") -> list[str]:
    """Returns a line for each figure of the page that the results do not give."""
    rows = [line for line in page.splitlines() if "[report](comparisons/" in line]
    found = [] if rows else ["The page has no claims."]
    for row in rows:
        shown = ROW.search(row)
        if shown is None:
            found.append(f"No figures were found in {row[:80]}")
            continue
        pair = (shown["better"], shown["than"])
        seeds, computed = recomputed(comparisons / shown["name"], shown["figure"], *pair)
        if seeds != int(shown["seeds"]):
            found.append(f"{shown['name']}: {seeds} seeds, the page has {shown['seeds']}")
        for text, value in zip((shown[1], shown[5], shown[6], shown[7]), computed, strict=True):
            places = len(text.partition(".")[2])
            if not abs(float(text.replace("−", "-")) - value) <= 0.5 * 10**-places + 1e-9:
                found.append(f"{shown['name']}, {pair}: {value:.4f}, the page has {text}")
    return found


def recomputed(
    folder: Path, figure: str, better: str, than: str
) -> tuple[int, tuple[float, float, float, float]]:
    """Returns the number of seeds, and the gain of `better` with its value and interval in SDs."""
    values: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    signs = {}
    for line in (folder / "results.jsonl").read_text().splitlines():
        one = json.loads(line)
        is_part = "/" in re.sub(r" \(.*\)", "", one["name"])
        value = math.nan if one["value"] is None else one["value"]
        if not is_part and one["better"] != "neither" and math.isfinite(value):
            # The last checkpoint of a run comes last.
            values[one["name"]][one["variant"]][one["seed"]] = one["value"]
            signs[one["name"]] = 1 if one["better"] == "higher" else -1
    setup = json.loads((folder / "comparison.json").read_text())
    pairs = [
        (name, a, b)
        for name, by_variant in values.items()
        for a, b in combinations(by_variant, 2)
        if setup.get("reference") in (None, a, b) and by_variant[a].keys() & by_variant[b].keys()
    ]
    first, second = values[figure][better], values[figure][than]
    gains = [signs[figure] * (first[s] - second[s]) for s in sorted(first.keys() & second.keys())]
    mean, deviation = np.mean(gains), np.std(gains, ddof=1)
    level = 0.05 / max(len(setup.get("looks", ())), 1) / len(pairs)
    half = quantile(level, len(gains) - 1) / math.sqrt(len(gains))
    size = mean / deviation
    return len(gains), (mean, size, size - half, size + half)


def quantile(level: float, freedom: int) -> float:
    """Returns the t beyond which, on both sides, Student's distribution has the mass `level`.

    With t = sqrt(freedom) tan(a), the density is proportional to cos(a)^(freedom - 1).
    """
    angles = np.linspace(0, np.pi / 2, 2_000_001)
    density = np.cos(angles) ** (freedom - 1)
    mass = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    angle = np.interp(1 - level, mass / mass[-1], angles)
    return float(math.sqrt(freedom) * np.tan(angle))


if __name__ == "__main__":
    lines = mismatches((DOCS / "what_was_found.md").read_text())
    print("\n".join(lines) or "All figures of the claims agree with the kept results.")
    sys.exit(bool(lines))
