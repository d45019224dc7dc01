"""Loads a run's model together with its vocabulary, for `inference`."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from ..corpora.vocabularies import Vocabulary, load_vocabulary
from ..inference import Trained
from ..models.unrolled import unrolled
from ..settings import run_directory
from ..settings.atomic_writes import damaged
from .conversion.converted_vocabularies import imported_frame
from .conversion.generation_files import generation_rules, writes_text
from .run import longest_rows
from .run_configuration import read_directory
from .saved.kept_prompt_forms import misfit, prompt_forms
from .saved.runs import model_of_run, open_saved_model, setting_errors


def open_run(
    run_dir: str,
    step: int | None = None,
    mesh: Mesh | None = None,
    trusted: Collection[str] = (),
    fields: Mapping[str, Any] | None = None,
) -> Trained:
    """Returns the model of a run or of an import, with its vocabulary.

        trained = open_run("runs/quickstart")
        inference.answer(trained, "infill", [{"text": "import <extra_id_0>"}])

    Args:
        step: step of the checkpoint. None: the latest checkpoint.
        mesh: mesh over which the parameters are sharded. None: they are on the first device.
            Within `training.devices.mesh.placed_on(mesh)`, rows of a batch are sharded as well.
        trusted: modules that the directory may name, see `settings.trust`.
        fields: fields of the directory's config.gin, if it was read already.

    Raises ValueError if the directory is not a run, or has no checkpoint or no vocabulary.
    """
    fields = read_directory(run_dir, trusted) if fields is None else fields
    try:
        vocabulary = load_vocabulary(run_dir)
    except FileNotFoundError as error:
        raise ValueError(
            f"{run_dir} holds no vocabulary.json, so its model cannot read text: it was trained on "
            "token ids, or imported without a tokenizer."
        ) from error
    ids = vocabulary.ids
    codec = vocabulary.codec
    classes = tuple(run_directory.load_classes(run_dir))
    with setting_errors(run_dir):
        expected_model = model_of_run(fields, ids, len(classes))
        lengths = longest_rows(fields.get("sequence_lengths", {}))
    forms = prompt_forms(run_dir, fields, ids)
    run = open_saved_model(run_dir, step, mesh, expected_model, fields=fields)
    if fields.get("objective") is None and (wrong := misfit(forms, ids, run.model)):
        raise damaged(Path(run_dir) / run_directory.PROMPT_FORMS, wrong)
    model = run.model
    params = run.params
    if model.extend:  # the model can generate, which is fastest with unrolled layers
        model, params = unrolled(model, params, donate=True)
    trained = Trained(
        model=model,
        params=params,
        ids=ids,
        encode=codec.encode,
        decode=codec.decode,
        prompt_forms=forms,
        classes=classes,
        step=run.step,
        lengths=lengths,
        unknown=vocabulary.tokenizer.unknown,
    )
    return _with_files(trained, Path(run_dir) / run_directory.IMPORTED, vocabulary)


def _with_files(trained: Trained, folder: Path, vocabulary: Vocabulary) -> Trained:
    """Returns an imported model with the generation rules in the folder of its files."""
    layout = trained.model.layout
    if not writes_text(trained.model) or not folder.is_dir():
        return trained
    frame = imported_frame(folder, vocabulary, layout) if layout == "encoder_decoder" else None
    return trained._replace(rules=generation_rules(folder), frame=frame)
