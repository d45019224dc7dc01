"""Labeled text that a trained model is evaluated on, and the answers that are kept of it."""
