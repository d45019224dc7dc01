"""Saved parts of a run: checkpoints, results and trained models."""
