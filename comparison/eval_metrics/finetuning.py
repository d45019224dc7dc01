"""Fine-tuning: how well a model learns to classify, and how much pre-training helps."""

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

FIGURES_VERSION = 2  # see `kept_figures.version_of`
# Small sets of labeled examples are drawn up to MAX_DRAWS times, until DRAWN examples in total.
MAX_DRAWS = 3
DRAWN = 100


@checked
def finetune(
    subject: Subject,
    *,
    task: str = "python_word_kinds",
    labels: Sequence[Annotated[int, Ge(HELD_EVERY)]] = (),
    steps: Count = 100,
    peaks: Annotated[Sequence[Positive], MinLen(1)] = (0.02, 0.05, 0.1),
    batch_size: Count = 16,
    tokens: Count = 96,
    module: str | None = None,
    data_dir: str | None = None,
) -> list[Figure]:
    """Metrics of the task on held-out texts after fine-tuning.

    The parts `/from_scratch` measure the same model with fresh parameters, fine-tuned on the same
    examples. `/gain` is the benefit of pre-training. For the recipe, see
    `comparison.eval_metrics.parts.finetuning_recipe`.

        finetune(subject, task="python_pairs", labels=[10, 100, 1000])

    Args:
      task: a task with classes, such as "python_modules" or "glue_mrpc" (see
        `comparison.eval_metrics.parts.class_tasks.class_task`).
      labels: numbers of training examples, with figures such as `/at_10`. Small sets are drawn up
        to three times and averaged. The first figure uses all examples.
      peaks: peak learning rates, relative to a parameter's size. The best is chosen on a part of
        the training examples. If it is at an edge of the grid, further peaks are tried.
      tokens: maximum number of tokens of a text.
      module: a module that registers the task.
      data_dir: the folder of TensorFlow Datasets that has the task's data.

    Raises ValueError for an unsuitable task, and for too many labels.
    """
    examples = class_task(subject, task, module, data_dir, allow_words=True)
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
        """Returns the figures of the pre-trained model, of the fresh model, and the gain."""
        start_figures = []
        for start, trained in starts.items():
            model = finetuned(
                trained, examples.texts["train"], words["train"], labels_N, draws, recipe
            )
            predicted_DxN = classes[
                model.predict(examples.texts["validation"], words["validation"])
            ].tolist()
            draw_figures = [
                class_figures(name + start, examples, predicted_N) for predicted_N in predicted_DxN
            ]
            rates = peak_figures(name + start, model.peak.best, model.peak.grid)
            start_figures.append([*map(_mean, zip(*draw_figures)), *rates])
        (first, *_), (scratch, *_) = start_figures
        gain = Figure(f"{name}/gain", first.value - scratch.value, first.unit, HIGHER, 0.0)
        return *start_figures, [gain]

    pre_trained, scratch, gain = measured("finetune", [np.arange(labels_N.size)])
    pre_trained[0] = pre_trained[0]._replace(note=f"{labels_N.size:,} labeled examples")
    figures = [*pre_trained, *scratch, *gain]
    figures += bag_figures("finetune", examples, classes_by_words(examples))
    for number in labels:
        draws = draws_of(labels_N.size, number)
        figures += [first for first, *_ in measured(f"finetune/at_{number}", draws)]
    return figures


def _mean(figures: Sequence[Figure]) -> Figure:
    note = f"mean of {len(figures)} draws" if len(figures) > 1 else ""
    return figures[0]._replace(value=statistics.fmean(f.value for f in figures), note=note)


def draws_of(examples: int, number: int) -> list[np.ndarray]:
    """Returns draws of `number` of the training examples.

    >>> [len(draws_of(1000, number)) for number in (10, 50, 100)]
    [3, 2, 1]
    """
    draws = min(MAX_DRAWS, max(1, DRAWN // number))
    return [np.random.default_rng(draw).permutation(examples)[:number] for draw in range(draws)]
