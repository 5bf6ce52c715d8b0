"""What is read of runs: curves, manifests, and what is wrong with them."""
