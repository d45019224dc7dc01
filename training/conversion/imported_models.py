"""Models of Hugging Face and T5X with their vocabularies, which an import keeps."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ... import models
from ...corpora.vocabularies import Vocabulary
from ...models import Model, hugging_face, t5x
from ...models.hugging_face import Recognized, TensorFiles
from ...models.hugging_face.kept import files_to_keep
from ...models.hugging_face.sentences import POOLINGS, Modules, open_modules
from ...objectives import PromptForm
from ...objectives.prompt_forms import Pooling
from ...settings.atomic_writes import check_checksums
from ..run_configuration import read_fields
from ..saved.imported_runs import settings_of
from ..saved.kept_prompt_forms import read_prompt_record
from .converted_vocabularies import imported_frame, imported_vocabulary
from .generation_files import generation_rules, start_of_decoder, writes_text


class Imported(NamedTuple):
    """A model whose files were checked, but whose parameters were not read yet."""

    kind: str  # description of the kind of model
    model: Model
    settings: Mapping[str, Any]  # keyword arguments of its builder
    arrays: Iterable[tuple[str, np.ndarray]]  # (path, parameter) pairs, read one at a time
    vocabulary: Vocabulary | None  # None: the model has no tokenizer
    classes: Sequence[str] = ()  # names of the classes, if it has a classifier
    prompt_forms: Sequence[PromptForm] = ()  # prompt forms, if its files define them
    files: Sequence[Path] = ()  # files of the model other than its weights
    # The best mode for showing a model without prompt forms; None: the mode of its layout.
    shown_mode: str | None = None


def from_hugging_face(directory: str, **vocabulary: Any) -> Imported:
    """Opens a directory that `save_pretrained` wrote.

    Args:
      **vocabulary: keyword arguments of `imported_vocabulary`.

    Raises ValueError for an incomplete directory, and for a model that `models` cannot build.
    """
    try:
        return _from_hugging_face(directory, **vocabulary)
    except (TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(
            f"A value in the JSON files of {directory} is of the wrong type ({error}), "
            "such as a list instead of a string: download them again."
        ) from error


def _from_hugging_face(directory: str, **vocabulary: Any) -> Imported:
    check_checksums(directory)
    source = hugging_face.open_source(directory)
    files = files_to_keep(source.path)
    recognized = hugging_face.recognize(source)
    modules = open_modules(source.path)
    config = {**source.config, **start_of_decoder(source.path, source.config)}
    vocab = _fitting(imported_vocabulary(source.path, config, **vocabulary), recognized.model)
    if writes_text(recognized.model):
        generation_rules(source.path)  # raises ValueError for rules that `predict` cannot follow
    frame = imported_frame(source.path, vocab, recognized.model.layout) if vocab else ((), ())
    model = recognized.model
    arrays = hugging_face.read_params(source, recognized)
    if modules and modules.dense:
        model, arrays = _with_dense(recognized, arrays, modules.dense)
    forms: Sequence[PromptForm] = ()
    if vocab:
        recorded = read_prompt_record(source.path, vocab.ids, model)
        usual = _prompt_forms(source, recognized, modules, frame)
        forms = usual if recorded is None else recorded
    return Imported(
        kind=recognized.family.model_type,
        model=model,
        settings=recognized.settings,
        arrays=arrays,
        vocabulary=vocab,
        classes=hugging_face.class_names(source.config) if recognized.config.num_classes else (),
        prompt_forms=forms,
        files=files,
        shown_mode=_shown_mode(recognized, source.config, vocab),
    )


def _shown_mode(
    recognized: Recognized, config: Mapping[str, Any], vocabulary: Vocabulary | None
) -> str | None:
    """Returns the best mode for showing a published model; None: the mode of its layout."""
    if "vocabulary" not in recognized.heads or vocabulary is None:
        return None
    mode = recognized.family.shown_mode
    # A T5 with settings for tasks was trained to answer texts, such as the first T5s and Flan-T5.
    answers = bool(config.get("task_specific_params"))
    return None if mode == "infill" and (answers or not vocabulary.ids.sentinels) else mode


def model_of_export(directory: str) -> Model:
    """Returns the model that an import of an exported directory gives."""
    recognized = hugging_face.recognize(hugging_face.open_source(directory))
    modules = open_modules(directory)
    if modules and modules.dense:
        return _with_dense(recognized, iter(()), modules.dense)[0]
    return recognized.model


def _with_dense(
    recognized: Recognized,
    arrays: Iterator[tuple[str, np.ndarray]],
    dense: Mapping[str, np.ndarray],
) -> tuple[Model, Iterator[tuple[str, np.ndarray]]]:
    """Returns the model whose head "embedding" is the layer `dense`, and its parameters.

    The head replaces BERT's pooler, which a sentence model does not use.
    """
    builder = getattr(models, recognized.model.layout)
    model = builder(
        recognized.config.vocab_size, (*recognized.heads, "embedding"), **recognized.settings
    )
    width = recognized.config.emb_dim
    if "embedding" not in model.heads or dense["bias"].shape != (width,):
        raise ValueError(
            f"Got a module Dense of width {dense['bias'].size} with {recognized.model.layout} of "
            f"width {width}, expected an encoder of the width of its Dense."
        )
    head = "projections_embedding/layer/"
    others = (array for array in arrays if not array[0].startswith(head))
    return model, chain(others, ((head + name, array) for name, array in dense.items()))


def _prompt_forms(
    source: TensorFiles, recognized: Recognized, modules: Modules | None, frame: tuple[tuple, tuple]
) -> list[PromptForm]:
    forms = []
    causal = recognized.model.layout == "decoder"
    if modules:
        head = "embedding" if modules.dense else None
        forms.append(PromptForm("embed", *frame, head=head, pooling=modules.pooling))
    if "classes" in recognized.heads:
        problem = source.config.get("problem_type")
        if problem == "regression" and recognized.config.num_classes > 1:
            raise ValueError(
                f"Got problem_type='regression' with {recognized.config.num_classes} numbers in "
                f"{source.path / 'config.json'}, expected one number: more are not supported."
            )
        # In a causal model, only the last state has seen the whole text. "classifier_pooling" is a
        # setting of ModernBERT.
        pooling: Pooling = "last"
        if recognized.model.layout == "encoder":
            pooling = POOLINGS[source.config.get("classifier_pooling", "cls")]
        start = frame[1][-1:] if recognized.family.classifier_starts_with_last_id else ()
        form = PromptForm("classify", *frame, start, causal, head="classes", pooling=pooling)
        forms.append(form._replace(independent=problem == "multi_label_classification"))
    if "token_classes" in recognized.heads:
        forms.append(PromptForm("tag", *frame, causal=causal, head="token_classes"))
    return forms


def from_t5x(
    directory: str, builder: Callable[[int], Model], unscaled: Sequence[str], **vocabulary: Any
) -> Imported:
    """Opens a T5X checkpoint.

    Args:
      builder: function from the rows of the vocabulary to the encoder-decoder.
      unscaled: norms without a scale in the checkpoint, see `models.t5x.read_params`.
      **vocabulary: keyword arguments of `imported_vocabulary`.

    Raises ValueError for an incomplete checkpoint, or a checkpoint of another model.
    """
    source = t5x.open_t5x(directory)
    model = builder(t5x.vocabulary_rows(source))
    arrays = t5x.read_params(source, model, unscaled=unscaled)
    vocab = _fitting(imported_vocabulary(source.path, {}, **vocabulary), model)
    mode = "infill" if vocab and vocab.ids.sentinels else None
    return Imported("a model of T5X", model, settings_of(model), arrays, vocab, shown_mode=mode)


def t5x_preset(file: str) -> Callable[..., Model]:
    """Returns the encoder-decoder of a gin file, as a function of the vocabulary's rows."""
    build = read_fields([file]).get("model")
    if build is None or build(128).layout != "encoder_decoder":
        raise ValueError(
            f"{file} binds no encoder-decoder to training.Run.model, expected a gin file such as "
            "models/t5_1_1_base.gin: other T5X checkpoints are not supported."
        )
    return build


def _fitting(vocabulary: Vocabulary | None, model: Model) -> Vocabulary | None:
    """Returns the vocabulary. Raises ValueError for text ids that the model never learned."""
    if vocabulary is not None and vocabulary.ids.text[1] > model.vocab_size:
        raise ValueError(
            f"The tokenizer {vocabulary.about.get('vocabulary', 'of the run')} has text ids up to "
            f"{vocabulary.ids.text[1] - 1}, but the model's embedding has {model.vocab_size} rows: "
            "give the tokenizer that the model was trained with. Rows are added only for ids of "
            "--sentinels and --specials."
        )
    return vocabulary
