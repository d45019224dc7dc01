"""What an objective does to text, for people: examples, attention pictures, statistics."""
