"""Scaling laws, and estimates of what a training run requires."""
