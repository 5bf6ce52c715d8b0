"""The arguments of every command."""

from __future__ import annotations

import argparse
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ddrl.cli import commands, evidence_commands, peers
from ddrl.cli.shared_arguments import (
    add,
    add_environment,
    add_episodes,
    add_form,
    add_measuring,
    add_paper,
    add_replications,
    add_results,
    add_secrets,
    path,
    positive,
    seconds,
)

SCALE = "smoke, workstation, paper or reference"
EXIT_CODES = (
    "Exit codes: 0 done; 1 a check failed (verify, doctor); 2 bad input, an environment that failed or training that "
    "diverged (one line says what); 75 interrupted after a checkpoint (type the same command again)."
)
WITH_POLICY = "run directory with a checkpoint, or with config.json and an exported policy.safetensors"
LISTS = ("agents", "algorithms", "environments", "papers", "keys", "topologies")
SHELLS = ("bash", "zsh", "tcsh")


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    made = argparse.ArgumentParser(
        prog="ddrl",
        description="Replications of distributed deep reinforcement learning papers.",
        epilog=EXIT_CODES,
    )
    made.add_argument("--version", action="version", version=f"%(prog)s {version('ddrl')}")
    added = made.add_subparsers(required=True, metavar="command", title="commands")
    _add_runs(added)
    _add_played(added)
    _add_plot(added)
    _add_bench(added)
    _add_clusters(added)
    _add_evidence(added)
    evidence_commands.add_to(added)
    peers.add_to(added)
    _add_list(added)
    _add_new(added)
    _add_machine(added)
    return made


def _add_runs(added: Any) -> None:
    """Add the commands about one run."""
    train = add(
        added,
        commands.train,
        "train an algorithm on a task, or a configuration; the same command resumes the run",
        "Such as: ddrl train impala atari/pong env_frames=2e6 seed=3 hyperparameters.optimizer.learning_rate=3e-4. "
        "Keys left out take the paper's values, or what the task needs: see --print-config.",
    )
    train.add_argument(
        "run_words",
        nargs="+",
        metavar="ALGORITHM TASK | CONFIG | KEY=VALUE",
        help="an algorithm and a task, or a configuration (YAML or JSON); then settings",
    )
    train.set_defaults(more="run_words")
    train.add_argument("--directory", type=path, help="run directory (runs/<algorithm>/<task>/<seed>-<n>, if left out)")
    train.add_argument("--overwrite", action="store_true", help="remove another run that has finished in the directory")
    train.add_argument("--quiet", action="store_true", help="no progress")
    train.add_argument(
        "--wait", type=seconds, default=0.0, help="seconds to wait for another process that trains in that directory"
    )
    train.add_argument(
        "--listen",
        metavar="ADDRESS",
        help="inference is central: wait for `ddrl worker` at HOST:PORT or unix:/PATH to step the environments",
    )
    add_secrets(train)
    train.add_argument("--print-config", action="store_true", help="print the configuration with its defaults and stop")

    worker = add(
        added,
        commands.worker,
        "step environments for a learner with central inference, here or on another host",
        "The learner says which environments, and how many. Goes on until its run is over; where the learner is lost, "
        "tries again until it is back, or for as long as --wait says.",
    )
    worker.add_argument(
        "--wait", type=seconds, default=600.0, help="seconds without a learner after which it ends (%(default)s)"
    )
    worker.add_argument("--connect", required=True, metavar="ADDRESS", help="what the learner was told to --listen at")
    worker.add_argument("--environment", "--env", default="", help="refuse to work on another one than this")
    add_secrets(worker)

    resume = add(added, commands.resume, "continue a run from its newest valid checkpoint")
    resume.add_argument("directory", type=path, help="run directory")
    resume.add_argument("--quiet", action="store_true", help="no progress")


def _add_played(added: Any) -> None:
    """Add the commands that play episodes with a trained agent."""
    evaluate = add(
        added,
        commands.evaluate,
        "play episodes with a run's newest parameters",
        "Actions are sampled, on seeds of their own; prints the raw return.",
    )
    evaluate.add_argument("directory", type=path, help=WITH_POLICY)
    add_episodes(evaluate, 10, "how many (%(default)s)", "of a suite's tasks this one alone")
    add_environment(evaluate)
    evaluate.add_argument("--greedy", action="store_true", help="take the best action each time, instead of sampling")
    evaluate.add_argument("--json", action="store_true", help="print the return and length of every episode as JSON")

    watch = add(
        added,
        commands.watch,
        "film episodes played with a run's newest parameters, as MP4 or GIF",
        "Atari games: every frame of the emulator, in colour, at 60 per second. Other environments: what the agent "
        "sees. Below it: step, score and action. The same run, seed and machine give the same file.",
    )
    watch.add_argument("directory", type=path, help=WITH_POLICY)
    watch.add_argument("--output", type=path, default=Path("episode.mp4"), help="an .mp4 or .gif file (%(default)s)")
    one_by_one = "of a suite's tasks this one alone (else one after the other)"
    add_episodes(watch, 1, "how many, one after the other (%(default)s)", one_by_one)
    add_environment(watch)
    watch.add_argument(
        "--max-steps", type=positive, help="agent steps after which an episode is cut (never, if left out)"
    )
    watch.add_argument("--greedy", action="store_true", help="take the best action each time, instead of sampling")

    export = add(
        added,
        commands.export,
        "write a run's newest parameters to policy.safetensors, which evaluate and watch play without a checkpoint",
        "Parameters have 16 bits where that hardly changes the actions, as it is measured, and 32 otherwise.",
    )
    export.add_argument("directory", type=path, help="run directory with a checkpoint")


