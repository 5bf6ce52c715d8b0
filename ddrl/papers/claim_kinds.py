"""Kinds of claims: the metrics and the keys in paper.yaml that the test of each kind allows. No pandas here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddrl.errors import UserError, unknown_name

SUITE_METRICS = (
    "mean_human_normalised_score",
    "median_human_normalised_score",
    "mean_capped_human_normalised_score",
    "iqm_human_normalised_score",
)
"""Aggregates over tasks, one value per seed, in percent."""
EQUAL_TIME = "return_at_equal_time"
"""The training return at the moment, in seconds of training, when the fastest run of the comparison ended."""
EVALUATED = "mean_evaluation_return"
"""The return of the evaluations that a run made while it trained, averaged over env_frames."""
EARLY = "share_of_final_return"
"""The return of the evaluations after a `part` of env_frames, divided by the final return; of positive returns only."""
RETURN_METRICS = ("final_return", "mean_return", EVALUATED, EQUAL_TIME)
"""Metrics in the task's own unit: returns of several tasks are only averaged on a common scale."""
FINAL_METRICS = ("final_return", "mean_return", "human_normalised_score", EVALUATED, *SUITE_METRICS)
"""Metrics that are scores: `scored: false` of an experiment excludes them."""
COST_METRICS = (
    "steady_frames_per_second",
    "updates_per_second",
    "cpu_seconds_per_million_frames",
    "dollars_per_billion_frames",
    "learner_utilisation",
    "environment_wait_fraction",
    "inference_call_ms_p50",
    "inference_call_ms_p99",
    "round_trip_ms_p50",
    "round_trip_ms_p99",
)
"""Metrics of what frames cost on one machine (`ddrl.analysis.runs.efficiency`)."""
EFFICIENCY_METRICS = (
    *COST_METRICS,
    "inference_columns_mean",
    "wire_bytes_per_frame",
    "wire_bytes_per_frame_to_learner",
    "wire_bytes_per_frame_from_learner",
    "policy_lag_mean",
    "policy_lag_span",
    "q_discrepancy_first",
    "q_discrepancy_last",
)
"""`COST_METRICS`, and metrics that are the same on every machine."""
TO_MILESTONE = "seconds_to_milestone"
"""Metric of cells: the time until the training return first reaches the milestone (ratio: how many times as early)."""
TO_SCORE = "seconds_to_final_score"
"""The time until an agent for several tasks has the mean capped training score that the other one ends with."""
TIMED_METRICS = ("frames_per_second", "seconds", EQUAL_TIME, TO_MILESTONE, TO_SCORE, *COST_METRICS)
"""Metrics that compare two variants only if their runs had the same kind of machine."""
UNIT_METRICS = ("frames_per_second", *EFFICIENCY_METRICS)
"""Metrics in units of their own, such as frames per second: several tasks are only averaged on a common scale."""
RATIO_KINDS = ("ratio", "no_worse", "alike", "up_to", "diminishing", "interaction", "time_to_reach")
"""Kinds of claims that divide means, which must be positive (of returns: what lies above random play)."""
FROM_NONE = ("ordering", "monotone", "diminishing", "interaction", "stability", "time_to_reach")
"""Kinds that ask for more than no effect at all, unless a margin, a factor or a threshold says otherwise."""
MARGIN = 0.1
"""How far below a printed number a threshold lies, as a part of it: the margin that cells have as well."""
_SCORES = FINAL_METRICS[:3]
_COMPARED = (*_SCORES, EVALUATED, *SUITE_METRICS, "frames_per_second", EQUAL_TIME, *EFFICIENCY_METRICS)
KIND_METRICS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("ordering", "ratio", "monotone", "no_worse", "alike", "diminishing"), _COMPARED),
    "at_least": (*_COMPARED, EARLY),
    "interaction": UNIT_METRICS,
    "up_to": UNIT_METRICS,
    "stability": _SCORES,
    "time_to_reach": ("env_frames", "seconds", TO_SCORE),
}
"""The metrics that each kind of claim allows."""
_KIND_KEYS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ordering": (("better", "worse"), ("smallest_effect",)),
    "ratio": (("better", "worse", "threshold"), ()),
    "at_least": (("variants", "threshold"), ("threshold_from", "part")),
    "monotone": (("variants",), ("smallest_effect",)),
    "no_worse": (("variants", "than", "margin"), ()),
    "alike": (("variants", "than", "margin"), ()),
    "up_to": (("configurations", "threshold"), ()),
    "diminishing": (("variants",), ("smallest_effect",)),
    "interaction": (("better", "worse", "over"), ("threshold", "smallest_effect")),
    "stability": (("better", "worse", "settings", "statistic"), ("within", "smallest_effect", "margin")),
    "time_to_reach": (("better", "worse"), ("threshold", "reference_part", "factor", "smallest_effect")),
}
"""Keys of a test by its kind: those required once it has a metric, and optional ones."""
_COMMON_KEYS = ("kind", "experiment", "metric", "environments", "effect_unit", "needs")


