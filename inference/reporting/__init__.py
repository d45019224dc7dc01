"""Output of answers: to the terminal and to files."""
