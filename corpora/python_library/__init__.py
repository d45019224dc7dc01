"""Text of Python's own standard library, which every machine has, with tasks made of it."""
