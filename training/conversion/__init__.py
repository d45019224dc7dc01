"""Models of Hugging Face and T5X as run directories, and runs as models for `transformers`."""
