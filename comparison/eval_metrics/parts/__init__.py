"""What several eval metrics share: tasks, prompts, features, probes, rankings."""
