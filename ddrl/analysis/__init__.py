"""Makes tables, verdicts and figures from curves. No torch here, and no pandas in this file."""
