"""Measures how fast objectives corrupt text on one core, compared with T5's TensorFlow code.

    python benchmarks/corruption.py
    git clone https://github.com/google-research/text-to-text-transfer-transformer /tmp/t5
    python benchmarks/corruption.py --t5=/tmp/t5
    python benchmarks/corruption.py ul2 bart                        # only these builders
    python benchmarks/corruption.py --repeats=1 --batch=2 --tokens=2000         # under a minute

Everything runs in one process on one core. Speeds are text tokens per second of CPU time of all its
threads, so other work on the machine does not count. `bare` is the jitted function alone, as in a
training step. `host` is the SeqIO pipeline from tokenized documents to ragged features, as in T5.
"""

import argparse
import functools
import importlib.util
import os
import statistics
import sys
import time
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / ".ci/links")]
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from rich.console import Console

from benchmarks.common import one_core, plain_table, read_options

INPUTS = 512
DECODERS = {"span_corruption": 114, "ul2": 512, "prefix_lm": 512, "causal_lm": 512}
# Arguments for which builders have no default.
SETTINGS = {
    "sequence_classification": {"num_classes": 4},
    "token_classification": {"num_classes": 4},
}
OPTIONS: dict[str, Any] = dict(t5=None, repeats=9, batch=256, tokens=400_000)


def main(arguments: list[str] | None = None) -> None:
    with one_core():
        options = read_options(arguments, __doc__, names=builders(), **OPTIONS)
        report(bare_calls(options) | pipelines(options), options)


def measure(run, repeats: int) -> list[float]:
    """Returns the CPU seconds of several runs, after a first run that does not count."""
    run()
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return seconds


def rates(tokens: int, seconds: list[float]) -> tuple[float, float]:
    """Returns (best, median) tokens per second."""
    return tokens / min(seconds), tokens / statistics.median(seconds)


# --- bare calls ---------------------------------------------------------------------------------


