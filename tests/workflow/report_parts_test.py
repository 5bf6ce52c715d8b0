"""Parts of a report from a few rows: claims beside published numbers, clocks and frames named, nothing empty."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ddrl.analysis.runs.efficiency import COLUMNS as EFFICIENCY
from ddrl.analysis.tables.build import used_published
from ddrl.analysis.tables.runs import hyperparameter_table
from ddrl.papers.experiments import papers
from ddrl.papers.paper import load_paper
from ddrl.papers.published import load_published
from ddrl.report.paper import budget
from ddrl.report.sections.cells import uncovered
from ddrl.report.sections.claims import claims, ledger, without_run
from ddrl.report.sections.document import Document, Group, Origin, Row, Section, Table, Text, as_json
from ddrl.report.sections.efficiency import efficiency
from ddrl.report.sections.runs import BAND, drawings, learned, run_list, side_by_side
from ddrl.report.sections.spans import plain
from ddrl.report.sections.speed import systems
from ddrl.report.sections.tables import Fields, numeric, table_of

IMPACT = Path(__file__).parents[2] / "replications" / "impact_2020"
CLAIM: dict[str, str] = {
    **dict.fromkeys(("hedges_g", "seeds_needed", "detail"), ""),
    "claim": "sooner",
    "paper": "impact_2020",
    "title": "It is sooner",
    "text": "One is sooner than two others.",
    "source": "Abstract",
    "origin": "run",
    "experiment": "discrete",
    "verdict": "inconclusive",
    "effect": "12",
    "effect_unit": "% of the other's time saved",
    "ci95_low": "-3",
    "ci95_high": "25",
    "p": "0.04",
    "p_holm": "0.12",
    "family": "2 claims of impact_2020 tested on run runs",
    "seeds": "3",
    "env_frames": "1000",
    "decided_by": "A against C",
    "comparisons": "A against B: 40 [30, 50]; A against C: 12 [-3, 25]",
    "published": "abstract.impact.discrete.wall_time_saved",
}
MEAN = "Mean over seeds with its 95 % interval"
EXPERIMENTS: dict[str, Any] = {
    name: {"title": name.capitalize(), "scored": True} for name in ("discrete", "continuous")
}


def texts(*blocks: Any) -> str:
    """Everything that the tables and paragraphs say."""
    found: list[str] = []
    for block in blocks:
        if isinstance(block, Text):
            found += [span.text for span in block.spans]
        if isinstance(block, Table):
            found += [column.title for column in block.columns] + [block.note]
            found += [
                "".join(span.text for span in cell.spans) for group in block.groups for r in group.rows for cell in r
            ]
    return "\n".join(found).replace("\u00a0", " ").replace("\u202f", " ")


def published_rows() -> list[dict[str, str]]:
    table = used_published(load_paper(IMPACT), load_published(IMPACT))
    return [
        {str(name): "" if value != value else str(value) for name, value in row.items()}
        for row in table.astype(object).where(table.notna(), "").to_dict("records")
    ]


def test_a_cost_is_printed_with_its_prices_and_where_they_are_from() -> None:
    row = dict.fromkeys([*EFFICIENCY, "cpu", "cores", "gpu"], "1") | {"origin": "run", "experiment": "discrete"}
    row |= {"variant_label": "A", "env_label": "Pong"}
    prices = {"cpu_core_hour": 0.04, "accelerator_hour": 2.0, "source": "a list"}
    said = texts(efficiency([row], EXPERIMENTS, "run", prices))
    assert "at 0.04 for an hour that a core works and 2.00 for an hour that an accelerator is held (a list)" in said
    without = texts(efficiency([row | {"dollars_per_billion_frames": ""}], EXPERIMENTS, "run", None))
    assert "Cost" not in without


def test_a_run_that_lost_records_is_marked_and_the_mark_is_explained() -> None:
    names = ("variant", "variant_label", "env_label", "seed", "env_frames", "frames_per_second", "peak_memory_mib")
    row = dict.fromkeys(names, "1") | {"experiment": "discrete", "seconds": "1", "resumes": "2", "fingerprint": "ab"}
    whole = texts(run_list([row | {"records_lost_bytes": ""}], EXPERIMENTS))
    assert "gap" not in whole.lower()
    lost = texts(run_list([row | {"records_lost_bytes": "311"}, row | {"records_lost_bytes": ""}], EXPERIMENTS))
    assert lost.count("2 (gap)") == 1 and "Gap: records were lost while the run trained" in lost


@pytest.mark.parametrize("verdict", ["inconclusive", "not_run"])
def test_a_claims_published_number_is_printed_though_no_cell_compares_it(verdict: str) -> None:
    rows = [CLAIM | {"verdict": verdict}]
    blocks = [*claims(rows, published_rows(), "run"), *without_run(rows, published_rows(), EXPERIMENTS)]
    said = texts(*blocks)
    assert "IMPACT, against IMPALA: wall time saved 30 %" in said


def test_every_published_number_of_a_claim_of_impact_is_in_the_published_table() -> None:
    paper = load_paper(IMPACT)
    rows = [row["cell"] for row in published_rows()]
    assert len(rows) == len(set(rows))
    assert {cell for claim in paper.claims for cell in claim.published} <= set(rows)


def test_a_claim_shows_all_its_comparisons_and_p_after_holms_correction() -> None:
    said = texts(*claims([CLAIM], [], "run"))
    assert "p = 0.04; decision p = 0.12 (Holm, 2 claims); 3 seeds" in said
    assert "The verdict rests on the p of its decision after Holm’s correction" in said
    assert "All comparisons: A against B: 40 [30, 50]; A against C: 12 [-3, 25]." in said
    by_task = {"comparisons": "A against B: 40 [30, 50] (Catch 10 [1, 20], Pong 70 [60, 80])"}
    assert "Catch 10 [1, 20]" in texts(*claims([CLAIM | by_task], [], "run"))
    alone = {"comparisons": "A against B: 40 [30, 50]"}
    assert "All comparisons" not in texts(*claims([CLAIM | alone], [], "run"))


def test_claims_say_how_many_rules_for_all_came_after_runs() -> None:
    assert "1 rule for all claims came after some of the runs" in texts(*claims([CLAIM], [], "run", 1))
    assert "came after" not in texts(*claims([CLAIM], [], "run"))


def test_the_ledger_of_the_suite_names_the_comparison_that_its_numbers_are_of() -> None:
    assert "A against C, the nearest to contradicting the claim" in texts(ledger([CLAIM], {}, "run"))
    bound = texts(ledger([CLAIM | {"kind": "up_to"}], {}, "run"))
    assert "A against C, the best configuration" in bound and "nearest" not in bound


def test_a_value_that_was_not_read_is_not_called_not_printed() -> None:
    table = hyperparameter_table(load_paper(IMPACT), [], "run").set_index("name")
    unread = table[table["source"].str.startswith("not read")]
    assert len(unread) and set(unread["paper"]) == {"not read"}


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ("not read", "1 k on Pong, where the paper’s budget could not be read"),
        ("not printed", "1 k on Pong, where the paper prints no budget"),
        ("3 hours", "1 k on Pong, where the paper has 3 hours"),
    ],
)
def test_a_budget_that_was_not_read_says_so(stated: str, said: str) -> None:
    run = {"paper_frames": "", "experiment": "discrete", "env_frames": "1000", "env_label": "Pong"}
    assert budget([run], {"discrete": {"paper_budget": stated}}).replace("\u202f", " ") == said


@pytest.mark.parametrize(("schedule", "lag"), [("synchronous", "0"), ("asynchronous", "unbounded, delay 4")])
def test_a_synchronous_system_has_no_lag(schedule: str, lag: str) -> None:
    keys = ("system", "paper", "experiment", "algorithm", "moves", "inference", "store", "runtime", "num_actors")
    row = dict.fromkeys((*keys, "envs_per_actor", "learner_threads", "networks", "tasks", "max_policy_lag"), "")
    delay = {"parameter_delay": "4" if schedule == "asynchronous" else ""}
    table = systems([row | {"schedule": schedule} | delay], {})
    assert "".join(span.text for span in table.groups[0].rows[0][9].spans) == lag  # type: ignore[union-attr]


RUN: dict[str, str] = {
    "origin": "reference",
    "experiment": "continuous",
    "variant": "ppo",
    "variant_label": "PPO",
    "environment": "mujoco/Hopper-v5",
    "env_label": "Hopper-v5",
    "seed": "1",
    "env_frames": "1000000",
    "seconds": "600",
    "frames_per_second": "1666",
}
SCORE = {"final_return": "2500", "random": "18", "human_normalised_score": "", "episodes": "50"} | {
    "versions": "1",
    "between_versions": "",
}


def tables(clock: str, **score: str) -> dict[str, list[dict[str, str]]]:
    milestone = {"threshold": "1500", "env_frames": "300000", "seconds": "172", "clock": clock}
    return {"runs": [RUN], "scores": [RUN | SCORE | score], "milestones": [RUN | milestone]}


@pytest.mark.parametrize(("clock", "passed"), [("cpu", "1 500 after 300 k, 3 min of CPU"), ("wall", "3 min\n")])
def test_a_milestone_names_its_clock(clock: str, passed: str) -> None:
    said = texts(*learned(tables(clock), EXPERIMENTS)) + "\n"
    assert passed in said
    assert "Wall time" in said


def test_how_far_versions_of_the_parameters_are_apart_stands_beside_their_mean() -> None:
    said = texts(*learned(tables("wall", versions="10", between_versions="12.5"), EXPERIMENTS))
    assert "(50 ep., 10 versions, ±12.5)" in said
    assert "versions, ±" not in texts(*learned(tables("wall"), EXPERIMENTS))


def test_what_was_run_for_a_speed_alone_is_not_said_to_have_learned() -> None:
    assert learned(tables("wall"), EXPERIMENTS)
    for scored in (False, ["mujoco/HalfCheetah-v5"]):
        assert learned(tables("wall"), {"continuous": {"title": "C", "scored": scored}}) == ()


def test_tasks_without_a_human_score_have_no_column_for_it() -> None:
    for part in (lambda rows: learned(rows, EXPERIMENTS), lambda rows: [side_by_side(rows, EXPERIMENTS, "reference")]):
        assert "Human" not in texts(*part(tables("wall")))
        assert "Human" in texts(*part(tables("wall", human_normalised_score="0.4")))


def test_settings_of_a_sweep_have_one_line_for_their_system() -> None:
    found = tables("wall")
    settings = [
        {"variant": f"ppo__s{number}", "variant_label": f"PPO, 0.0{number}", "final_return": final}
        for number, final in ((1, "100"), (2, "300"))
    ]
    for name in found:
        found[name] += [row | setting for row in found[name] for setting in settings]
    for name in found:
        found[name] = [row for row in found[name] if row["variant"] != "ppo"]
    said = texts(side_by_side(found, EXPERIMENTS, "run"))
    assert said.count("PPO, 2 settings") == 1
    assert "200 [100, 300]" in said
    assert "Of a sweep: over its settings." in said
    assert "Not listed: 2 runs of a sweep’s settings." in texts(*learned(found, EXPERIMENTS))


def test_published_cells_without_a_value_of_ours_name_their_frames() -> None:
    row = dict.fromkeys(("ours", "published_variant"), "") | {"origin": "run", "system": "PPO", "item": "Results"}
    row |= {"metric": "episode_return", "task": "beam_rider", "unit": "return"}
    found = [row | {"published": value, "published_frames": at} for value, at in (("566.4", "4e7"), ("1061", ""))]
    assert "Beam Rider 566.4 at 40 M, Beam Rider 1 061\n" in texts(uncovered(found, "run")) + "\n"


def test_a_column_in_which_no_row_says_anything_is_left_out() -> None:
    fields: Fields[Row] = (numeric("A", "a"), numeric("B", "b"), numeric("C", "c"))
    rows = [{"a": "1", "b": "", "c": ""}, {"a": "2", "b": "–", "c": "3"}]
    sections = (Section("a", "A", (table_of("some", "a.csv", fields, [Group(rows)]),)),)
    (section,) = as_json(document(sections))["sections"]
    assert [column["title"] for column in section["blocks"][0]["columns"]] == ["A", "C"]
    assert [len(row) for row in section["blocks"][0]["groups"][0]["rows"]] == [2, 2]


@pytest.mark.parametrize(("seeds", "said"), [(2, "Returns. Each seed; random."), (3, f"Returns. {MEAN}; random.")])
def test_a_caption_names_an_interval_only_where_a_figure_draws_one(seeds: int, said: str) -> None:
    rows = [RUN | {"seed": str(seed)} for seed in range(seeds)]
    caption = f"Curves. Returns. {MEAN} where there are three or more, otherwise each seed; random."
    figure = {"name": "a", "caption": caption, "alt": "a", "tables": ["curves"], "experiments": ["continuous"]}
    (drawn,) = drawings({"paper": {"key": "p"}, "figures": [figure]}, [*rows, RUN | {"experiment": "other"}])
    assert (drawn.title, drawn.caption) == ("Curves", said)
    assert drawn.script == "replications/p/figures.py"


@pytest.mark.parametrize("paper", papers(IMPACT.parent))
def test_captions_name_intervals_in_the_words_that_a_report_knows(paper: str) -> None:
    captions = [figure.caption for figure in load_paper(IMPACT.parent / paper).figures]
    assert all(
        bool(re.search("seeds .* interval where", caption)) == bool(BAND.search(caption)) for caption in captions
    )


def test_the_appendix_comes_last() -> None:
    texts = (Text(plain("text")),)
    sections = (Section("a", "A", texts, appendix=True), Section("b", "B", texts))
    assert [section["id"] for section in as_json(document(sections))["sections"]] == ["b", "a"]


def document(sections: tuple[Section, ...]) -> Document:
    return Document(
        "paper", "", "", "", (), "", "smoke", "", "", (), "", "", (), "", "", (), sections, Origin("", "", "")
    )


def test_a_table_without_a_row_is_left_out_and_not_counted() -> None:
    fields: Fields[Row] = (numeric("A", "a"),)
    empty = table_of("nothing", "a.csv", fields, [Group(())])
    filled = table_of("something", "a.csv", fields, [Group([{"a": "1"}])])
    sections = (Section("a", "A", (empty,)), Section("b", "B", (Text(plain("text")), empty, filled)))
    (section,) = as_json(document(sections))["sections"]
    assert [block["type"] for block in section["blocks"]] == ["text", "table"]
    assert (section["blocks"][1]["caption"], section["blocks"][1]["number"]) == ("something", 1)


def test_what_a_claim_lacks_stands_below_its_tag() -> None:
    row = CLAIM | {"verdict": "not_testable", "obstacle": "gpu;ceiling"}
    (table,) = [block for block in claims([row], [], "run") if isinstance(block, Table)]
    spans = table.groups[0].rows[0][-1].spans
    assert [(span.text, span.style) for span in spans if span.text] == [
        ("not testable", "tag"),
        ("needs a GPU", "small"),
        ("at the ceiling", "small"),
    ]
