"""What a paper says: citation, claims, published cells, experiments and their settings. No torch, no pandas at import."""
