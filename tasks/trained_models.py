"""A run's model together with its vocabulary: what `inference` works with."""

from collections.abc import Collection

from jax.sharding import Mesh

from ..inference import Trained
from ..models.unrolled import unrolled
from ..training.run_directory import load_classes
from ..training.saved.runs import load_model, model_of_run, settings_in_words
from ..training.settings.configuration import read_directory
from ..training.settings.run import longest_rows
from .kept_prompt_forms import prompt_forms
from .vocabularies import load_vocabulary


def open_trained(
    run_dir: str,
    step: int | None = None,
    mesh: Mesh | None = None,
    trusted: Collection[str] = (),
) -> Trained:
    """The model of a run, or of an imported one, with its vocabulary.

        trained = open_trained("runs/quickstart")
        inference.answer(trained, "infill", [{"text": "import <extra_id_0>"}])

    Args:
        step: of the checkpoint; None: the latest.
        mesh: over which the parameters are sharded; None: they are on the first device. Within
            `training.devices.mesh.placed_on(mesh)` the rows of a batch are sharded as well.
        trusted: modules that the directory may name, see `training.settings.trust`.

    Raises ValueError for no run, no checkpoint, or no vocabulary there.
    """
    fields = read_directory(run_dir, trusted)
    try:
        vocabulary = load_vocabulary(run_dir)
    except FileNotFoundError as error:
        raise ValueError(
            f"{run_dir} holds no vocabulary.json, so its model cannot read text: it was trained on "
            "token ids, or imported without a tokenizer."
        ) from error
    classes = tuple(load_classes(run_dir))
    with settings_in_words(run_dir):
        built = model_of_run(fields, vocabulary.ids, len(classes))
        forms = prompt_forms(run_dir, fields, vocabulary.ids)
        lengths = longest_rows(fields.get("sequence_lengths", {}))
    run = load_model(run_dir, fields, step, mesh, built)
    codec, model, params = vocabulary.codec, run.model, run.params
    if model.extend:  # it writes, which is fastest with its layers apart
        model, params = unrolled(model, params, donate=True)
    return Trained(
        model,
        params,
        vocabulary.ids,
        codec.encode,
        codec.decode,
        forms,
        classes,
        run.step,
        lengths,
    )
