"""Texts and items as prompts: the token ids that a model continues, and whether they fit."""
