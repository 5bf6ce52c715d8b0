"""What a run is told: its configuration, checked."""
