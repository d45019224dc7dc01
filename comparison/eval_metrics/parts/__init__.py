"""Parts that several eval metrics share: tasks, prompts, features, probes, rankings."""
