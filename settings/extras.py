"""Optional packages: the extras of setup.py, and the purpose of each package."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # the package's folder, or the root of a checkout

# Package -> (the extra that installs it, its purpose).
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


def missing_package_message(error: ImportError) -> str | None:
    """Returns how to install the package that an import did not find; None if no extra has it.

    >>> missing_package_message(ModuleNotFoundError(name="warcio.utils")).partition(": pip")[0]
    'To read web pages, pretrax needs warcio, which is not installed'
    """
    # fsspec raises an ImportError without a name, from an error that has the name.
    name = error.name or getattr(error.__cause__, "name", None)
    package = (name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    extra, purpose = EXTRAS[package]
    return f"{purpose}, pretrax needs {package}, which is not installed: {install_command(extra)}"


def install_command(extra: str) -> str:
    """Returns the command that adds an extra to this installation.

    An editable install runs from a checkout. The command names the checkout `.` if it is the
    working folder, and by its path otherwise. An installed wheel has no setup.py, so the command
    uses the name of the package.
    """
    if not (ROOT / "setup.py").is_file():
        return f"pip install 'pretrax[{extra}]'"
    checkout = "." if Path.cwd() == ROOT else ROOT
    return f"pip install -e '{checkout}[{extra}]'"
