"""Fine-tuning: how well a model learns a task with classes, and what its pre-training is worth."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from annotated_types import Ge, MinLen

from ...constraints import Count, Positive, checked
from ..figures import HIGHER, Figure, peak_figures
from .parts.class_tasks import bag_figures, class_figures, class_task, classes_by_words
from .parts.finetuning_recipe import FinetuningRecipe, finetuned
from .parts.finetuning_steps import from_scratch
from .parts.probing import HELD_EVERY
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`
# few labeled examples are drawn until there are so many, or so often
MOST_DRAWS = 3
DRAWN = 100


@checked
def finetune(
    subject: Subject,
    *,
    task: str = "python_modules",
    labels: Sequence[Annotated[int, Ge(HELD_EVERY)]] = (),
    steps: Count = 100,
    peaks: Annotated[Sequence[Positive], MinLen(1)] = (0.02, 0.05, 0.1),
    batch_size: Count = 16,
    tokens: Count = 96,
    module: str | None = None,
    data_dir: str | None = None,
) -> list[Figure]:
    """How many held-out texts does the model classify rightly after fine-tuning?

    Beside it stands the same model from scratch: fresh parameters, as the run's seed draws them,
    fine-tuned by the same recipe on the same examples, that of
    `comparison.eval_metrics.parts.finetuning_recipe`. `/gain` is what pre-training is worth.

        finetune(subject, task="python_word_kinds", labels=[10, 100, 1000])

    Args:
      task, module, data_dir: see `comparison.eval_metrics.parts.class_tasks.class_task`.
      labels: numbers of training examples, for each of which there is a figure, `/at_10`; few are
        drawn up to three times, and the figure is the mean. The first figure is of all examples.
      steps, batch_size: of the training at each of `peaks`.
      peaks: peak learning rates, relative to the size of a parameter, to choose from by a part of
        the training examples.
      tokens: of a text at most; the others are cut off.

    Raises ValueError as `class_task`, and for more labels than there are training examples.
    """
    examples = class_task(subject, task, module, data_dir, of_words=True)
    classes, labels_N = np.unique(examples.labels["train"], return_inverse=True)
    if max(labels, default=0) > labels_N.size:
        raise ValueError(
            f"Got labels={list(labels)}, expected at most {labels_N.size}, the training examples "
            f"of {task!r}."
        )
    recipe = FinetuningRecipe(classes.size, steps, peaks, batch_size, tokens)
    words: Mapping = examples.words or {"train": None, "validation": None}
    starts = {"": subject.trained, "/from_scratch": from_scratch(subject.trained, subject.seed)}

    def measured(name: str, draws: Sequence[np.ndarray]) -> tuple[list[Figure], ...]:
        """Returns the figures of the pre-trained model, of that from scratch, and the gain."""
        of_starts = []
        for start, trained in starts.items():
            model = finetuned(
                trained, examples.texts["train"], words["train"], labels_N, draws, recipe
            )
            predicted_DxN = classes[
                model.predict(examples.texts["validation"], words["validation"])
            ].tolist()
            of_draws = [class_figures(name + start, examples, one) for one in predicted_DxN]
            rates = peak_figures(name + start, model.peak, peaks)
            of_starts.append([*map(_mean, zip(*of_draws)), *rates])
        (first, *_), (scratch, *_) = of_starts
        gain = Figure(f"{name}/gain", first.value - scratch.value, first.unit, HIGHER, 0.0)
        return *of_starts, [gain]

    pre_trained, scratch, gain = measured("finetune", [np.arange(labels_N.size)])
    pre_trained[0] = pre_trained[0]._replace(note=f"{labels_N.size:,} labeled examples")
    found = [*pre_trained, *scratch, *gain]
    found += bag_figures("finetune", examples, classes_by_words(examples))
    for number in labels:
        found += [
            one for one, *_ in measured(f"finetune/at_{number}", draws_of(labels_N.size, number))
        ]
    return found


def _mean(figures: Sequence[Figure]) -> Figure:
    """Returns a figure whose value is the mean of those of several draws."""
    note = f"mean of {len(figures)} draws" if len(figures) > 1 else ""
    return figures[0]._replace(value=statistics.fmean(f.value for f in figures), note=note)


def draws_of(examples: int, number: int) -> list[np.ndarray]:
    """Returns draws of so many training examples.

    >>> [len(draws_of(1000, number)) for number in (10, 50, 100)]
    [3, 2, 1]
    """
    draws = min(MOST_DRAWS, max(1, DRAWN // number))
    return [np.random.default_rng(draw).permutation(examples)[:number] for draw in range(draws)]
