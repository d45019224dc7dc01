"""The model card of an exported run: the README.md that the Hugging Face hub shows.

Source: Mitchell et al. 2019, "Model Cards for Model Reporting" (arXiv:1810.03993). The header
follows huggingface.co/docs/hub/model-cards.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...constraints import name_of
from ..evaluator import Score
from ..run import longest_rows
from .result import Result

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
    name: str,
    fields: Mapping[str, Any],
    result: Result | None,
    step: int,
    architecture: str,
    parameters: int,
    loading: Sequence[str] = (),
) -> str:
    """Returns the model card of a run at a step, in Markdown.

    Args:
      name: name of the exported directory, or of its repository on the Hugging Face hub.
      result: the result of the run. A result of another step is left out. None: no result.
      architecture: name of the exported model's class in `transformers`.
      loading: paragraphs about loading the model.
    """
    objective, corpus = (_name(fields[name]) for name in ("objective", "corpus"))
    longest = longest_rows(fields["sequence_lengths"])
    rows = " and ".join(f"{slots:,} {stack} slots" for stack, slots in longest.items())
    base = fields.get("initial_run")
    started = f", from the parameters of `{Path(base).name}`" if base else ""
    tasks = (task for end, task in _TASKS.items() if architecture.endswith(end))
    task = next(tasks, "feature-extraction")
    lines = [
        *("---", "library_name: transformers", f"pipeline_tag: {task}", "tags:", "- pretrax"),
        *(f"- {json.dumps(objective)}", "---", "", f"# {name}", ""),
        f"A `{architecture}` of {parameters:,} parameters, trained by pretrax with the objective "
        f"`{objective}` for {step:,} steps of {fields['batch_size']:,} rows of up to {rows}, on "
        f"the text of `{corpus}`{started}.",
        *_figures(result if result and result.step == step else None),
        *("", "## Use", "", "```python", f"from transformers import AutoTokenizer, {architecture}"),
        *("", f'tokenizer = AutoTokenizer.from_pretrained("{name}")'),
        *(f'model = {architecture}.from_pretrained("{name}")', "```", ""),
        *(line for paragraph in loading for line in (paragraph, "")),
    ]
    return "\n".join(lines)


def _name(function: Callable) -> str:
    function = getattr(function, "function", function)  # unwraps a `Partial`
    return name_of(getattr(function, "func", function)).rpartition(".")[2]


def _figures(result: Result | None) -> list[str]:
    """Returns the section of held-out figures and downstream tasks."""
    if result is None or not (result.scores or result.tasks):
        return []
    lines = ["", "## Figures", ""]
    if result.scores:
        lines += [
            "On held-out text, in nats for each target; the baseline is a model that ignores its "
            "input.",
            "",
            *_table(("", "loss", "perplexity", "baseline", "targets"), map(_row, result.scores)),
        ]
    figures = {k: v for k, v in result.tasks.items() if not k.startswith("baseline/")}
    if figures:
        rows = (
            (
                name.removeprefix("task/"),
                f"{value:.4g}",
                _number(result.tasks.get(f"baseline/{name}")),
            )
            for name, value in figures.items()
        )
        lines += ["", *_table(("task", "figure", "the most frequent answer"), rows)]
    return lines


def _row(score: Score) -> Sequence[str]:
    return score.name, *score.words, _number(score.baseline), f"{score.targets:,}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _table(head: Sequence[str], rows) -> list[str]:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)]
