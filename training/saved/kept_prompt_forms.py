"""How the model of a run directory reads a text: as its objective says, or the files it came with.

save_prompt_forms("runs/minilm", [PromptForm("embed", pooling="mean")])     # of an import
prompt_forms("runs/minilm", read_directory("runs/minilm"), ids)
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...data.whole_files import read_record, write_json
from ...objectives import PromptForm, TokenIds
from ...objectives.prompt_forms import check_form
from ..run_directory import PROMPT_FORMS


def save_prompt_forms(run_dir: str, forms: Iterable[PromptForm]) -> None:
    """Keeps the prompt forms that an imported model came with."""
    write_json(Path(run_dir) / PROMPT_FORMS, [form._asdict() for form in forms])


def prompt_forms(run_dir: str, fields: Mapping[str, Any], ids: TokenIds) -> tuple[PromptForm, ...]:
    """The prompt forms of a run's objective, or those that an imported model came with.

    `fields`: of the run's config.gin.
    """
    objective, file = fields.get("objective"), Path(run_dir) / PROMPT_FORMS
    if objective:
        return objective(ids).prompt_forms
    return read_record(file, _forms) if file.exists() else ()


def _forms(values: list[dict[str, Any]]) -> tuple[PromptForm, ...]:
    forms = tuple(PromptForm(**{name: _value(x) for name, x in one.items()}) for one in values)
    for form in forms:
        check_form(form)
    return forms


def _value(x):
    return tuple(x) if isinstance(x, list) else x