def bare_calls(options: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Measures the named objectives, with default settings, as jitted functions."""
    import jax

    results = {}
    for name in options.names:
        corrupt, keys, rows = bare_call(name, options.batch)
        corrupt, inputs = jax.jit(corrupt), jax.device_put((keys, rows))

        def ten_calls(corrupt=corrupt, inputs=inputs):
            for _ in range(10):
                jax.block_until_ready(corrupt(*inputs))

        tokens = 10 * int((rows.segments > 0).sum())
        results[f"{name}, bare"] = rates(tokens, measure(ten_calls, options.repeats))
    return results


def bare_call(name: str, batch: int):
    """Returns (corrupt, keys, rows). Each row is filled by one document of random text.

    If the objective reads parts, a document has two halves.
    """
    import jax
    import numpy as np

    from pretrax import objectives

    ids = special_ids()
    objective = builders()[name](ids)
    members, raw, lengths = row_lengths(objective, DECODERS.get(name))
    member = np.arange(batch) % members
    used = np.broadcast_to(raw, members)[member]
    filled = np.arange(used.max()) < used[:, None]
    text = np.random.default_rng(0).integers(*ids.text, filled.shape)
    rows = objectives.Row(
        tokens=np.where(filled, text, 0).astype(np.int32),
        segments=filled.astype(np.int32),
        member=member.astype(np.int32),
    )
    if objective.facts.rows.kind == "parts":
        second = np.arange(used.max()) >= used[:, None] // 2
        rows = rows._replace(parts=(second & filled).astype(np.int32))
    elif objective.facts.rows.kind == "labels":
        rows = rows._replace(labels=np.zeros_like(rows.tokens))
    keys = jax.random.split(jax.random.key(0), batch)
    return objectives.batched(objective, lengths), keys, rows


def special_ids():
    """Returns ids of a vocabulary of T5's size and number of sentinels, with all special tokens."""
    from pretrax.objectives.token_ids import specimen_ids

    ids = specimen_ids(32_200)
    return ids._replace(sentinels=ids.sentinels[:128])


def builders() -> dict:
    """Returns every exported builder of an objective that is not a combination, and BERT.

    The objectives in `DECODERS` come first.
    """
    from pretrax import objectives

    found = dict.fromkeys(DECODERS)
    found |= {
        name: None
        for name, function in vars(objectives).items()
        if getattr(function, "__annotations__", {}).get("return") is objectives.Objective
        and name not in ("annealed", "mixture", "phases", "then")
    }
    found = {
        name: functools.partial(getattr(objectives, name), **SETTINGS.get(name, {}))
        for name in found
    }
    pair = objectives.next_sentence_prediction
    masked = functools.partial(objectives.masked_lm, framed=False)
    return found | {"bert": functools.partial(objectives.then, first=pair, second=masked)}


def row_lengths(objective, decoder: int | None):
    """Returns (members, raw tokens of a row, planned features)."""
    from pretrax import objectives

    if decoder is None:
        return 1, INPUTS, objective.lengths(INPUTS)
    layout, shape = objectives.layouts.encoder_decoder, {"encoder": INPUTS, "decoder": decoder}
    if "inputs" not in objective.lengths(2):
        layout, shape = objectives.layouts.decoder, {"decoder": decoder}
    (group,) = objectives.row_groups(objective, layout, special_ids(), [shape])
    return len(group.members), group.raw_lengths, group.features


# --- pipelines ----------------------------------------------------------------------------------


def pipelines(options: argparse.Namespace) -> dict[str, tuple[float, float] | str]:
    try:
        import seqio
        import tensorflow as tf
    except ImportError as error:
        return {"host, T5": f"not measured: {error}"}
    documents = corpus(tf, options.tokens)
    vocabulary = seqio.ByteVocabulary()
    features = {key: seqio.Feature(vocabulary) for key in ("inputs", "targets")}
    results: dict[str, tuple[float, float] | str] = {}
    for name in [name for name in DECODERS if name in options.names]:
        decoder = DECODERS[name]
        lengths = {"inputs": INPUTS, "targets": decoder}
        if name == "causal_lm":
            del lengths["inputs"]
        try:
            make = host_pipeline(name, lengths, features)
        except ImportError as error:
            results[f"{name}, host"] = f"unavailable: {error}"
            continue
        results[f"{name}, host"] = measure_pipeline(make, documents, options.repeats)
    if options.t5:
        t5 = load_t5_preprocessors(Path(options.t5))
        whole, denoise, rows = t5_pipelines(t5, features)
        results["T5: whole span corruption chain"] = measure_pipeline(
            whole, documents, options.repeats
        )
        results["T5: denoise alone"] = measure_pipeline(denoise, rows(documents), options.repeats)
    return results


def corpus(tf, tokens: int):
    """Returns documents of 1 to about 2000 random byte ids, in memory."""
    import numpy as np

    random = np.random.default_rng(0)
    lengths = np.maximum(random.exponential(500, max(tokens // 500, 1)).astype(np.int64), 1)
    text = random.integers(3, 259, lengths.sum()).astype(np.int32)
    documents = tf.RaggedTensor.from_row_lengths(text, lengths)
    return tf.data.Dataset.from_tensor_slices(documents).map(lambda x: {"targets": x}).cache()


def measure_pipeline(make, documents, repeats: int) -> tuple[float, float]:
    import seqio
    import tensorflow as tf

    with seqio.map_seed_manager(initial_seed=0):
        dataset = make(documents)
    tokens = documents.reduce(0, lambda n, x: n + tf.size(next(iter(x.values())))).numpy()

    def read_all():  # in TensorFlow, so the time of a Python loop does not count
        dataset.reduce(0, lambda n, x: n + tf.size(x["targets"])).numpy()

    return rates(int(tokens), measure(read_all, repeats))


def host_pipeline(name: str, lengths: dict[str, int], features):
    """Returns a function from documents to features, which uses our SeqIO preprocessors.

    Raises ImportError if SeqIO is not installed.
    """
    from pretrax import objectives
    from pretrax.tasks.seqio.preprocessors import ApplyObjective, CutToRows

    build = getattr(objectives, name)
    steps = [CutToRows(build), ApplyObjective(build, name=name)]

    def make(dataset):
        for step in steps:
            dataset = step(dataset, sequence_length=lengths, output_features=features)
        return dataset

    return make


def load_t5_preprocessors(checkout: Path) -> types.ModuleType:
    """Imports only T5's `preprocessors.py`, since its package imports more than it needs."""
    path = checkout / "t5" / "data" / "preprocessors.py"
    if not path.is_file():
        sys.exit(f"--t5 must be a checkout of text-to-text-transfer-transformer: no file {path}.")
    if importlib.util.find_spec("babel") is None:
        sys.modules["babel"] = types.ModuleType("babel")  # only used for translation tasks
    spec = importlib.util.spec_from_file_location("t5_preprocessors", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # AutoGraph looks for it here
    spec.loader.exec_module(module)
    return module


def t5_pipelines(t5: types.ModuleType, features):
    """Returns (whole chain, its last step, earlier steps), composed as in `t5.span_corruption`."""
    raw, _ = t5.random_spans_helper(
        inputs_length=INPUTS,
        noise_density=0.15,
        mean_noise_span_length=3.0,
        extra_tokens_per_span_inputs=1,
        extra_tokens_per_span_targets=1,
    )

    def rows(dataset):
        dataset = t5.reduce_concat_tokens(dataset, feature_key="targets", batch_size=128)
        return t5.split_tokens(dataset, feature_key="targets", max_tokens_per_segment=raw)

    def denoise(dataset):
        return t5.denoise(
            dataset,
            features,
            noise_density=0.15,
            noise_mask_fn=functools.partial(t5.random_spans_noise_mask, mean_noise_span_length=3.0),
            inputs_fn=t5.noise_span_to_unique_sentinel,
            targets_fn=t5.nonnoise_span_to_unique_sentinel,
        )

    def cached_rows(dataset):
        import seqio

        with seqio.map_seed_manager(initial_seed=0):
            return rows(dataset).cache()

    return (lambda dataset: denoise(rows(dataset))), denoise, cached_rows


# --- report -------------------------------------------------------------------------------------


def report(results, options) -> None:
    t5 = results.get("T5: whole span corruption chain")
    columns = ("", "M tokens/s, best", "median", "x T5")
    table = plain_table(*columns, title=f"Corruption on one core, {INPUTS} inputs")
    for name, result in results.items():
        if isinstance(result, str):
            table.add_row(name, result, "", "")
        else:
            ratio = f"{result[0] / t5[0]:.1f}" if t5 else ""
            table.add_row(name, *(f"{x / 1e6:.2f}" for x in result), ratio)
    console = Console()
    console.print(table)
    meaning = (
        f"x T5: best of {options.repeats} runs over the best of T5's whole span corruption chain "
        "(concatenate, split, mask, edit), on the same core in the same run."
        if t5
        else "No ratio to T5: give --t5=DIR, a checkout of "
        "google-research/text-to-text-transfer-transformer."
    )
    console.print(meaning, soft_wrap=True)


if __name__ == "__main__":
    main()
