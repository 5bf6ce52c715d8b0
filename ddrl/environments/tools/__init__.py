"""Tools for environments: they are checked, watched, played at random, named in errors."""
