"""Decides claims and cells: tests on our runs, compared with published numbers."""
