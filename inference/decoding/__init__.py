"""Tokens from logits: compiled loops over batches of prompts, which know no text."""
