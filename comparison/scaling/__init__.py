"""Scaling laws, and the requirements of training runs."""
