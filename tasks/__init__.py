"""Corpora and evaluations from SeqIO tasks and mixtures. No other package imports TensorFlow."""
