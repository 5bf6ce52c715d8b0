"""What a run leaves: records, checkpoints, where it came from."""
