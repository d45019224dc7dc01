"""What a trained model can do."""

from inference.infill import Infilled, fill_in_place, greedy_targets, infill
from inference.passages import show_passages

__all__ = ["Infilled", "fill_in_place", "greedy_targets", "infill", "show_passages"]
