"""The trained agents that are committed (`ddrl list agents`), and the table in their README.

`python -m ddrl.cli.agents` writes the table anew; a test fails where it differs from the runs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ddrl.cli.tables import checkout
from ddrl.errors import UserError
from ddrl.system.csv_cells import read_rows
from ddrl.system.exit_code import exit_code
from ddrl.system.files import below, read_file, write_whole

FOLDER = Path("results/reference/agents")
RANDOM_PLAY = "random_play.csv"
"""Scores of uniform random actions, as `python -m ddrl.environments.tools.random_play` prints them."""
POLICY = "policy.safetensors"
BEGIN, END = "<!-- table -->\n", "<!-- end of the table -->"


def agents(root: Path, name: str | None = None) -> Iterator[dict[str, str]]:
    """Yield a row for each committed agent, or for those of one algorithm."""
    from ddrl.api.runs import Run

    folder = root / FOLDER
    random = {row["task"]: float(row["random"]) for row in read_rows(folder / RANDOM_PLAY)}
    for path in below(folder, POLICY):
        run = Run(path.parent)
        config, manifest = run.config, run.manifest
        if name not in (None, config.algorithm):
            continue
        task = str(config.environment["name"])
        yield {
            "agent": path.parent.relative_to(root).as_posix(),
            "algorithm": config.algorithm,
            "task": task,
            "frames": f"{manifest['env_frames']:,}",
            "minutes": f"{manifest['seconds'] / 60:.1f}",
            "final return": f"{run.final_return:.2f}",
            "random play": f"{random[task.partition('/')[2]]:.2f}",
            "megabytes": f"{path.stat().st_size / 1e6:.2f}",
        }


def markdown(rows: list[Mapping[str, str]]) -> str:
    """Return rows as a table in Markdown; columns of numbers are aligned to the right."""
    columns = list(rows[0])
    numbers = [all(re.fullmatch(r"-?[\d,.]+", row[column]) for row in rows) for column in columns]
    lines = [columns, ["---:" if number else "---" for number in numbers], *([*row.values()] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page(root: Path) -> tuple[Path, str]:
    """Return the path of the README of the agents, and its text with the present table."""
    path = root / FOLDER / "README.md"
    before, begin, rest = read_file(path).decode().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UserError(f"{path}: has no lines '{BEGIN.strip()}' and '{END}' for the table")
    return path, f"{before}{begin}{markdown(list(agents(root)))}{end}{after}"


def main() -> int:
    """Write the README anew; return the exit code."""

    def command() -> None:
        path, text = page(checkout())
        write_whole(path, text.encode())
        print(path)

    return exit_code(command)


if __name__ == "__main__":
    sys.exit(main())
