"""What is done with environments: checked, watched, played at random, named in errors."""
