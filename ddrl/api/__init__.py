"""The Python interface of `ddrl`, and what the command line does in the same way."""
