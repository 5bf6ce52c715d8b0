"""The verdicts on claims: the one list of them, with the words, colours and marks that every output uses.

No other file lists them (`tests/papers/claim_verdicts_test.py`). What an obstacle is stands here too: the reason for
which a claim is not decided by the runs there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """What our runs say of a claim, and how it is written."""

    name: str
    stated: str
    """What a sentence says of one claim and of several: "is supported|are supported"."""
    answered: str
    """The same in the answer of a report, "holds|hold"; empty if it is counted apart."""
    meaning: str
    decided: bool
    """True if the claim is decided: by the runs for it, against it, or as no difference."""
    colour: str
    """Colour in figures."""
    terminal: str
    """Colour in a terminal; empty: the usual one."""
    dark: bool = True
    """True if a number on the colour must be white."""

    @property
    def words(self) -> str:
        """The verdict in a table or on a tag."""
        return self.name.replace("_", " ")


VERDICTS: Mapping[str, Verdict] = {
    verdict.name: verdict
    for verdict in (
        Verdict(
            "supported",
            "is supported|are supported",
            "holds|hold",
            "the runs show what the paper says",
            True,
            "#009e73",
            "green",
        ),
        Verdict(
            "no_difference",
            "shows no difference|show no difference",
            "shows no difference|show no difference",
            "the whole interval lies within the smallest effect that counts, which is fixed beforehand as a number or "
            "as a share of a task’s scale (taken from the runs where no reference is known): what the paper says makes "
            "no difference that counts here, and the opposite does not hold either. Of a claim that needs several "
            "comparisons one shows none, and all rule out the opposite: it does not hold as stated",
            True,
            "#0072b2",
            "cyan",
        ),
        Verdict(
            "contradicted",
            "is contradicted at the paper’s own setting|are contradicted at the paper’s own setting",
            "does not hold at the paper’s own setting|do not hold at the paper’s own setting",
            "the runs show the opposite, on the paper’s tasks and hardware, with its settings and its budget",
            True,
            "#a63603",
            "red",
        ),
        Verdict(
            "contradicted_here",
            "is contradicted on these stand-ins|are contradicted on these stand-ins",
            "does not hold on these stand-ins|do not hold on these stand-ins",
            "the runs show the opposite, but on tasks, a budget, settings or hardware that stand in for the paper’s; "
            "the detail says which",
            True,
            "#d55e00",
            "red",
        ),
        Verdict(
            "inconclusive",
            "is inconclusive|are inconclusive",
            "remains open|remain open",
            "the interval is too wide to say whether the claim holds, or there are too few seeds for a test",
            False,
            "#e69f00",
            "yellow",
            dark=False,
        ),
        Verdict(
            "not_testable",
            "cannot be tested here|cannot be tested here",
            "cannot be tested here|cannot be tested here",
            "these runs cannot show it: it needs a GPU, more cores, more tasks or more configurations; or variants "
            "that are compared are not shown to be above random play, or are at the best there is. What was measured "
            "is shown",
            False,
            "#aeb4bd",
            "magenta",
            dark=False,
        ),
        Verdict(
            "not_run",
            "has no run|have no run",
            "",
            "there is no run of the claim’s experiment; the experiment is named",
            False,
            "#e7e9ec",
            "",
            dark=False,
        ),
    )
}
"""Verdict by name, in the order of every table and figure."""
CLAIM_VERDICTS: tuple[str, ...] = tuple(VERDICTS)
DECIDED: tuple[str, ...] = tuple(name for name, verdict in VERDICTS.items() if verdict.decided)
"""The verdicts that decide a claim."""
TESTED: tuple[str, ...] = tuple(name for name in VERDICTS if name != "not_run")
"""The verdicts on claims that some run speaks of."""

OBSTACLES: Mapping[str, str] = {
    "gpu": "needs a GPU",
    "cores": "needs more cores",
    "tasks": "needs more tasks",
    "nobody_learned": "nobody learned",
    "ceiling": "at the ceiling",
    "settings": "needs more configurations",
}
"""Obstacle that leaves a claim `not_testable` -> what is said of it."""
DISTURBANCES: Mapping[str, str] = {
    "budgets": "unequal budgets",
    "hardware": "times of different machines",
    "seeds": "too few seeds",
    "few_settings": "too few settings in common",
    "values": "values that the test cannot take",
    "silent": "no run reached the return",
    "tuned": "settings chosen with its seeds",
    "unplanned": "runs that are not in the plan",
    "missing": "planned runs that are missing",
}
"""Obstacle that leaves a claim `inconclusive`, since other runs would remove it -> what is said of it."""


def goal(kind: str, *, beyond_line: bool) -> str:
    """Return what a number of seeds would show, and its condition; `beyond_line`: of a claim that is held to a line."""
    if kind == "alike":
        return "show that they are alike if they are equal"
    return "show an effect that lies a margin beyond the line" if beyond_line else "show no difference if there is none"


def seeds_said(row: Mapping[str, str]) -> str:
    """Return what the `seeds_needed` of a row of claims.csv would show; empty where the row does not say."""
    if not row.get("seeds_needed"):
        return ""
    count, kind = int(float(row["seeds_needed"])), row.get("kind", "")
    if "seeds" in row.get("obstacle", "").split(";"):
        return f"a test needs {count} seeds a group"
    of_one = ("at_least", "ratio", "no_worse", "up_to")
    has_lines = row.get("contradicted_below") or row.get("supported_above")
    one_line = has_lines and row.get("contradicted_below") == row.get("supported_above")
    # Times that were cut have two lines, a factor and none; their unit is that of a factor.
    of_factor = kind == "time_to_reach" and row.get("effect_unit", "").startswith("times as ")
    would = goal(kind, beyond_line=bool(kind in of_one or one_line or of_factor))
    return f"{count} {'settings' if kind == 'stability' else 'seeds a group'} would {would}"


def said(verdict: str, obstacle: str = "") -> str:
    """Return a verdict in words, with what a claim that is not testable needs: `not testable: needs a GPU`."""
    needs = [OBSTACLES[name] for name in obstacle.split(";") if name in OBSTACLES]
    words = VERDICTS[verdict].words
    return f"{words}: {', '.join(needs)}" if verdict == "not_testable" and needs else words
