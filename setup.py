"""pretrax: pre-training objectives in JAX. Install with `pip install -e .`"""

from setuptools import find_packages, setup

# Ranges that were tested, closed at both ends: an unpinned dependency is a program that stops
# working one day.
TRAINING = [
    "jax>=0.10.0,<0.12",
    "flax>=0.12.5,<0.13",
    "optax>=0.2.6,<0.3",
    "orbax-checkpoint>=0.12.0,<0.13",
    "numpy>=2.0,<3",
    "gin-config>=0.5.0,<0.6",
    "rich>=13.9,<16",
    "matplotlib>=3.9,<4",
    "tensorboardX>=2.6.2,<2.7",
]
DATA = [
    "seqio>=0.0.20,<0.0.21",
    "tensorflow>=2.21,<2.22",
    "tensorflow-text>=2.21,<2.22",
    "tensorflow-datasets>=4.9.8,<5",
    "sentencepiece>=0.2.0,<0.3",
    "tokenizers>=0.21,<0.24",
]
TEST = [
    "pytest>=8.3,<10",
    "hypothesis>=6.100,<7",
    "scipy>=1.13,<2",
    "ruff>=0.14,<0.18",
]

setup(
    name="pretrax",
    version="0.1.0",
    description="Pre-training objectives in JAX: declared once, run anywhere.",
    license="MIT",
    python_requires=">=3.11",
    packages=find_packages(
        include=[
            f"{name}*"
            for name in (
                "inference",
                "models",
                "objectives",
                "tasks",
                "training",
            )
        ]
    ),
    install_requires=TRAINING + DATA,
    extras_require={"test": TEST},
)
