"""Whether the cluster that this process is connected to has room for a run, and on which node each learner is."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ddrl.errors import UserError


def on_this_node() -> NodeAffinitySchedulingStrategy:
    """For the learner that leads: it writes the run directory, which other nodes may not share.

    A process can only join a cluster that has a node on its own machine, so there always is one.
    """
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def on_its_node(rank: int) -> NodeAffinitySchedulingStrategy:
    """For the learners that follow: they go round the nodes, this one first, and elsewhere where one has no room."""
    own = ray.get_runtime_context().get_node_id()
    others = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != own)  # type: ignore[no-untyped-call]
    nodes = [own, *others]
    return NodeAffinitySchedulingStrategy(nodes[rank % len(nodes)], soft=True, _spill_on_unavailable=True)


def gpus_per_learner(
    num_actors: int,
    num_learners: int,
    learner_threads: int,
    device: str,
    num_replays: int = 0,
    num_shards: int = 0,
    num_runs: int = 1,
) -> float:
    """GPUs of each learner: a fraction where they share one. All other numbers are those of one of `num_runs` runs.

    Raises: UserError where the cluster can never hold all roles, or this node not the learner that leads, and replays.
    """
    there, here = ray.cluster_resources(), _resources_here()  # type: ignore[no-untyped-call]
    needed = num_runs * (num_actors + num_learners * learner_threads + num_replays + num_shards)
    all_learners, all_leads = num_runs * num_learners, num_runs * (learner_threads + num_replays)
    at_once = f"{num_runs} members at once, each with " if num_runs > 1 else ""
    others = f"{'and a replay ' if num_replays else ''}{f'and {num_shards} parameter shards ' if num_shards else ''}"
    keys = f"{', replay' if num_replays else ''}{', parameter_shards' if num_shards else ''}"
    keys += ", population.parallel" if num_runs > 1 else ""
    if there.get("CPU", 0) < needed:
        raise UserError(
            f"the Ray cluster has {there.get('CPU', 0):.0f} CPUs; {at_once}{num_actors} actors and "
            f"{num_learners} x {learner_threads} learner threads {others}need {needed} "
            f"(keys topology.num_actors, num_learners, learner_threads{keys})"
        )
    gpus = int(there.get("GPU", 0))
    if device == "cuda" and gpus < all_learners:
        raise UserError(
            f"key 'device': cuda needs a GPU for each of {all_learners} learners, and the Ray cluster has "
            f"{gpus}; allowed here: {'auto, cpu' if gpus else 'cpu'}"
        )
    gpus = 0 if device == "cpu" else gpus
    sharing = -(-all_learners // gpus) if gpus else 1
    gpus_of_leads = -(-num_runs // sharing) if gpus else 0
    if here.get("CPU", 0) < all_leads or here.get("GPU", 0) < gpus_of_leads:
        several = (f"the learners that lead {num_runs} members run", "they need")
        leads, need = several if num_runs > 1 else ("the learner that leads runs", "it needs")
        raise UserError(
            f"{leads} where the run is started, and that node of the Ray cluster has "
            f"{here.get('CPU', 0):.0f} CPUs and {here.get('GPU', 0):.0f} GPUs; {need} "
            f"{all_leads} and {gpus_of_leads}: start the run on another node"
            f"{', or with device: cpu' if gpus else ''}"
        )
    return 1.0 / sharing if gpus else 0.0


def _resources_here() -> dict[str, Any]:
    """Of the node that this process belongs to."""
    own = ray.get_runtime_context().get_node_id()
    (resources,) = (node["Resources"] for node in ray.nodes() if node["NodeID"] == own)  # type: ignore[no-untyped-call]
    return dict(resources)
