"""Prompts: the token ids that a model reads or continues, made from texts and items."""
