"""The commands of `ddrl`, each a function that takes the parsed arguments of the command of its name.

It returns the exit code (None: 0) or raises `UserError`. The functions import what they need themselves, so that a
command that only reads tables starts without torch.
"""

from __future__ import annotations

import argparse
import os
import shlex
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddrl.cli.outputs import check_output
from ddrl.cli.run_folders import folder_of, the_run
from ddrl.errors import TRY_AGAIN, UserError
from ddrl.system.files import refuse_pipe
from ddrl.system.notes import SafeStandardError, say
from ddrl.system.wording import counted

if TYPE_CHECKING:
    from ddrl.inference.endpoint import Endpoint

SHORTEST_TOKEN = 16
INTERRUPTED = TRY_AGAIN
LINE_SECONDS = 10.0
ENVIRONMENT = "--environment"
LAYOUT = "reports/template.typ"
"""The file that tells a checkout, whose layout reports have, from a project of the user's own."""


def train(parsed: argparse.Namespace) -> int:
    import json
    from dataclasses import asdict

    from ddrl.api.launch import train
    from ddrl.api.settings import check_task, run_directory
    from ddrl.cli.run_settings import CALLER, file_of, run_config
    from ddrl.training.config.run_config import to_json
    from ddrl.training.records import finished

    config, source = run_config(parsed.run_words), file_of(parsed.run_words)
    check_task(config, source or CALLER)
    if parsed.print_config:
        values = to_json(config)
        values["topology"] = asdict(config.topology)  # also keys that files leave out
        print(json.dumps(values, indent=1))
        return 0
    secrets = (parsed.token_file, parsed.tls_cert, parsed.tls_key, parsed.tls_ca, parsed.insecure)
    if parsed.listen is None and any(secrets):
        raise UserError("--token-file, --tls-cert, --tls-key, --tls-ca and --insecure go with --listen")
    endpoint = None if parsed.listen is None else _endpoint(parsed, parsed.listen)  # for workers started by hand
    directory = parsed.directory or run_directory(config, source)
    if parsed.overwrite:
        finished.remove(config, directory)
    named = parsed.quiet or parsed.directory is not None
    reason = train(config, directory, quiet=parsed.quiet, named=named, wait=parsed.wait, endpoint=endpoint)
    return INTERRUPTED if reason == "interrupted" else 0


def _endpoint(parsed: argparse.Namespace, address: str) -> Endpoint:
    """Return the endpoint at `address` with the secrets that were named."""
    from ddrl.inference.endpoint import Endpoint, Tls

    token = _token(parsed.token_file)
    if parsed.tls_cert and parsed.tls_key:
        _secret(parsed.tls_key, "--tls-key")
    return Endpoint(address, token, Tls(parsed.tls_cert, parsed.tls_key, parsed.tls_ca), parsed.insecure)


def _token(path: Path | None) -> str | None:
    """Return the token: the first line of a file. Raise `UserError` where it is too short or not ASCII."""
    if path is None:
        return None
    token = _secret(path, "--token-file").splitlines()[:1]
    if not (token and token[0].strip().isascii() and len(token[0].strip()) >= SHORTEST_TOKEN):
        raise UserError(f"--token-file {path}: its first line must be a token of {SHORTEST_TOKEN} letters or more")
    return token[0].strip()