def _add_plot(added: Any) -> None:
    plot = add(
        added,
        commands.plot,
        "draw curves of any runs side by side, also of those that go on",
        "Runs that differ only in their seed are one line: the interquartile mean, with its 95 percent interval from 3 "
        "seeds on. Without --output, a chart in the terminal.",
    )
    plot.add_argument("runs", type=path, nargs="+", metavar="RUN", help="run directories, or folders that hold some")
    plot.set_defaults(more="runs")
    plot.add_argument("--metric", default="episode_return", help="any metric of curves.parquet (%(default)s)")
    plot.add_argument("--x", choices=("frames", "seconds"), default="frames", help="the x axis (%(default)s)")
    plot.add_argument("--output", type=path, help="picture to write: .png, .svg or .pdf")
    plot.add_argument(
        "--points", type=positive, default=100, help="of a curve; each is the mean over its part (%(default)s)"
    )


def _add_bench(added: Any) -> None:
    bench = add(
        added,
        commands.bench,
        "measure runtimes and topologies beside the sum of their parts",
        "Environment frames per second of simulation, inference and training, and the duty cycle of each role. All is "
        "measured in turn, and then again: what is compared was measured side by side.",
    )
    bench.add_argument("algorithm", nargs="?", help="such as impala")
    bench.add_argument("environment", nargs="?", help="such as atari/pong")
    bench.add_argument(
        "--all",
        nargs="?",
        const="",
        metavar="ENVIRONMENT",
        help="compare the systems of bench/architectures.yaml on it instead (or on the one named there)",
    )
    bench.add_argument(
        "--runtime", nargs="+", choices=("serial", "threads", "ray"), help="one or several, side by side (threads)"
    )
    bench.add_argument(
        "--inference",
        nargs="+",
        choices=("local", "device", "central", "workers"),
        help="where actions are computed: local: in each actor; device: there, as tensors on the run's device; "
        "central: beside the learner; workers: beside the learner, with environments in processes of their own, as "
        "always with runtime ray (local)",
    )
    bench.add_argument(
        "--sweep",
        nargs="*",
        metavar="KEY=N,N",
        help="compare topologies, such as: --sweep num_actors=1,2 envs_per_actor=8,16 learner_threads=1,2 "
        "(if nothing follows: 1, N and N + 1 actors on N cores, each with 4, 8, 16 and 32 environments)",
    )
    bench.add_argument("--config", type=path, help="YAML with departures: topology, hyperparameters, precision, ...")
    bench.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a departure, such as topology.num_actors=2"
    )
    bench.add_argument("--precision", choices=("float32", "bfloat16"), help="(float32)")
    bench.add_argument("--network", help="such as shallow or deep")
    add_measuring(bench, 20.0, "of each measurement; medians count (%(default)s)")

    roundtrip = add(
        added,
        commands.roundtrip,
        "measure the inference service with workers that step nothing and a policy that does nothing",
        "Observations per second, and the time from a worker's call until it has its actions.",
    )
    roundtrip.add_argument("--workers", type=positive, nargs="+", default=[1, 2], help="processes (1 2)")
    roundtrip.add_argument("--envs", type=positive, nargs="+", default=[1, 32], help="observations in a call (1 32)")
    roundtrip.add_argument("--transport", choices=("unix", "tcp"), nargs="+", default=["unix"], help="(unix)")
    add_measuring(roundtrip, 5.0, "medians count (%(default)s)")


