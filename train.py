"""Trains in a checkout: `python train.py` does what `pretrax train` does."""

from pretrax.cli import run

if __name__ == "__main__":
    run("train")
