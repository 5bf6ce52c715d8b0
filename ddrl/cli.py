"""The command line: `ddrl train | resume | evaluate | watch | bench | report | verify | systems | doctor`.

Exit codes: 0 done; 2 bad input (one line says what); 75 interrupted after a checkpoint (run the same command again).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: one thread per role

from ddrl.errors import UserError, exit_code
from ddrl.memory import keep_freed_memory

INTERRUPTED = 75  # EX_TEMPFAIL: schedulers retry it


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses and runs one command; returns the exit code."""
    parsed = _parser().parse_args(arguments)
    keep_freed_memory()
    return exit_code(lambda: parsed.run(parsed))


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
    _add_inspections(commands)
    return parser


def _add_inspections(commands: Any) -> None:
    evaluate = commands.add_parser("evaluate", help="play episodes with a run's newest parameters")
    evaluate.add_argument("directory", type=Path)
    evaluate.add_argument("--episodes", type=int, default=10)
    evaluate.add_argument("--seed", type=int, default=0)
    evaluate.set_defaults(run=_evaluate)

    watch = commands.add_parser("watch", help="play one episode into an animated GIF")
    watch.add_argument("directory", type=Path)
    watch.add_argument("--output", type=Path, default=Path("episode.gif"))
    watch.add_argument("--seed", type=int, default=0)
    watch.add_argument("--max-steps", type=int, default=2000, help="agent steps")
    watch.set_defaults(run=_watch)

    report = commands.add_parser("report", help="run what is missing and write the PDFs (snakemake)")
    report.add_argument("paper", nargs="?", help="such as impala_2018 (default: all)")
    report.add_argument("--scale", default="smoke", help="smoke, workstation or paper")
    report.add_argument("--cores", default="all")
    report.set_defaults(run=_report)

    verify = commands.add_parser("verify", help="check that finished runs are whole and agree with their manifests")
    verify.add_argument("root", type=Path, nargs="?", default=Path("results"))
    verify.set_defaults(run=_verify)

    systems = commands.add_parser("systems", help="list algorithms, environments and topologies")
    systems.set_defaults(run=_systems)

    doctor = commands.add_parser("doctor", help="check this machine: packages, games, processor, disk")
    doctor.set_defaults(run=_doctor)


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
    if not (directory / "config.json").exists() or load_run_config(directory / "config.json") != config:
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


def _evaluate(parsed: argparse.Namespace) -> int:
    from ddrl import inspection

    result = inspection.evaluate(parsed.directory, episodes=parsed.episodes, seed=parsed.seed)
    print(
        f"{parsed.directory}: mean raw return {result['mean']:.2f}, standard deviation "
        f"{result['standard_deviation']:.2f}, {result['episodes']} episodes, after {result['env_frames']:,} frames"
    )
    return 0


def _watch(parsed: argparse.Namespace) -> int:
    from ddrl import inspection

    episode_return = inspection.watch(parsed.directory, parsed.output, seed=parsed.seed, max_steps=parsed.max_steps)
    print(f"{parsed.output}: raw return {episode_return:g}")
    return 0


def _report(parsed: argparse.Namespace) -> int:
    import subprocess

    snakefile = Path(__file__).parents[1] / "Snakefile"
    if not snakefile.exists():
        raise UserError(f"{snakefile}: no such file; reports are made in a checkout of ddrl")
    options = ["--rerun-incomplete", "--rerun-triggers", "mtime", "params", "input", "--cores", parsed.cores]
    targets = [parsed.paper] if parsed.paper else []
    command = [sys.executable, "-m", "snakemake", *options, *targets, "--config", f"scale={parsed.scale}"]
    return subprocess.run(command, cwd=snakefile.parent, check=False).returncode


def _verify(parsed: argparse.Namespace) -> int:
    from ddrl import inspection

    damaged = 0
    for directory, problems in inspection.verify(parsed.root):
        damaged += bool(problems)
        print(f"{directory}: {'; '.join(problems) or 'whole'}")
    return 1 if damaged else 0


def _systems(parsed: argparse.Namespace) -> int:
    from ddrl import inspection

    print("\n".join(inspection.systems()))
    return 0


def _doctor(parsed: argparse.Namespace) -> int:
    from ddrl import inspection

    wrong = 0
    for fine, line in inspection.doctor():
        wrong += not fine
        print(f"{'ok     ' if fine else 'MISSING'} {line}")
    return 1 if wrong else 0


def _exit_code(reason: str) -> int:
    return INTERRUPTED if reason == "interrupted" else 0


if __name__ == "__main__":
    sys.exit(main())
