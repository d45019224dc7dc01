"""Applies a trained model to texts, with one file for each kind of answer."""