def _secret(path: Path, option: str) -> str:
    """Return the content of a file that only this user may read or write.

    Raise `UserError` where it cannot be read, belongs to another user, or others may read or write it.
    """
    try:
        refuse_pipe(path)
        with path.open(encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (0, os.getuid()):
                raise UserError(f"{option} {path}: belongs to another user, who could read and change it")
            mode = stat.S_IMODE(status.st_mode)
            if mode & 0o077:
                typed = f"chmod 600 {shlex.quote(str(path))}"
                raise UserError(f"{option} {path}: others may read or write it (mode {mode:03o}); type: {typed}")
            return file.read()
    except (OSError, UnicodeDecodeError):
        raise UserError(f"{option} {path}: cannot be read") from None


def worker(parsed: argparse.Namespace) -> None:
    from ddrl.inference.worker import give_up, work
    from ddrl.system.calls import watched

    endpoint = _endpoint(parsed, parsed.connect)
    with watched(give_up=give_up):
        work(endpoint, environment=parsed.environment, note=say, patience=parsed.wait)


def resume(parsed: argparse.Namespace) -> int:
    from ddrl.api.launch import train
    from ddrl.api.settings import check_task
    from ddrl.training.config.run_config import load_run_config

    directory = the_run(parsed.directory)
    path = directory / "config.json"
    config = load_run_config(path)
    check_task(config, path)
    return INTERRUPTED if train(config, directory, quiet=parsed.quiet) == "interrupted" else 0


def bench(parsed: argparse.Namespace) -> None:
    from ddrl import bench
    from ddrl.bench.defaults import read_settings
    from ddrl.bench.measure import write_result
    from ddrl.bench.sweep import parse_axes
    from ddrl.training.config.overrides import merged, parse_settings

    overrides = read_settings(parsed.config) if parsed.config else {}
    if parsed.network:
        overrides = merged(overrides, {"hyperparameters": {"network": parsed.network}})
    if parsed.precision:
        overrides = merged(overrides, {"precision": parsed.precision})
    overrides = merged(overrides, parse_settings(parsed.set, "--set "))
    check_output(parsed.json)
    keep = partial(write_result, parsed.json) if parsed.json else lambda result: None
    measuring: dict[str, Any] = {"seconds": parsed.seconds, "repeats": parsed.repeats, "note": say, "keep": keep}
    if parsed.all is not None:
        if parsed.algorithm or parsed.runtime or parsed.inference or parsed.sweep is not None:
            raise UserError("bench --all: its systems have topologies of their own; allowed beside it: --config, --set")
        systems = bench.system_configs(parsed.all, overrides)
        print(bench.describe_all(bench.bench(list(systems.values()), names=list(systems), **measuring)))
        return
    if not parsed.environment:
        raise UserError("bench: say which algorithm and environment, such as: ddrl bench impala atari/pong; or --all")
    configs = bench.grid(
        parsed.algorithm,
        parsed.environment,
        overrides,
        runtimes=list(dict.fromkeys(parsed.runtime or [])),
        inferences=list(dict.fromkeys(parsed.inference or [])),
        axes=parse_axes(parsed.sweep) if parsed.sweep is not None else {},
        note=say,
    )
    print(bench.describe(bench.bench(configs, **measuring)))


def roundtrip(parsed: argparse.Namespace) -> None:
    from ddrl.bench import inference_service
    from ddrl.training.records.recorder import write_json

    check_output(parsed.json)
    layouts = [(workers, envs, how) for how in parsed.transport for envs in parsed.envs for workers in parsed.workers]
    result = inference_service.roundtrip(layouts, seconds=parsed.seconds, repeats=parsed.repeats, note=say)
    print(inference_service.describe(result))
    if parsed.json:
        write_json(parsed.json, result)


def evaluate(parsed: argparse.Namespace) -> None:
    import json
    from dataclasses import asdict

    from ddrl.api import evaluation
    from ddrl.training.config.overrides import parse_settings

    asked = {"episodes": parsed.episodes, "seed": parsed.seed, "task": parsed.task, "greedy": parsed.greedy}
    asked |= {"environment": parse_settings(parsed.environment, f"{ENVIRONMENT} "), "where": ENVIRONMENT}
    with _progress_line() as show:
        found = list(evaluation.evaluate(the_run(parsed.directory), **asked, progress=show))
    if parsed.json:
        print(json.dumps([asdict(one) for one in found], indent=1))
    else:
        print("\n".join(one.describe(with_task=len(found) > 1) for one in found))


def export(parsed: argparse.Namespace) -> None:
    from ddrl.api.export import export

    print(export(the_run(parsed.directory)).describe())


def watch(parsed: argparse.Namespace) -> None:
    from ddrl.cli.video import watch
    from ddrl.training.config.overrides import parse_settings

    with _progress_line() as show:
        film = watch(
            parsed.directory,
            parsed.output,
            episodes=parsed.episodes,
            seed=parsed.seed,
            task=parsed.task,
            environment=parse_settings(parsed.environment, f"{ENVIRONMENT} "),
            where=ENVIRONMENT,
            max_steps=parsed.max_steps,
            greedy=parsed.greedy,
            progress=show,
        )
    print(f"{parsed.output}: {film.describe()}")


@contextmanager
def _progress_line() -> Iterator[Callable[[str], None]]:
    """Show the newest line of progress on standard error: in place in a terminal, elsewhere every `LINE_SECONDS`."""
    in_terminal = SafeStandardError().isatty()
    start, end, pause = ("\r\033[K", "", 0.1) if in_terminal else ("", "\n", LINE_SECONDS)
    last = time.monotonic()

    def show(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= pause:
            last = time.monotonic()
            say(f"{start}{line}", end=end)

    try:
        yield show
    finally:
        if in_terminal:
            say(start, end="")


def plot(parsed: argparse.Namespace) -> None:
    from ddrl.cli import plotting

    shown = (parsed.metric, parsed.x, parsed.points)
    if parsed.output:
        plotting.check_output(parsed.output)
    curves = plotting.curves_of(parsed.runs, *shown)
    if parsed.output:
        plotting.save(curves, parsed.output, *shown)
        print(f"{parsed.output}: {counted(len(curves), 'curve')} of {parsed.metric}")
    else:
        print("\n\n".join(plotting.terminal(curves, parsed.metric, parsed.x)))


def verify(parsed: argparse.Namespace) -> int:
    """Return 0 where all checks pass, 1 where one fails."""
    from ddrl.cli.inspection import verify
    from ddrl.regression import WORDS, describe, exit_status, verify_against, write_junit

    check_output(parsed.junit)
    # The comparison comes first: it refuses folders before it reads runs.
    directory = folder_of(parsed.directory)
    compared = [] if parsed.against is None else [verify_against(directory, _reference(parsed.against))]
    groups = [list(verify(directory)), *compared]
    checks = [check for group in groups for check in group]
    print("\n".join(map(describe, checks)))
    counts = {word.lower(): sum(check.passed is value for check in checks) for value, word in WORDS.items()}
    print(
        f"{counted(len(checks), 'check')}: " + ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    )
    if parsed.junit:
        write_junit(checks, parsed.junit)
    return max(map(exit_status, groups))  # a comparison that compared nothing has not passed


def _reference(named: Path) -> Path:
    """Return `results/<named>` where only that folder exists, so that `reference` means the committed runs."""
    inside = Path("results") / named
    return inside if not named.exists() and inside.is_dir() else named


def merge(parsed: argparse.Namespace) -> int:
    from ddrl.cli.merge import merge

    done = merge(parsed.folders, parsed.into, dry_run=parsed.dry_run)
    for path in done.copied:
        print(path)
    for reason in done.skipped:
        say(f"left out: {reason}")
    for reason in done.failed:
        say(f"ddrl: {reason}")
    verb = "would be copied" if parsed.dry_run else "copied"
    copied, left_out = counted(len(done.copied), "run"), len(done.skipped) + len(done.failed)
    print(f"{copied} {verb} into {parsed.into}, {done.present} already there, {left_out} left out")
    return 2 if done.failed else 0


def report(parsed: argparse.Namespace) -> None:
    from ddrl.cli.tables import checkout, places
    from ddrl.report import rebuild

    root, roots = places(parsed.replications)
    papers = [parsed.paper] if parsed.paper else None
    folders = {"results": parsed.results or root / "results", "output": parsed.output or root / "reports"}
    written = rebuild(papers, parsed.scale, **folders, root=checkout(LAYOUT), replications=roots)
    print("\n".join(map(str, written)))


def ledger(parsed: argparse.Namespace) -> None:
    """Print the claims or the cells of papers, as `parsed.kind` says."""
    from ddrl.cli import tables

    root, roots = tables.places(parsed.replications)
    results = parsed.results or root / "results"
    table, sources = tables.load(parsed.kind, roots, results, parsed.paper, parsed.scale, parsed.verdict)
    if parsed.form == "text":
        for source in sources:
            say(source)
        tables.print_rows(tables.rows(parsed.kind, table))
        print(tables.tally(table))
    else:
        print(tables.machine_readable(table, parsed.form))


def plan(parsed: argparse.Namespace) -> None:
    from ddrl.cli import planning, tables
    from ddrl.slurm.site import load_for

    root, roots = tables.places(parsed.replications)
    chosen = tables.chosen_papers(roots, parsed.paper)
    site = load_for(parsed.site, roots) if parsed.site else None
    if parsed.results and not parsed.results.is_dir():
        raise UserError(f"{parsed.results}: no such folder")
    lines = planning.plan(chosen, parsed.scale, results=parsed.results or root / "results", root=roots)
    tables.print_rows(planning.rows(lines))
    for line in [*planning.unmeasured(lines), *(planning.wide(lines) if len(chosen) == 1 else [])]:
        print(line)
    if site:
        print("\n".join(planning.too_long(lines, site, parsed.scale)))


def systems(parsed: argparse.Namespace) -> None:
    from ddrl.analysis.tables.systems import systems
    from ddrl.cli import tables

    table = systems(tables.places(parsed.replications)[1])
    if parsed.form == "text":
        tables.print_rows(tables.system_rows(table))
    else:
        print(tables.machine_readable(table, parsed.form))


def list_(parsed: argparse.Namespace) -> None:
    """Print what there is of a kind."""
    import json

    from ddrl.cli import listing, tables

    rows = listing.rows(parsed.what, parsed.name, parsed.replications)
    if parsed.json:
        print(json.dumps(rows, indent=1))
    else:
        tables.print_rows(rows)


def completion(parsed: argparse.Namespace) -> None:
    from ddrl.cli.completion import script

    print(script(parsed.parser(), parsed.shell))


def new(parsed: argparse.Namespace) -> None:
    """Print the files that were written, and what to type next."""
    from ddrl.cli.new import new

    made = new(parsed.kind, parsed.name, parsed.into)
    print("\n".join([*(f"wrote {file}" for file in made.files), "next:", *(f"  {line}" for line in made.commands)]))


def doctor(parsed: argparse.Namespace) -> int:
    """Return 1 where a required part is missing."""
    from ddrl.cli import doctor

    missing = 0
    for section, findings in doctor.sections(every_example=parsed.all).items():
        print(section, flush=True)
        for finding in findings:
            missing += finding.required and not finding.fine
            print(f"  {finding.describe()}", flush=True)
    parts = f"{counted(missing, 'required part')} {'is' if missing == 1 else 'are'}"
    print(f"{parts} missing" if missing else "everything required is there")
    return 1 if missing else 0
