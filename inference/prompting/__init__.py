"""Prompts: the token ids that a model reads or continues."""
