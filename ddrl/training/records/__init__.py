"""The files that a run leaves: records, checkpoints, provenance."""
