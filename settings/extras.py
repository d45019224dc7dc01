"""Packages that not every installation has: the extras of setup.py."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # of the package, and of a checkout

# Package -> its extra, and what takes it.
EXTRAS = {
    **dict.fromkeys(("datatrove", "orjson", "xxhash"), ("prepare", "To prepare text")),
    **dict.fromkeys(("pyarrow", "zstandard"), ("prepare", "To read such files")),
    **dict.fromkeys(("trafilatura", "warcio"), ("prepare", "To read web pages")),
    **dict.fromkeys(("gcsfs", "s3fs"), ("buckets", "To open gs:// and s3://")),
    "grain": ("grain", "To read a pipeline of Grain"),
    "huggingface_hub": ("hub", "To push to the hub"),
    "lm_eval": ("lm-eval", "To evaluate by the lm-evaluation-harness"),
    "qwix": ("quantized", "To compute in int8 or fp8"),
    "rouge_score": ("seqio", "To score summaries"),
    "sacrebleu": ("seqio", "To score translations"),
    **dict.fromkeys(("seqio", "tensorflow"), ("seqio", "To read SeqIO tasks and mixtures")),
    "submitit": ("slurm", "To run as jobs of a cluster"),
    "tensorflow_datasets": ("seqio", "To read TensorFlow Datasets"),
    "wandb": ("wandb", "To write to Weights & Biases"),
}


def words_of_absent(error: ImportError) -> str | None:
    """Returns what to install for a package that is not there; None where no extra brings it.

    >>> words_of_absent(ModuleNotFoundError(name="seqio.utils"))
    "To read SeqIO tasks and mixtures takes seqio, not installed here: pip install -e '.[seqio]'"
    """
    name = error.name or getattr(error.__cause__, "name", None)  # fsspec says so of its own
    package = (name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    extra, what = EXTRAS[package]
    return f"{what} takes {package}, not installed here: {install_command(extra)}"


def install_command(extra: str) -> str:
    """Returns the command that adds an extra to this installation.

    A checkout, which an editable install runs from, is named by `.` in its own folder and by its
    path elsewhere. An installed wheel holds no setup.py; pip finds its extras by its name.
    """
    if not (ROOT / "setup.py").is_file():
        return f"pip install 'pretrax[{extra}]'"
    checkout = "." if Path.cwd() == ROOT else ROOT
    return f"pip install -e '{checkout}[{extra}]'"
