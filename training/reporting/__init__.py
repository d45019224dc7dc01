"""What a run shows and logs: the console, metrics, trackers, plots, profiles."""
