"""The first page: the answer, and one line for each claim with its effect beside what is too small to count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddrl.papers.paper import load_paper
from ddrl.regression.report_texts import pdf_lines
from ddrl.report import pdf_bytes
from ddrl.report.paper import short_title
from ddrl.report.sections.answers import after_runs, answer, answers, best_findings, effect_note
from ddrl.report.sections.document import Document, Origin, Plot, Row, as_json
from ddrl.report.sections.spans import Span

ROOT = Path(__file__).parents[2] / "replications"
EFFECT = {
    "effect": "1.5",
    "effect_unit": "return",
    "ci95_low": "1",
    "ci95_high": "2",
    "contradicted_below": "-0.25",
    "supported_above": "0.25",
}


def claim(name: str, verdict: str, origin: str = "reference", **columns: str) -> Row:
    nothing = dict.fromkeys(EFFECT, "")
    facts = {"claim": name, "title": name.title(), "verdict": verdict, "origin": origin, "seeds": "3", "tasks": "Catch"}
    return nothing | facts | columns


def plot_of(**columns: str) -> Plot:
    (line,) = answers([claim("a", "supported", **EFFECT | columns)], "reference").rows
    assert line.plot is not None
    return line.plot


def test_the_claims_that_are_decided_and_whose_test_came_after_runs_are_counted() -> None:
    found = [claim("a", "supported", late_runs="6"), claim("b", "contradicted", late_runs="0"), claim("c", "supported")]
    assert after_runs([*found, claim("d", "inconclusive", late_runs="3")]) == "1 of 3"
    assert after_runs([]) == "0 of 0"


def test_the_first_page_says_after_how_many_runs_a_test_or_settings_came() -> None:
    def said(**counts: str) -> str:
        (line,) = answers([claim("a", "supported", plan_runs="6", **counts)], "reference").rows
        return line.origin

    assert said(late_runs="6", resettled_runs="0") == "test after 6 of 6 runs"
    assert (
        said(late_runs="0", resettled_runs="2", redefined_runs="3") == "settings after 2, own setting after 3 of 6 runs"
    )
    assert said(late_runs="0") == ""


@pytest.mark.parametrize(
    ("verdicts", "sentence"),
    [
        (
            ["supported", "supported", "contradicted", "inconclusive", "not_run", "not_run"],
            "Of the 4 claims that our runs speak of, 3 are decided: 2 hold and 1 does not hold at the "
            "paper’s own setting; 1 remains open; 2 more claims have no run yet.",
        ),
        (
            ["contradicted_here", "contradicted_here", "no_difference", "not_testable"],
            "Of the 4 claims that our runs speak of, 3 are decided: 1 shows no difference and 2 do not hold on these "
            "stand-ins; 1 cannot be tested here.",
        ),
        (
            ["supported", "not_run"],
            "Of the 1 claim that our runs speak of, 1 is decided: 1 holds; 1 more claim has no run yet.",
        ),
        (["inconclusive"], "Of the 1 claim that our runs speak of, 1 remains open."),
        (["not_run"], "No run has tested any of the 1 claim yet."),
    ],
)
def test_the_answer_says_how_many_claims_hold_in_one_sentence(verdicts: list[str], sentence: str) -> None:
    assert answer((claim(str(n), verdict) for n, verdict in enumerate(verdicts)), {}) == sentence


@pytest.mark.parametrize(
    ("verdicts", "cells", "said"),
    [
        (
            ["not_run"] * 6,
            {"equivalent": 10, "not_run": 68},
            "Of the 10 published cells that our runs compare with, 10 are equivalent. "
            "No run has tested any of the 6 claims yet.",
        ),
        (
            ["inconclusive"],
            {"consistent": 1, "below": 2, "inconclusive": 3, "not_comparable": 4, "not_run": 5},
            "Of the 6 published cells that our runs compare with, 1 is consistent with ours, 2 lie above what we reach "
            "and 3 are inconclusive. Of the 1 claim that our runs speak of, 1 remains open.",
        ),
        ([], {"above": 1}, "Of the 1 published cell that our runs compare with, 1 lies below what we reach."),
        (
            ["not_run"],
            {"inconclusive": 2, "not_comparable": 1, "not_run": 5},
            "No run has tested any of the 1 claim yet.",
        ),
        ([], {}, "There is nothing to decide yet."),
    ],
)
def test_the_answer_begins_with_the_published_cells_where_their_numbers_compare_with_ours(
    verdicts: list[str], cells: dict[str, int], said: str
) -> None:
    assert answer([claim(str(n), verdict) for n, verdict in enumerate(verdicts)], cells) == said


def test_claims_without_a_run_share_the_last_line() -> None:
    rows = [claim("a", "inconclusive"), claim("b", "not_run"), claim("c", "not_run")]
    *_, last = answers(best_findings(rows, "reference"), "reference").rows
    assert (last.verdict, last.said, last.title, last.seeds, last.tasks) == ("not_run", "2 not run", "B; C", "", "")
    (alone,) = answers([claim("b", "not_run")], "reference").rows
    assert (alone.said, alone.title) == ("not run", "B")
    assert answers([claim("a", "inconclusive")], "reference").rows[0].title == "A"


def test_the_lines_of_a_paper_with_many_claims_and_few_tests_end_on_the_first_page(tmp_path: Path) -> None:
    claims = load_paper(ROOT / "impala_2018").claims
    late = {"late_runs": "90", "resettled_runs": "15", "redefined_runs": "15", "plan_runs": "90"}
    verdicts = ["inconclusive"] * 16 + ["not_run"] * (len(claims) - 16)
    lines = [
        answers(
            [
                claim(one.name, verdict, title=one.title, **EFFECT, **(late if n % 2 else {}))
                for n, (one, verdict) in enumerate(zip(claims, verdicts, strict=True))
            ],
            "reference",
        )
    ]
    assert len(claims) > 35
    page = document(answer="An answer of two lines. " * 5, answers=lines, effects=effect_note(lines))
    path = tmp_path / "report.pdf"
    path.write_bytes(pdf_bytes(page, tmp_path))
    effect = [place for place, line in pdf_lines(path).items() if line.startswith("Effect: each claim")]
    assert [place.split(" line ")[0] for place in effect] == ["page 1"]


def document(**fields: Any) -> dict[str, Any]:
    """The data of a report on IMPALA without any section."""
    title = "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures"
    whole = Document(
        kind="paper",
        above="A replication of",
        title=title,
        short_title="IMPALA",
        byline=(Span("Lasse Espeholt et al. Proceedings of the 35th International Conference on Machine Learning"),),
        summary="",
        scale="reference",
        date="1 January 2026",
        finished="2026-01-01T00:00:00+00:00",
        facts=(),
        after_runs="",
        verdict="",
        tallies=(),
        sections=(),
        origin=Origin("results", "0", "ddrl report"),
        **fields,
    )
    return as_json(whole)


def test_each_claim_has_one_line_and_those_that_hold_come_first() -> None:
    rows = [claim("a", "not_run"), claim("b", "inconclusive"), claim("c", "contradicted"), claim("d", "supported")]
    lines = answers(best_findings(rows, "reference"), "reference").rows
    assert [line.title for line in lines] == ["D", "C", "B", "A"]


@pytest.mark.parametrize(
    ("own", "reference", "shown"),
    [
        ("supported", "contradicted", "run"),
        ("inconclusive", "inconclusive", "run"),
        ("inconclusive", "supported", "reference"),
        ("not_run", "inconclusive", "reference"),
        ("not_run", "not_run", "run"),
    ],
)
def test_a_line_is_about_reference_runs_only_where_they_say_more(own: str, reference: str, shown: str) -> None:
    (row,) = best_findings([claim("a", own, "run"), claim("a", reference)], "run")
    assert row["origin"] == shown
    (line,) = answers([row], "run").rows
    assert line.origin == ("reference" if shown == "reference" else "")


@pytest.mark.parametrize(
    ("own", "shown"),
    [
        ({"seeds": "1", "effect": "1.5"}, "reference"),
        ({"seeds": "3"} | EFFECT, "run"),
        ({"seeds": "2"} | EFFECT, "reference"),
        ({"seeds": "5"} | EFFECT, "run"),
    ],
)
def test_of_two_origins_with_one_verdict_the_line_is_of_that_with_an_interval_and_then_of_more_seeds(
    own: dict[str, str], shown: str
) -> None:
    rows = [claim("a", "inconclusive", "run", **own), claim("a", "inconclusive", "reference", **EFFECT)]
    (row,) = best_findings(rows, "run")
    assert row["origin"] == shown


@pytest.mark.parametrize(
    ("thresholds", "said", "unsaid"),
    [
        ([("-0.25", "0.25")], "In the grey area", "grey line"),
        ([("0", "0")], "At the grey line", "grey area"),
        ([("-0.25", "0.25"), ("0", "0")], "In the grey area, or at the grey line", "both"),
    ],
)
def test_the_note_below_the_effects_names_only_what_is_drawn(
    thresholds: list[tuple[str, str]], said: str, unsaid: str
) -> None:
    claims = [
        claim("a", "supported", **EFFECT | {"contradicted_below": low, "supported_above": high})
        for low, high in thresholds
    ]
    note = effect_note([answers(claims, "reference")])
    assert said in note
    assert unsaid not in note
    assert effect_note([answers([claim("a", "not_run")], "reference")]) == ""


def test_a_report_is_listed_under_the_name_by_which_the_paper_is_known() -> None:
    found = {key: short_title(dict(load_paper(ROOT / key).citation)) for key in ("a3c_2016", "impala_2018")}
    assert found["a3c_2016"].startswith("A3C: Asynchronous Methods")
    assert found["impala_2018"] == "IMPALA (Espeholt et al. 2018)"


def test_claims_of_two_papers_may_have_the_same_name() -> None:
    rows = [claim("a", "supported", paper="one"), claim("a", "inconclusive", paper="two")]
    assert len(best_findings(rows, "reference", "paper")) == 2


def test_an_effect_lies_right_of_the_lines_where_the_claim_holds_and_left_where_the_opposite_does() -> None:
    holds = plot_of()
    assert 0 < holds.below < 0.5 < holds.above < holds.low < holds.effect < holds.high < 1
    fails = plot_of(effect="-1.5", ci95_low="-2", ci95_high="-1")
    assert 0 < fails.low < fails.effect < fails.high < fails.below < 0.5
    assert holds.text == "1.50 return, 95\u00a0% interval [1, 2]"


def test_the_middle_of_the_axis_is_the_threshold_of_a_ratio() -> None:
    ratio = plot_of(effect="2", ci95_low="1", ci95_high="3", contradicted_below="2", supported_above="2")
    assert ratio.effect == ratio.below == ratio.above == 0.5
    exact = dict.fromkeys(("effect", "ci95_low", "ci95_high", "contradicted_below", "supported_above"), "2")
    assert plot_of(**exact).low == 0.5


def test_many_tasks_are_counted_and_named_on_demand() -> None:
    (line,) = answers([claim("a", "inconclusive", tasks="Catch; Pong; Qbert")], "reference").rows
    assert (line.tasks, line.every_task, line.plot) == ("3 tasks", "Catch, Pong and Qbert", None)
