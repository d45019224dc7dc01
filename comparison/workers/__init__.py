"""Processes and jobs that train and measure the runs of a comparison."""
