"""ddrl: reproducible replications of distributed deep reinforcement learning papers."""

__version__ = "0.1.0"
