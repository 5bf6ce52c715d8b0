"""Other people's living libraries as positive controls: the same configuration, run by their code."""
