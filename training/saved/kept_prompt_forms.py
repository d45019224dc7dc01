"""The prompt forms of a run directory, from its objective or from the files of an imported model.

For example:

    save_prompt_forms("runs/minilm", [PromptForm("embed", pooling="mean")])     # of an import
    prompt_forms("runs/minilm", read_directory("runs/minilm"), ids)

An export has the prompt forms of its run as well, and an import of it reads them:

    write_prompt_record("exported", forms, ids)
    read_prompt_record("exported", ids, model)
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...constraints import check_fields
from ...inference.trained import MODES, check_modes
from ...models import Model
from ...objectives import PromptForm, TokenIds
from ...objectives.laws import is_built_in
from ...objectives.layouts import reads_positions
from ...objectives.prompt_forms import NOISES, MaskedBlocks, check_form
from ...settings import atomic_writes
from ...settings.atomic_writes import read_record, write_json
from ...settings.directories import own_file
from ...settings.run_directory import PROMPT_FORMS

# File in an exported directory; `transformers` ignores it.
PROMPT_RECORD = "pretrax_prompt_forms.json"
_ID_FIELDS = ("text", "mask")  # fields of a noise that the token ids give
_TOKENS = ("before", "after", "start")  # fields of a form that hold token ids


def save_prompt_forms(run_dir: str, forms: Iterable[PromptForm]) -> None:
    """Saves the prompt forms that an imported model came with."""
    write_json(Path(run_dir) / PROMPT_FORMS, [_to_json(form) for form in forms])


def prompt_forms(run_dir: str, fields: Mapping[str, Any], ids: TokenIds) -> tuple[PromptForm, ...]:
    """Returns the prompt forms of a run's objective or of an imported model."""
    objective = fields.get("objective")
    file = Path(run_dir) / PROMPT_FORMS
    if objective:
        return objective(ids).facts.prompt_forms
    return read_record(file, lambda values: _from_json(values, ids)) if file.exists() else ()


def write_prompt_record(
    folder: str, forms: Sequence[PromptForm], ids: TokenIds, model: Model
) -> list[str]:
    """Writes the prompt forms of an exported model, if it has any.

    Args:
      model: the model that an import of the folder gives.

    Returns the modes of the forms that are left out: the exported model lacks their head, they have
    a noise that a file cannot name, or the mode is from a user's own module, which the import of a
    model does not have.
    """
    recorded = [form for form in forms if _is_recordable(form) and not misfit([form], ids, model)]
    file = Path(folder) / PROMPT_RECORD
    file.unlink(missing_ok=True)  # an import may have brought the record of another objective
    if recorded:
        atomic_writes.write_record(file, {"prompt_forms": [_to_json(form) for form in recorded]})
    modes = {form.mode for form in recorded}
    return list(dict.fromkeys(form.mode for form in forms if form.mode not in modes))


def read_prompt_record(
    folder: Path | str, ids: TokenIds, model: Model
) -> tuple[PromptForm, ...] | None:
    """Returns the prompt forms that an exported model came with; None: it has no record of them.

    Anybody may have written the record. Raises ValueError, naming the file, unless its forms are
    ones that the model can have: modes of its layout, ids of its vocabulary and heads that it has.
    """
    if not (Path(folder) / PROMPT_RECORD).exists():
        return None
    file = own_file(folder, PROMPT_RECORD)
    try:
        values = atomic_writes.read_json(file)["prompt_forms"]
        forms = _from_json(values, ids)
        wrong = misfit(forms, ids, model)
    except atomic_writes.UNLIKE as error:
        wrong = f"{type(error).__name__}: {error}"
    if wrong:
        raise ValueError(
            f"{file} does not describe prompts of this model: {wrong}. Export the run again; or "
            "delete the file to import the model without it, and name the mode yourself "
            "(`pretrax predict --mode=…`)."
        )
    return forms


def misfit(forms: Iterable[PromptForm], ids: TokenIds, model: Model) -> str | None:
    """Returns a message if a model cannot be prompted with these forms; None if it can."""
    return next(filter(None, (_misfit(form, ids, model) for form in forms)), None)


def _misfit(form: PromptForm, ids: TokenIds, model: Model) -> str | None:
    if model.layout not in MODES[form.mode].layouts:
        return f"got mode {form.mode!r} for a model of layout {model.layout!r}"
    tokens = (*form.before, *form.after, *form.start)
    if outside := [i for i in tokens if not 0 <= i < ids.size]:
        return f"got the id {outside[0]} in mode {form.mode!r}, expected ids below {ids.size}"
    if form.masked_blocks is not None:
        if ids.mask is None:
            return "got masked_blocks for a vocabulary without a mask token"
        if wrong := reads_positions(model, ()):
            return wrong
    if form.head is not None and form.head not in model.heads:
        heads = ", ".join(model.heads) or "none"
        return f"got the head {form.head!r} in mode {form.mode!r} for a model with: {heads}"
    return None


def _is_recordable(form: PromptForm) -> bool:
    mode = MODES.get(form.mode)
    if mode is None or not is_built_in(mode.answer):
        return False
    return form.noise is None or NOISES.get(type(form.noise).__name__) is type(form.noise)


def _to_json(form: PromptForm) -> dict[str, Any]:
    """Returns the fields of a form that differ from their defaults, and the mode."""
    defaults = PromptForm._field_defaults
    # A user's own objective may give token ids as NumPy integers.
    tokens = {name: tuple(map(int, getattr(form, name))) for name in _TOKENS}
    fields = form._asdict() | tokens
    values = {name: x for name, x in fields.items() if x != defaults.get(name)}
    if form.noise is not None:
        noise: Any = form.noise  # one of `NOISES`
        settings = dataclasses.asdict(noise)
        noise_settings = {name: x for name, x in settings.items() if name not in _ID_FIELDS}
        values["noise"] = {"name": type(form.noise).__name__, **noise_settings}
    return values


def _from_json(values: list[dict[str, Any]], ids: TokenIds) -> tuple[PromptForm, ...]:
    return tuple(_form_from_json(form, ids) for form in values)


def _form_from_json(values: dict[str, Any], ids: TokenIds) -> PromptForm:
    fields: dict[str, Any] = {k: tuple(x) if isinstance(x, list) else x for k, x in values.items()}
    form = PromptForm(**fields)
    if form.noise is not None:
        form = form._replace(noise=_noise_from_json(form.noise, ids))
    if form.masked_blocks is not None:
        form = form._replace(masked_blocks=MaskedBlocks(*form.masked_blocks))
    check_form(form)
    check_modes([form])
    return form


def _noise_from_json(values: Any, ids: TokenIds) -> Any:
    settings = dict(values)
    kind = NOISES[settings.pop("name")]
    names = {field.name for field in dataclasses.fields(kind)}
    noise = kind(**settings, **{name: getattr(ids, name) for name in _ID_FIELDS if name in names})
    check_fields(noise, f"{kind.__name__}.")
    return noise
