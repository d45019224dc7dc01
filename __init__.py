"""pretrax: pre-training objectives in JAX, declared once and run anywhere."""
