"""`python -m ddrl`: the same as `ddrl`."""

from ddrl.cli import command

command()
