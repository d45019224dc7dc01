"""What a model makes of texts, mode by mode."""
