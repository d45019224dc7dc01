"""What several yardsticks share: tasks, prompts, features, probes, rankings."""
