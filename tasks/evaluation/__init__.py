"""Downstream tasks that a run is evaluated on: labelled text, and those of SeqIO."""