def _add_evidence(added: Any) -> None:
    """Add the commands about what the runs show."""
    report = add(
        added,
        commands.report,
        "write the reports of a scale from the results that exist; trains nothing",
        "Tables, figures, one PDF and HTML file per paper, and the report of the whole suite. Runs that are missing or "
        "damaged are named in it. To run what is missing first: make report.",
    )
    add_paper(report)
    report.add_argument("--scale", default="smoke", help=f"{SCALE}: the committed runs (%(default)s)")
    report.add_argument("--output", type=path, help="folder for the reports (reports/ of the checkout, if left out)")
    add_results(report)

    for kind, text, percent, verdicts in (
        ("claims", "list what a paper says in words, each with its verdict", 95, "supported, no_difference"),
        ("cells", "list published numbers beside ours, each with its verdict", 90, "equivalent, not_comparable"),
    ):
        ledger = add(
            added,
            commands.ledger,
            text,
            f"With {percent} % interval over seeds, number of seeds, environment frames and flags. From the tables of "
            "the scale, or made from the committed reference runs where there are none.",
            name=kind,
        )
        ledger.set_defaults(kind=kind)
        add_paper(ledger)
        ledger.add_argument("--scale", help=f"{SCALE} (the largest with tables, if left out)")
        ledger.add_argument("--verdict", help=f"only these, such as {verdicts} or not_run")
        add_form(ledger)
        add_results(ledger)

    verify = add(
        added,
        commands.verify,
        "check that finished runs are whole, and with --against that they learn as well as others did",
        "Whole: files can be read, agree with their manifest and reach the budget. Exit code 1 where a check fails.",
    )
    verify.add_argument("directory", type=path, nargs="?", default=Path("results"), help="of runs (%(default)s)")
    verify.add_argument("--against", type=path, metavar="DIR", help="runs to compare with; reference: the committed")
    verify.add_argument("--junit", type=path, metavar="FILE", help="write the checks as JUnit XML to this file")

    systems = add(
        added,
        commands.systems,
        "list every system of every paper: an algorithm with its topology",
        "Read from the experiments' settings at scale paper.",
    )
    add_form(systems)
    add_replications(systems)


def _add_list(added: Any) -> None:
    listed = add(
        added,
        commands.list_,
        "list algorithms, environments, papers, or the keys of a configuration",
        "Such as: ddrl list keys impala; ddrl list environments firstperson.",
        name="list",
    )
    listed.add_argument("what", choices=LISTS, help="what to list")
    listed.add_argument(
        "name", nargs="?", help="one algorithm (also of agents and keys), prefix of environments, or paper"
    )
    listed.add_argument("--json", action="store_true", help="print JSON")
    add_replications(listed)


def _add_clusters(added: Any) -> None:
    """Add the commands about the runs of a whole scale."""
    plan = add(
        added,
        commands.plan,
        "say what a scale will take, before anything runs",
        "Jobs, core hours, GPU hours and storage of every experiment. Hours are a range, from the finished runs and "
        "benchmarks that are most like a run. Column measured: the share of the hours for which a run alike was "
        "measured: algorithm, network, simulator, runtime, kind of machine and budget. Other hours are estimates. "
        "Column from: what was like the runs, which of them are estimated, and of how many only a CPU was measured.",
    )
    add_paper(plan)
    plan.add_argument("--scale", default="smoke", help="smoke, workstation or paper (%(default)s)")
    plan.add_argument("--site", type=path, help="a cluster's site file: names runs that would outlast its wall time")
    add_results(plan)

    merge = add(
        added,
        commands.merge,
        "copy the finished runs of other folders of results, such as another cluster's, into this one",
        "Damaged runs are named and left out. Refused, before anything is copied, where runs that belong together "
        "differ in protocol, version of the algorithm or configuration, and where one run has different records in two "
        "places. Exit code 2 also where a whole run could not be written.",
    )
    merge.add_argument("folders", type=path, nargs="+", metavar="folder", help="such as other/results")
    merge.set_defaults(more="folders")
    merge.add_argument("--into", type=path, default=Path("results"), help="folder of results (%(default)s)")
    merge.add_argument("--dry-run", action="store_true", help="only say what would be copied")


def _add_new(added: Any) -> None:
    new = add(
        added,
        commands.new,
        "write a skeleton of a paper, an algorithm or an environment, with its test",
        "It trains, is tested and reported at once. It is written into this checkout, or into a package of your own.",
    )
    new.add_argument("kind", choices=("paper", "algorithm", "environment"), help="what to write")
    new.add_argument("name", help="such as my_algorithm; of a paper such as mnih_2016")
    new.add_argument("--into", type=path, metavar="DIR", help="a package of your own; it is made if it is not there")


def _add_machine(added: Any) -> None:
    completion = add(
        added,
        commands.completion,
        "print a script with which a shell completes commands, options, algorithms, tasks and papers",
        "Such as: ddrl completion bash > ~/.local/share/bash-completion/completions/ddrl",
    )
    completion.set_defaults(parser=parser)
    completion.add_argument("shell", choices=SHELLS, help="which shell")

    doctor = add(
        added,
        commands.doctor,
        "check this machine: packages, processor, GPU, environments, optional parts",
        "Each part that is not there comes with what to type. Exit code 1 where a required one is missing.",
    )
    doctor.add_argument("--all", action="store_true", help="check every example of each environment, not one (slower)")
