"""What a trained model can do."""

from inference.infill import Infilled, greedy_targets, infill
from inference.passages import show_passages

__all__ = ["Infilled", "greedy_targets", "infill", "show_passages"]