def check_test(test: Mapping[str, Any], where: str) -> None:
    """Raise UserError, naming `where`, the key and what is allowed, if a test lacks a key or has one that is not read.

    A test without a metric waits for its experiment, so it may lack keys.
    """
    kind = test["kind"]
    required, optional = _KIND_KEYS[kind]
    allowed = (*_COMMON_KEYS, *required, *optional)
    for key in test:
        if key not in allowed:
            raise UserError(f"{where}: key '{key}' is not read by kind '{kind}'; allowed: {', '.join(allowed)}")
    if "metric" not in test:
        return
    if test["metric"] not in KIND_METRICS[kind]:
        raise unknown_name(f"metric of kind '{kind}':", test["metric"], KIND_METRICS[kind], where=where)
    missing = [key for key in required if key not in test]
    if test.get("statistic") == "near_best" and "within" not in test:
        missing.append("within")
    if missing:
        raise UserError(f"{where}: key '{missing[0]}' is missing; kind '{kind}' needs {', '.join(required)}")
    if test.get("statistic") == "area" and "within" in test:
        raise UserError(f"{where}: key 'within' is not read by statistic 'area'")
    fewest, word = {"monotone": (2, "two"), "diminishing": (3, "three")}.get(kind, (0, ""))
    if len(test.get("variants", ())) < fewest:
        raise UserError(f"{where}: key 'variants' must name at least {word}, highest first")
    if kind in ("ratio", "interaction", "up_to") and test.get("threshold", 1.0) <= 0:
        raise UserError(f"{where}: key 'threshold' must be above 0 (got {test['threshold']})")
    if kind in ("no_worse", "alike") and test["margin"] >= 1:
        raise UserError(f"{where}: key 'margin' must be a part of what may be lost, below 1 (got {test['margin']})")
    if kind == "interaction":
        _check_over(test, where)
    _check_what_counts(test, where)


def _check_what_counts(test: Mapping[str, Any], where: str) -> None:
    """Raise UserError unless a test says what counts, what its times were measured on, and in which unit.

    A claim of more than nothing has a smallest effect that counts; one of a stated number has its margin instead. A
    claim of times, speeds or costs says if the paper measured them with an accelerator. A value to reach, which is a
    number in one task's unit, names one task.
    """
    stated_number = "margin" in test or test.get("factor", 1) != 1 or ("over" in test and test.get("threshold", 1) != 1)
    if test["kind"] in FROM_NONE and not stated_number:
        if not test.get("smallest_effect", 0.0) > 0:
            raise UserError(f"{where}: key 'smallest_effect' is missing; it must be above 0")
    elif "smallest_effect" in test:
        raise UserError(f"{where}: key 'smallest_effect' is not read beside a margin, a factor or a threshold")
    if test["metric"] in TIMED_METRICS and "gpu" not in test.get("needs", {}):
        raise UserError(f"{where}: key 'needs.gpu' is missing; true if the paper measured this with an accelerator")
    if (test["metric"] == EARLY) != ("part" in test):
        raise UserError(f"{where}: key 'part' belongs to metric {EARLY}: the part of env_frames, and to no other")
    if test["kind"] == "at_least" and test["metric"] in RETURN_METRICS and len(test.get("environments", ())) != 1:
        raise UserError(f"{where}: key 'environments' must name one task; a return to reach has the unit of one")


def divides(kind: str, metric: str | None) -> bool:
    """Return whether the test of a claim divides means; a ratio of returns is tested as a difference."""
    return kind in RATIO_KINDS and not (kind == "ratio" and metric in RETURN_METRICS)


def _check_over(test: Mapping[str, Any], where: str) -> None:
    """Raise UserError unless an interaction compares two pairs of variants, or one pair on two sets of tasks."""
    over, own = test["over"], test.get("environments", ())
    if sorted(over) not in (["better", "worse"], ["environments"]):
        raise UserError(
            f"{where}: key 'over' has {', '.join(sorted(over))}; allowed: better and worse, or environments"
        )
    if "environments" not in over:
        if len({test["better"], *test["worse"], over["better"], over["worse"]}) < 4 or len(test["worse"]) > 1:
            raise UserError(f"{where}: keys 'better', 'worse' and 'over' must name four variants: two pairs")
    elif not own:
        raise UserError(f"{where}: key 'environments' is missing; 'over.environments' is held against it")
    elif set(own) & set(over["environments"]):
        shared = min(set(own) & set(over["environments"]))
        raise UserError(f"{where}: key 'over.environments' names {shared}, which 'environments' names as well")
