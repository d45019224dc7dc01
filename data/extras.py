"""Packages that not every installation has: the extras of setup.py."""

# Package -> its extra, and what takes it.
EXTRAS = {
    **dict.fromkeys(("datatrove", "orjson", "xxhash"), ("prepare", "To prepare text")),
    **dict.fromkeys(("pyarrow", "zstandard"), ("prepare", "To read such files")),
    **dict.fromkeys(("trafilatura", "warcio"), ("prepare", "To read web pages")),
    "grain": ("grain", "To read a pipeline of Grain"),
    "lm_eval": ("lm-eval", "To evaluate by the lm-evaluation-harness"),
    "qwix": ("quantized", "To compute in int8 or fp8"),
    "rouge_score": ("seqio", "To score summaries"),
    "sacrebleu": ("seqio", "To score translations"),
    **dict.fromkeys(("seqio", "tensorflow"), ("seqio", "To read SeqIO tasks and mixtures")),
    "tensorflow_datasets": ("seqio", "To read TensorFlow Datasets"),
}


def words_of_absent(error: ImportError) -> str | None:
    """Returns what to install for a package that is not there; None where no extra brings it.

    >>> words_of_absent(ModuleNotFoundError(name="seqio.utils"))
    "To read SeqIO tasks and mixtures takes seqio, not installed here: pip install -e '.[seqio]'"
    """
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    extra, what = EXTRAS[package]
    return f"{what} takes {package}, not installed here: pip install -e '.[{extra}]'"
