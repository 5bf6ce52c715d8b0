"""The runtimes, which carry out the roles of a run: in one thread, in several threads, or in processes of Ray."""
