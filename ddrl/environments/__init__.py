"""Vector environments, found by the prefix of their name: `atari/pong`, `toy/catch` (see `registry`)."""
