"""What a run leaves on disk: settings, checkpoints, metrics."""
