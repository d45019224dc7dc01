"""Decoding: compiled loops that generate token ids for batches of prompts."""
