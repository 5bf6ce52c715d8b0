"""What a paper says: citation, claims, published cells, experiments, settings. No torch, and no pandas at import."""
