"""What a run leaves to continue from: checkpoints, results, and the model that it trained."""
