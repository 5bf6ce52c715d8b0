"""Reads runs: curves, manifests, and what is wrong with them."""
