"""One training run, whatever runs its roles: what it is built of, how it learns, evaluates, saves and goes on."""
