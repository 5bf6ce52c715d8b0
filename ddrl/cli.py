"""The command line: `ddrl train | resume | evaluate | watch | bench | systems | doctor`.

Exit codes: 0 done; 2 bad input (one line says what); 75 interrupted after a checkpoint (run the same command again).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: one thread per role

from ddrl.errors import UserError
from ddrl.memory import keep_freed_memory

INTERRUPTED = 75  # EX_TEMPFAIL: schedulers retry it


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses and runs one command; returns the exit code."""
    parsed = _parser().parse_args(arguments)
    keep_freed_memory()
    try:
        code: int = parsed.run(parsed)
    except UserError as error:
        print(f"ddrl: {error}", file=sys.stderr)
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ddrl", description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(required=True, metavar="command")

    train = commands.add_parser("train", help="train a configuration, or resume it, in a run directory")
    train.add_argument("config", type=Path, help="resolved configuration, YAML or JSON")
    train.add_argument("--directory", type=Path, help="run directory (default: that of the configuration)")
    train.add_argument("--quiet", action="store_true", help="no progress")
    train.add_argument("--print-config", action="store_true", help="print the configuration with its defaults and stop")
    train.set_defaults(run=_train)

    resume = commands.add_parser("resume", help="continue a run from its newest valid checkpoint")
    resume.add_argument("directory", type=Path)
    resume.add_argument("--quiet", action="store_true", help="no progress")
    resume.set_defaults(run=_resume)

    bench = commands.add_parser("bench", help="measure a topology beside the sum of its parts")
    bench.add_argument("algorithm")
    bench.add_argument("environment", help="such as atari/pong")
    bench.add_argument("--config", type=Path, help="YAML with departures: topology, hyperparameters, precision, ...")
    bench.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    bench.add_argument("--network", default=None, help="such as shallow or deep")
    bench.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    bench.add_argument("--repeats", type=int, default=3)
    bench.add_argument("--json", type=Path, help="write everything measured to this file")
    bench.set_defaults(run=_bench)
    return parser


def _train(parsed: argparse.Namespace) -> int:
    import json

    from ddrl.config import load_run_config, to_json
    from ddrl.record import write_json
    from ddrl.run import train

    config = load_run_config(parsed.config)
    if parsed.print_config:
        print(json.dumps(to_json(config), indent=1))
        return 0
    directory = parsed.directory or parsed.config.parent
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / "config.json").exists():
        write_json(directory / "config.json", to_json(config))
    return _exit_code(train(config, directory, quiet=parsed.quiet))


def _resume(parsed: argparse.Namespace) -> int:
    from ddrl.config import load_run_config
    from ddrl.run import train

    config = load_run_config(parsed.directory / "config.json")
    return _exit_code(train(config, parsed.directory, quiet=parsed.quiet))


def _bench(parsed: argparse.Namespace) -> int:
    import yaml

    from ddrl import bench
    from ddrl.record import write_json

    overrides = {"precision": parsed.precision}
    if parsed.config:
        overrides |= yaml.safe_load(parsed.config.read_text())
    if parsed.network:
        overrides["hyperparameters"] = overrides.get("hyperparameters", {}) | {"network": parsed.network}
    config = bench.default_config(parsed.algorithm, parsed.environment, overrides)
    result = bench.bench(
        config, seconds=parsed.seconds, repeats=parsed.repeats, note=lambda line: print(line, file=sys.stderr)
    )
    print(bench.describe(result))
    if parsed.json:
        write_json(parsed.json, result)
    return 0


def _exit_code(reason: str) -> int:
    return INTERRUPTED if reason == "interrupted" else 0


if __name__ == "__main__":
    sys.exit(main())
