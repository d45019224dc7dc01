"""SeqIO tasks over TensorFlow Datasets, under the names that T5X users know.

For each dataset NAME:

    NAME_text              documents as ids; the training step applies the objective.
    NAME_unsupervised      the same task under T5X's name.
    NAME_span_corruption   T5's objective, applied on the host by SeqIO.
    NAME_ul2               UL2's mixture of denoisers, applied on the host by SeqIO.

The mixtures `c4_wikipedia_*` have rates of 9 : 1. `register` does not read data or open network
connections. `seqio_tasks.SeqioTasks.data_dir` is the folder of the data.
"""

import functools

from ... import objectives
from ...objectives import Builder
from .objective_tasks import add_objective_task
from .quiet_tensorflow import seqio

# T5's vocabulary. Every T5 on the Hugging Face Hub has a copy of it, called spiece.model.
T5_VOCABULARY = "gs://t5-data/vocabs/cc_all.32000/sentencepiece.model"

# name -> (TFDS name, splits if the dataset has no validation split)
DATA_SETS = {
    "c4_v220": ("c4/en:2.2.0", None),
    # Only for data that is prepared already: TFDS cannot build it any more.
    "c4_v301": ("c4/en:3.0.1", None),
    "c4_v310": ("c4/en:3.1.0", None),
    "wikipedia_20230601.en": (
        "wikipedia/20230601.en:1.0.0",
        {"train": "train[:99%]", "validation": "train[99%:]"},
    ),
    "lm1b": ("lm1b:1.1.0", {"train": "train", "validation": "test"}),
}
OBJECTIVES: dict[str, Builder] = {
    "span_corruption": objectives.span_corruption,
    "ul2": functools.partial(objectives.ul2, preset="paper"),
}
RATES = {"c4_v310": 9.0, "wikipedia_20230601.en": 1.0}


def register_text(name: str, source: seqio.DataSource, vocabulary: seqio.Vocabulary) -> None:
    """Registers `NAME_text`, `NAME_unsupervised`, `NAME_span_corruption` and `NAME_ul2`.

    The examples of `source` have a string feature `text`.
    """
    text = [
        functools.partial(seqio.preprocessors.rekey, key_map={"targets": "text"}),
        seqio.preprocessors.tokenize,
    ]
    targets = seqio.Feature(vocabulary, add_eos=False)
    for suffix in ("text", "unsupervised"):
        seqio.TaskRegistry.add(
            f"{name}_{suffix}",
            source=source,
            preprocessors=text,
            output_features={"targets": targets},
        )
    for suffix, build in OBJECTIVES.items():
        add_objective_task(f"{name}_{suffix}", f"{name}_text", build)


def register() -> None:
    """Registers all tasks and mixtures. A second call does nothing."""
    if "c4_wikipedia_text" in seqio.MixtureRegistry.names():
        return
    vocabulary = seqio.SentencePieceVocabulary(T5_VOCABULARY, extra_ids=100)  # read when used
    for name, (tfds_name, splits) in DATA_SETS.items():
        register_text(name, seqio.TfdsDataSource(tfds_name, splits=splits), vocabulary)
    for suffix in ("text", "unsupervised", *OBJECTIVES):
        seqio.MixtureRegistry.add(
            f"c4_wikipedia_{suffix}",
            [(f"{name}_{suffix}", rate) for name, rate in RATES.items()],
        )
