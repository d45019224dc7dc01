"""Fine-tuning: how well a model learns a task with classes, by one recipe for all."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from annotated_types import MinLen

from ...constraints import Count, Positive, checked
from ..figures import NEITHER, Figure
from .parts.class_tasks import class_figures, class_task, classes_by_words
from .parts.finetuning_recipe import finetuned
from .subject import Subject


@checked
def finetune(
    subject: Subject,
    *,
    task: str = "python_modules",
    steps: Count = 100,
    peaks: Annotated[Sequence[Positive], MinLen(1)] = (3e-4, 1e-3, 3e-3),
    batch_size: Count = 16,
    tokens: Count = 96,
    module: str | None = None,
    data_dir: str | None = None,
) -> list[Figure]:
    """How many held-out texts does the model classify rightly after fine-tuning?

    The recipe and its head are those of `comparing.yardsticks.parts.finetuning_recipe`, of all
    architectures the same.

        finetune(subject, task="glue_mrpc", steps=500, data_dir="tfds")

    Args:
      task, module, data_dir: see `comparing.yardsticks.parts.class_tasks.class_task`.
      steps, batch_size: of the training at each of `peaks`.
      peaks: peak learning rates to choose from, by a part of the training examples.
      tokens: of a text at most; the others are cut off.

    Raises ValueError as `class_task`.
    """
    found = class_task(subject, task, module, data_dir)
    classes = found.classes
    learnt = finetuned(
        subject.trained,
        found.texts["train"],
        np.array([classes.index(label) for label in found.labels["train"]]),
        classes=len(classes),
        steps=steps,
        peaks=peaks,
        batch_size=batch_size,
        tokens=tokens,
    )
    predicted = [classes[k] for k in learnt.predict(found.texts["validation"])]
    return [
        *class_figures("finetune", found, predicted, classes_by_words(found)),
        Figure("finetune/peak", learnt.peak, "learning rate", NEITHER),
    ]
