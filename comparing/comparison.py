"""`Comparison`: what is compared, as a value."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """A base run, named variants of it, seeds, a budget and yardsticks.

        Comparison(
            question="How many tokens should masked language modelling hide?",
            base=["runs/encoder.gin"],
            variants={"15%": [], "40%": ["objectives.masked_lm.rate = 0.40"]},
            budget=Bound(budgets.text_tokens, number=400_000),
            yardsticks=[Bound(yardsticks.probes.classify)],
        )

    Lines that end in `.gin` are files, the others bindings, as `pretrax train` takes both.
    """

    question: str  # what is asked, in a sentence
    base: Sequence[str]  # gin files and bindings of the run that all variants change
    variants: Mapping[str, Sequence[str]]  # by name: gin files and bindings after those of the base
    budget: Callable  # (training.Plan) -> steps
    yardsticks: Sequence[Callable]  # (Subject) -> list[Figure]
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    reference: str | None = None  # the variant that others are compared with; None: all pairs
    about: str = ""  # what it follows, and what it cannot prove
