"""Text of Python's standard library, which every machine has, and the examples of its tasks."""
