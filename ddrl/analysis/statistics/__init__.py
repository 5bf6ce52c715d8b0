"""Tests, intervals and normalised scores: pure functions of numbers."""
