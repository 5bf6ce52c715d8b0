"""Reads what a paper says: citation, claims, published cells, experiments, settings. No torch, no pandas at import."""
