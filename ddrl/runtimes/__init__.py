"""What carries out the roles of a run: one thread, several threads, or processes of Ray."""
