"""The table of claims: the paper's statements as tests on our own runs (statistics: `ddrl.analysis.statistics`).

A claim about several comparisons is supported only if each of them supports it, and contradicted if one of them does at
a level divided by their number. It shows no difference if one of them does at that level and each rules out the
opposite. What each verdict means: `ddrl.papers.claim_verdicts`;
how one follows from the intervals, and how Holm's correction takes part: `ddrl.analysis.verdicts.claim_decisions`; what
forbids one: `ddrl.analysis.verdicts.preconditions` and `learning_range`; how "contradicted here" differs from
"contradicted": `ddrl.analysis.verdicts.claim_setting`.

    ordering       `better` ends above each of `worse`
    monotone       each of `variants` ends above the next
    at_least       each of `variants` ends above a threshold; the effect is the distance from it. What the paper says
                   without a number has a threshold of ours, and `threshold_from` says where it is from
    ratio          `better` is more than `threshold` times each of `worse`; the effect is the ratio (see below)
    no_worse       each of `variants` has at least 1 - `margin` times what `than` has; the effect is the ratio
    alike          each of `variants` and `than` have at least 1 - `margin` times what the other has; the effect is the
                   ratio
    up_to          in the best of `configurations`, which are pairs of variants, the first is more than `threshold`
                   times the second. A bound over configurations: one of them may show it, and only many of them speak
                   against it
    diminishing    the steps between `variants` (highest first), as factors, shrink; the effect is what each step's
                   factor is of that of the step above it, for each three in a row
    interaction    `better` over `worse` is more than `threshold` times (default 1) the ratio named by `over`: that of
                   two other variants on the same tasks, or of the same two on other tasks; the effect is the one over
                   the other
    stability      `better` does better than each of `worse` (with `margin`: loses no more than that against them) over
                   the hyperparameter settings that both have been run with: area (under the curve of sorted scores,
                   which is the mean over settings) or near_best (the fraction of the settings within reach of the
                   best score seen on the task)
    time_to_reach  `better` reaches a training return earlier than each of `worse`; the effect is the share of the
                   other's time that it saves, in percent. A task on which no run of either got there while all of
                   them were watched counts for nothing. The return is `threshold`, else the task's milestone in
                   paper.yaml, else `reference_part` of the way from random play to the task's human or reference
                   score. With `factor`: more than so many times as early; the effect is then that ratio, and runs that
                   never get there contradict only if `worse` is earlier. With metric `seconds_to_final_score` the
                   return is the mean capped training score that `worse` ends with, of agents for several tasks

`smallest_effect` is the smallest effect that counts, fixed beforehand in paper.yaml: as a number of scores, or of
returns on one task, else as a share of a task's scale. Where no reference is known, that scale is taken from the runs
themselves, and the detail says so. Speeds, costs, lags, traffic and Q discrepancies have no reference. Claims that are
held against a number of the paper have a margin of it instead. `seeds_needed` of an inconclusive claim says how many
seeds a group would show no difference if there is none, at the spread seen (`ddrl.analysis.verdicts.claim_seeds`).

A setting is the values that the keys `settings` of the claim have in a run's configuration. The settings of one variant
are variants named <variant>__<setting> in experiments.yaml. Column `flags` is env_version_gap if the runs' environments
are of other versions than paper.yaml states. `p` is two-sided, of no effect at all (ordering, monotone, diminishing,
stability, time_to_reach, alike) or of the threshold itself (at_least, ratio, up_to, no_worse, interaction,
time_to_reach with a factor); if the effect is against the claim it is multiplied by the number of comparisons.
`p_decision` is that of the verdict's own test, against effects that are just too small to count; `p_holm` is that after
Holm's correction for all claims of the paper that were tested on the same origin (`family`), and the verdict rests on
it. `obstacle` names why a claim is not decided. Column `comparisons` has all comparisons, over all tasks and on each.

Units are never averaged over tasks. Returns have a unit of their task's own, and speeds, costs, lags, traffic and Q
discrepancies are of another size on each task: of several tasks, each one's values are divided by its scale first
(`ddrl.analysis.verdicts.claim_values.scales`), so that a task on which nobody learns counts as no difference. Ratios
and shares are averaged geometrically and need none. A ratio of returns (no_worse, alike, diminishing, ratio) is one of
what was learned above random play; that of kind ratio, whose other side may have learned nothing, is tested as the
difference mean(a) - `threshold` mean(b) (the same question as Fieller's), which is also the effect.

For metrics of `ddrl.analysis.runs.efficiency` of which less is better, `better` names the system that takes more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pandas as pd

from ddrl.analysis.runs.flags import version_flag
from ddrl.analysis.runs.run_data import RunData
from ddrl.analysis.verdicts.claim_decisions import corrected
from ddrl.analysis.verdicts.claim_examination import Known, evaluate
from ddrl.analysis.verdicts.learning_range import Ends
from ddrl.analysis.verdicts.planned_seeds import (
    MISSING_TASKS,
    OF_REFERENCE,
    SEED_COUNTS,
    Seat,
    plan_columns,
    plan_of,
    seed_obstacles,
    seeds_of,
    tasks_without_runs,
    used,
)
from ddrl.papers.experiments import Experiment, system_of
from ddrl.papers.paper import Claim, Paper
from ddrl.papers.published import best_returns, random_errors

_OF_CLAIM = ("title", "text", "source", "kind", "experiment", "effect_unit")
COLUMNS = [
    "claim",
    "title",
    "text",
    "source",
    "kind",
    "experiment",
    "origin",
    "verdict",
    "obstacle",
    "effect",
    "effect_unit",
    "ci95_low",
    "ci95_high",
    "contradicted_below",
    "supported_above",
    "hedges_g",
    "p",
    "p_decision",
    "p_holm",
    "family",
    "seeds",
    "env_frames",
    "environments",
    "tasks",
    "decided_by",
    "comparisons",
    "seeds_needed",
    "detail",
    "published",
    "flags",
    *SEED_COUNTS,
    MISSING_TASKS,
]


def claims(
    paper: Paper,
    experiments: Mapping[str, Experiment],
    scores: pd.DataFrame,
    runs: Sequence[RunData],
    scale: str = OF_REFERENCE,
    unusable: Collection[Seat] = (),
) -> pd.DataFrame:
    """Decide every claim on every origin: columns `COLUMNS`. Origin "run" has a row for each claim.

    `scale`: that of the runs. `unusable`: reference runs that are there and cannot be used.
    """
    rows = []
    ends = Ends(best_returns(paper), random_errors(paper))
    known = Known(paper.milestones, paper.prices, paper.evidence.full_budget, ends)
    for claim in paper.claims:
        for origin in ("run", "reference"):
            part = scores[(scores["experiment"] == claim.experiment) & (scores["origin"] == origin)]
            if part.empty and origin == "reference":
                continue
            own = [run for run in runs if run.experiment == claim.experiment and run.origin == origin]
            experiment = experiments.get(claim.experiment)
            taken, planned = used(claim, own), plan_of(origin, scale)
            broken = unusable if origin == "reference" else ()
            seeds = seeds_of(claim, experiment, taken, planned, broken)
            plan = plan_columns(seeds, tasks_without_runs(claim, experiment, taken, planned))
            result = evaluate(claim, experiment, part, own, known, seed_obstacles(seeds, origin))
            flags = "" if result["verdict"] == "not_run" else _version_flag(claim, own, paper)
            published = ";".join(claim.published)
            head = {"claim": claim.name, "published": published, "origin": origin, "flags": flags}
            rows.append({name: getattr(claim, name) for name in _OF_CLAIM} | head | result | plan)
    counts = dict.fromkeys(("seeds", "env_frames", "environments", "seeds_needed", *SEED_COUNTS), "Int64")
    lines = ("contradicted_below", "supported_above")
    floats = dict.fromkeys(("effect", "ci95_low", "ci95_high", *lines, "hedges_g", "p", "p_decision"), "float64")
    table = pd.DataFrame(rows, columns=COLUMNS).astype(counts | floats)
    outlooks = [row.get("outlook") for row in rows]
    return corrected(table.assign(obstacle=table["obstacle"].fillna("")), paper.key, outlooks)


def _version_flag(claim: Claim, runs: Sequence[RunData], paper: Paper) -> str:
    """Return env_version_gap if the environments of a claim's runs have other versions than the paper's."""
    variants = claim.named_variants
    own = [run for run in runs if run.variant in variants or system_of(run.variant) in variants]
    tasks = [run for run in own if not claim.named_environments or run.environment in claim.named_environments]
    return version_flag((str(run.manifest["protocol"]) for run in tasks), paper.protocols.values())
