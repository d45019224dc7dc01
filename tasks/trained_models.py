"""A run's model together with its vocabulary: what `inference` works with."""

from collections.abc import Collection

from jax.sharding import Mesh

from ..inference import Trained
from ..models.unrolled import unrolled
from ..training.saved.runs import load_text_model
from ..training.settings.configuration import read_directory
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
    run, reading = load_text_model(run_dir, fields, vocabulary.ids, step, mesh)
    codec, model, params = vocabulary.codec, run.model, run.params
    if model.extend:  # it writes, which is fastest with its layers apart
        model, params = unrolled(model, params, donate=True)
    texts = vocabulary.ids, codec.encode, codec.decode
    return Trained(
        model, params, *texts, reading.prompt_forms, reading.classes, run.step, reading.lengths
    )
