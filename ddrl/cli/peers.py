"""The commands about other people's libraries: what there is, runs by them, and their speed beside ours.

Each function takes the parsed arguments of the command of its name and returns the exit code (None: 0).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ddrl.cli.outputs import check_output
from ddrl.cli.shared_arguments import add, path, positive, seconds
from ddrl.errors import TRY_AGAIN, UserError
from ddrl.system.notes import say

RUN = "ALGORITHM TASK | CONFIG | KEY=VALUE"
WORDS = "an algorithm and a task, or a configuration (YAML or JSON); then settings"


def add_to(added: Any) -> None:
    """Add `ddrl peers` to the parser of all commands."""
    text = "run configurations with other people's libraries, as controls of our own code"
    parser = added.add_parser("peers", help=text, description=f"{text[0].upper()}{text[1:]}. Installed by: make peers")
    below = parser.add_subparsers(required=True, metavar="command", title="commands", help="what to do")
    add(
        below, list_peers, "list the libraries, whether each is installed, and the algorithms that it runs", name="list"
    )
    training = add(
        below,
        train,
        "train with another library; the records are those of our own runs",
        "Such as: ddrl peers train stable_baselines3 ppo gymnasium/CartPole-v1 env_frames=1e5. As `ddrl train` with "
        "peer=NAME. What the library cannot be given is printed, and stands in run.json. It saves no checkpoint.",
    )
    training.add_argument("name", help="the library; see: ddrl peers list")
    training.add_argument("run_words", nargs="+", metavar=RUN, help=WORDS)
    training.set_defaults(more="run_words")
    training.add_argument("--directory", type=path, help="run directory (runs/<algorithm>/<task>/<seed>-<n>)")
    training.add_argument("--quiet", action="store_true", help="no progress")
    measuring = add(
        below,
        speed,
        "measure our code and other libraries at the same work, in turn",
        "Environment frames per second with acting and learning, CPU time, memory, and what is learned from a step.",
    )
    measuring.add_argument("run_words", nargs="+", metavar=RUN, help=WORDS)
    measuring.set_defaults(more="run_words")
    measuring.add_argument("--peers", default="", metavar="A,B", help="these alone (all that are installed)")
    measuring.add_argument("--seconds", type=seconds, default=20.0, help="of each measurement (%(default)s)")
    measuring.add_argument("--repeats", type=positive, default=3, help="medians count (%(default)s)")
    measuring.add_argument(
        "--threads",
        type=positive,
        nargs="+",
        help="threads of torch in the libraries, each measured (1, and as many as there are cores)",
    )
    measuring.add_argument("--csv", type=path, help="write every measurement to this file")
    measuring.add_argument(
        "--json", type=path, help="write them with the commit, the machine and all versions; reports read such a file"
    )


def list_peers(parsed: argparse.Namespace) -> None:
    from ddrl.cli.tables import print_rows
    from ddrl.peers.catalogue import peers

    print_rows(
        [
            {
                "peer": one.name,
                "library": one.title,
                "installed": "yes" if one.is_installed else "no (make peers)",
                "algorithms": ", ".join(one.algorithms),
            }
            for one in peers().values()
        ]
    )


def train(parsed: argparse.Namespace) -> int:
    from ddrl.api.launch import train
    from ddrl.api.settings import run_directory
    from ddrl.cli.run_settings import file_of, run_config

    config = run_config(list(parsed.run_words))
    if config.peer not in (None, parsed.name):
        raise UserError(f"key 'peer': {config.peer}, and the command names {parsed.name}; allowed: one of them")
    config = run_config([*parsed.run_words, f"peer={parsed.name}"])
    directory = parsed.directory or run_directory(config, file_of(parsed.run_words))
    named = parsed.quiet or parsed.directory is not None
    return TRY_AGAIN if train(config, directory, quiet=parsed.quiet, named=named) == "interrupted" else 0


def speed(parsed: argparse.Namespace) -> None:
    import os
    import shlex
    from dataclasses import asdict, replace

    import pandas as pd

    from ddrl.cli.run_settings import run_config
    from ddrl.cli.tables import print_rows
    from ddrl.peers.speed import measured, table
    from ddrl.peers.speed_result import speed_result
    from ddrl.system.csv_cells import table_as_csv
    from ddrl.system.files import write_whole
    from ddrl.training.records.recorder import write_json

    config = replace(run_config(parsed.run_words), peer=None)
    names = [name for name in parsed.peers.split(",") if name]
    for file in (parsed.csv, parsed.json):
        check_output(file)
    threads = parsed.threads or sorted({1, len(os.sched_getaffinity(0))})
    speeds = measured(config, names, seconds=parsed.seconds, repeats=parsed.repeats, threads=threads, note=say)
    if parsed.csv:
        write_whole(Path(parsed.csv), table_as_csv(pd.DataFrame([asdict(one) for one in speeds])).encode())
    if parsed.json:
        # The configuration is in the file, so its folder on this machine is left out.
        words = (Path(word).name if word.startswith("/") else word for word in parsed.run_words)
        command = shlex.join(["ddrl", "peers", "speed", *words, *_options(parsed)])
        write_json(parsed.json, speed_result(config, speeds, seconds=parsed.seconds, command=command))
    print_rows(table(speeds))


def _options(parsed: argparse.Namespace) -> list[str]:
    """Return the options that a measurement was made with, as they are typed."""
    threads = [str(count) for count in parsed.threads or ()]
    return [
        *(["--peers", parsed.peers] if parsed.peers else []),
        *("--seconds", f"{parsed.seconds:g}", "--repeats", str(parsed.repeats)),
        *(["--threads", *threads] if threads else []),
    ]
