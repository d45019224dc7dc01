"""Output of a run: console, metrics, trackers, plots, profiles."""
