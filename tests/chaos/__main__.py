"""Disturbs real runs in every way that can be made to happen at will, and counts what is lost.

python -m tests.chaos --kills 100 --faults 100 --messages 100000 --files 100 --soak 0.1 --json chaos.json

kills     SIGKILL at random moments: a serial run ends with the same bits, others lose no more than an interval
faults    an error, or SIGKILL, at the n-th write, fsync, rename, ... of a run
messages  fuzzed messages to the inference service
files     each kind of file of a run damaged in each way
soak      hours of training: memory, descriptors, threads and shared memory stay as they are

Each row of the table is one kind of disturbance; the exit code is 1 where anything was lost, crashed or left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: one thread per role

import numpy as np

from tests.chaos import bad_files, child, faults, kills, messages, soak
from tests.chaos.systems import all_systems
from tests.chaos.tally import Tally


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; return the exit code."""
    parsed = _parser().parse_args(arguments)
    child.warm()
    systems = [system for system in all_systems() if any(word in system.name for word in parsed.systems)]
    if not systems:
        print(f"chaos: no system is called {' or '.join(parsed.systems)}", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="ddrl-chaos-", dir=parsed.folder))
    tally = Tally(lambda line: print(line, flush=True))
    generator = np.random.default_rng(parsed.seed)
    print(f"in {folder}, seed {parsed.seed}", flush=True)
    try:
        kills.kill(systems, parsed.kills, folder / "kills", generator, tally)
        faults.inject(systems, parsed.faults, folder / "faults", generator, tally)
        messages.fuzz(parsed.messages, folder / "messages", generator, tally)
        bad_files.damage(parsed.files, folder / "files", generator, tally)
        soak.soak(systems, parsed.soak, folder / "soak", tally)
    except KeyboardInterrupt:
        print("interrupted; what was done until now:")
    print("\n".join(["", *tally.summary()]))
    if parsed.json:
        parsed.json.parent.mkdir(parents=True, exist_ok=True)
        parsed.json.write_text(json.dumps(_result(parsed.seed, arguments, tally), indent=1) + "\n")
    if tally.failed:
        print(f"{tally.failed} failed; what they left is in {folder}")
        return 1
    shutil.rmtree(folder)
    print("all held")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="SIGKILLs at random moments")
    parser.add_argument("--faults", type=int, default=0, metavar="N", help="faults at the n-th call of a kind")
    parser.add_argument("--messages", type=int, default=0, metavar="N", help="fuzzed messages, one of 50 to a service")
    parser.add_argument("--files", type=int, default=0, metavar="N", help="damaged files")
    parser.add_argument("--soak", type=float, default=0.0, metavar="HOURS", help="of training")
    parser.add_argument("--systems", nargs="+", default=[""], metavar="WORDS", help="parts of names, such as 'serial'")
    parser.add_argument("--seed", type=int, default=0, help="of moments, places and bytes (%(default)s)")
    parser.add_argument("--folder", type=Path, help="where the runs are kept meanwhile (the system's, if left out)")
    parser.add_argument("--json", type=Path, help="write the table to this file, with command, commit and machine")
    return parser


def _result(seed: int, arguments: Sequence[str] | None, tally: Tally) -> dict[str, object]:
    from ddrl.training.records import manifest

    return {
        "command": shlex.join(["python", "-m", "tests.chaos", *_repeatable(arguments or sys.argv[1:])]),
        "seed": seed,
        "finished": manifest.now(),
        **manifest.provenance(),
        "failed": tally.failed,
        "rows": [row.as_json() for row in tally.rows],
    }


def _repeatable(arguments: Sequence[str]) -> list[str]:
    """Without the places on this machine."""
    places = ("--json", "--folder")
    before = ["", *arguments]
    return [one for one, last in zip(arguments, before, strict=False) if one not in places and last not in places]


if __name__ == "__main__":
    sys.exit(main())
