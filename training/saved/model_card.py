"""The model card of an exported run: the README.md that the Hugging Face hub shows.

Source: Mitchell et al. 2019, "Model Cards for Model Reporting" (arXiv:1810.03993). The header
follows huggingface.co/docs/hub/model-cards.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from ...constraints import name_of
from ..run import longest_rows
from .result import Result, read_result
from .runs import SavedModel

# End of the name of a class of `transformers` -> the hub's name of its task.
_TASKS = {
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "ForMaskedLM": "fill-mask",
    "ForConditionalGeneration": "text2text-generation",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
}


def model_card(
    title: str, saved: SavedModel, architecture: str, parameters: int, loading: Sequence[str]
) -> str:
    """Returns the model card of a trained run, in Markdown.

    It has the figures of the run's result, unless the result is of another step.

    Args:
      architecture: name of the exported model's class in `transformers`.
      loading: paragraphs about loading the model.
    """
    fields = saved.fields
    step = saved.step
    objective, corpus = (_name(fields[name]) for name in ("objective", "corpus"))
    longest = longest_rows(fields["sequence_lengths"])
    rows = " and ".join(f"{slots:,} {stack} slots" for stack, slots in longest.items())
    base = fields.get("initial_run")
    started = f", from the parameters of `{Path(base).name}`" if base else ""
    tasks = (task for end, task in _TASKS.items() if architecture.endswith(end))
    task = next(tasks, "feature-extraction")
    result = read_result(saved.directory)
    lines = _figures(result) if result and result.step == step else []
    figures = "".join(f"{line}\n" for line in lines)
    how_to_load = "".join(f"\n{paragraph}\n" for paragraph in loading)
    return f"""---
library_name: transformers
pipeline_tag: {task}
tags:
- pretrax
- {json.dumps(objective)}
---

# {title}

A `{architecture}` of {parameters:,} parameters, trained by pretrax with the objective \
`{objective}` for {step:,} steps of {fields["batch_size"]:,} rows of up to {rows}, on the text of \
`{corpus}`{started}.
{figures}
## Use

```python
from transformers import AutoTokenizer, {architecture}

tokenizer = AutoTokenizer.from_pretrained("{title}")
model = {architecture}.from_pretrained("{title}")
```
{how_to_load}"""


def _name(function: Callable) -> str:
    function = getattr(function, "function", function)  # unwraps a `Partial`
    return name_of(getattr(function, "func", function)).rpartition(".")[2]


def _figures(result: Result) -> list[str]:
    if not (result.scores or result.tasks):
        return []
    lines = ["", "## Figures", ""]
    if result.scores:
        lines += [
            "On held-out text, in nats for each target; the baseline is a model that ignores its "
            "input.",
            "",
        ]
        rows = [
            (score.name, *score.words, _number(score.baseline), f"{score.targets:,}")
            for score in result.scores
        ]
        lines += _table(("", "loss", "perplexity", "baseline", "targets"), rows)
    baselines = {name: x for name, x in result.tasks.items() if name.startswith("baseline/")}
    task_rows = [
        (name.removeprefix("task/"), f"{x:.4g}", _number(baselines.get(f"baseline/{name}")))
        for name, x in result.tasks.items()
        if name not in baselines
    ]
    if task_rows:
        lines += ["", *_table(("task", "figure", "the most frequent answer"), task_rows)]
    return lines


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _table(head: Sequence[str], rows) -> list[str]:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)]
