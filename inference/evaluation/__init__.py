"""Evaluation of a trained model on labeled text."""
