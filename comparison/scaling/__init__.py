"""Size and budget: scaling laws, and what a training takes."""
