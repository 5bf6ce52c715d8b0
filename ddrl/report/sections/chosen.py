"""What stands behind the runs of a report: discarded ones, tuning, and rules for all claims that came after runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddrl.papers import discarded as discarded_runs
from ddrl.papers.table_names import REFERENCE
from ddrl.papers.tuning import NOT_RECORDED
from ddrl.report.sections.document import NOTHING, Block, Fact, Facts, Field, Group, Row, Table
from ddrl.report.sections.numbers import frames
from ddrl.report.sections.spans import joined, plain, small
from ddrl.report.sections.tables import Fields, grouped, right, table_of
from ddrl.report.sections.text import counted, listed, sentence

LEDGER = f"results/{REFERENCE}/{discarded_runs.LEDGER}"
SHOWN = ("what", "source", "tasks", "seeds", "runs", "frames")


def discarded(found: Mapping[str, int], experiments: Mapping[str, Any]) -> Fact:
    """Return how many reference runs of which experiments (name -> number) were dropped or replaced."""
    if not found:
        return Fact("Discarded runs", "no reference run of this paper was ever dropped or replaced")
    names = {name: experiments[name]["title"] if name in experiments else name for name in found}
    parts = listed([f"{number} of “{names[name]}”" for name, number in found.items()])
    number = counted(sum(found.values()), "reference run")
    return Fact("Discarded runs", f"{number} dropped or replaced, each with its reason in {LEDGER}: {parts}")


def tuning(experiments: Mapping[str, Any]) -> Table:
    """Return how the settings of the systems of all experiments were chosen, and at what price.

    An experiment of which nothing is known has a row that says so.
    """
    rows: list[Row] = []
    for facts in experiments.values():
        found, labels = facts.get("tuning", []), facts.get("labels", {})
        title = {"experiment": facts["title"]}
        for entry in found or [{"what": NOT_RECORDED, "source": ""}]:
            systems = listed([labels.get(one, one) for one in entry.get("variants", ())])
            rows.append(title | {name: _text(entry.get(name)) for name in SHOWN} | {"systems": systems or "all"})
    fields: Fields[Row] = (
        Field("Systems", lambda row: row["systems"], "0.9fr"),
        Field("What was chosen", lambda row: joined([plain(sentence(row["what"])), small(row["source"])]), "2fr"),
        Field("Tasks", lambda row: row["tasks"], "1.4fr"),
        Field("Seeds", lambda row: row["seeds"], "0.6fr"),
        right("Runs", lambda row: row["runs"]),
        right("Frames", lambda row: row["frames"] if row["frames"] == NOTHING else frames(row["frames"])),
    )
    groups = [Group(own, title) for (title,), own in grouped(rows, "experiment").items()]
    note = (
        "From experiments.yaml. A dash: not recorded. Seeds with which settings were chosen on a task are no test "
        "seeds on it."
    )
    return table_of("Tuning budget of each system", "tables/summary.json", fields, groups, note, size=8.2)


def _text(value: Any) -> str:
    """Return a value of an entry as text; a dash where it is not recorded."""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or NOTHING
    return NOTHING if value is None else str(value)


def younger_rules(rules: list[Row]) -> Table:
    """Return the rules for all claims that came after some of the runs."""
    fields: Fields[Row] = (
        Field("Since", lambda row: row["date"], "0.6fr"),
        Field("Rule", lambda row: sentence(row["text"]), "4fr"),
        right("Runs before it", lambda row: f"{row['older']} of {row['runs']}"),
    )
    caption = "Rules for all claims that came after some of the runs"
    return table_of(caption, "tables/summary.json", fields, [Group(rules)], size=8.2)


def behind(summary: Mapping[str, Any]) -> list[Block]:
    """Return the blocks of a paper's report; of `summary.json`, whose experiments have their tuning."""
    experiments, rules = summary["experiments"], summary["rules"]
    blocks: list[Block] = [
        Facts([discarded(summary.get("discarded", {}), experiments)]),
        tuning(experiments),
    ]
    return [*blocks, younger_rules(rules)] if rules else blocks
