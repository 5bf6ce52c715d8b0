"""`python -m ddrl.cli`: the same as `ddrl`."""

from ddrl.cli import command

command()
