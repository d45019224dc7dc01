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

    The recipe is that of `comparing.yardsticks.parts.finetuning_recipe`.

        finetune(subject, task="glue_mrpc", steps=500, data_dir="tfds")

    Args:
      task, module, data_dir: see `comparing.yardsticks.parts.class_tasks.class_task`.
      steps, batch_size: of the training at each of `peaks`.
      peaks: peak learning rates to choose from, by a part of the training examples.
      tokens: of a text at most; the others are cut off.

    Raises ValueError as `class_task`.
    """
    examples = class_task(subject, task, module, data_dir)
    classes, labels_N = np.unique(examples.labels["train"], return_inverse=True)
    model = finetuned(
        subject.trained,
        examples.texts["train"],
        labels_N,
        classes=classes.size,
        steps=steps,
        peaks=peaks,
        batch_size=batch_size,
        tokens=tokens,
    )
    predicted = classes[model.predict(examples.texts["validation"])].tolist()
    return [
        *class_figures("finetune", examples, predicted, classes_by_words(examples)),
        Figure("finetune/peak", model.peak, "learning rate", NEITHER),
    ]
