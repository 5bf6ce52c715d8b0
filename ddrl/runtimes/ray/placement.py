"""The nodes of the cluster that this process is connected to: where each learner runs, and whether a run has room."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ddrl.errors import UserError

if TYPE_CHECKING:
    from ddrl.runtimes.ray.process_group import Plan


def on_this_node() -> NodeAffinitySchedulingStrategy:
    """Return the strategy for rank 0: it writes the run directory, which other nodes may not share.

    A process can only join a cluster that has a node on its own machine, so there always is one.
    """
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def on_its_node(rank: int) -> NodeAffinitySchedulingStrategy:
    """Return the strategy for other ranks: round-robin over the nodes, from this one on; another where one is full."""
    own = ray.get_runtime_context().get_node_id()
    others = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != own)  # type: ignore[no-untyped-call]
    nodes = [own, *others]
    return NodeAffinitySchedulingStrategy(nodes[rank % len(nodes)], soft=True, _spill_on_unavailable=True)


def resources_here() -> dict[str, float]:
    """Return the resources of the node of this process, as Ray names them."""
    own = ray.get_runtime_context().get_node_id()
    (here,) = (node["Resources"] for node in ray.nodes() if node["NodeID"] == own)  # type: ignore[no-untyped-call]
    return here  # type: ignore[no-any-return]


def gpus_per_learner(plan: Plan) -> float:
    """Return the GPUs of each learner: a fraction where they share one.

    Raise UserError where the cluster can never hold all roles, or this node not rank 0 and the replay.
    """
    num_runs, num_replays, num_shards = plan.runs_at_once, int(plan.replay is not None), len(plan.shards)
    here = resources_here()
    there = ray.cluster_resources()  # type: ignore[no-untyped-call]
    needed = num_runs * (plan.num_actors + plan.num_learners * plan.learner_threads + num_replays + num_shards)
    all_learners, all_rank0 = num_runs * plan.num_learners, num_runs * (plan.learner_threads + num_replays)
    if there.get("CPU", 0) < needed:
        at_once = f"{num_runs} members at once, each with " if num_runs > 1 else ""
        others = "and a replay " if num_replays else ""
        others += f"and {num_shards} parameter shards " if num_shards else ""
        keys = f"{', replay' if num_replays else ''}{', parameter_shards' if num_shards else ''}"
        keys += ", population.parallel" if num_runs > 1 else ""
        raise UserError(
            f"the Ray cluster has {there.get('CPU', 0):.0f} CPUs; {at_once}{plan.num_actors} actors and "
            f"{plan.num_learners} x {plan.learner_threads} learner threads {others}need {needed} "
            f"(keys topology.num_actors, num_learners, learner_threads{keys})"
        )
    gpus = int(there.get("GPU", 0))
    if plan.device == "cuda" and gpus < all_learners:
        raise UserError(
            f"key 'device': cuda needs a GPU for each of {all_learners} learners, and the Ray cluster has "
            f"{gpus}; allowed here: {'auto, cpu' if gpus else 'cpu'}"
        )
    gpus = 0 if plan.device == "cpu" else gpus
    sharing = -(-all_learners // gpus) if gpus else 1
    rank0_gpus = -(-num_runs // sharing) if gpus else 0
    if here.get("CPU", 0) < all_rank0 or here.get("GPU", 0) < rank0_gpus:
        several = (f"the learners that lead {num_runs} members run", "they need")
        leads, need = several if num_runs > 1 else ("the learner that leads runs", "it needs")
        raise UserError(
            f"{leads} where the run is started, and that node of the Ray cluster has "
            f"{here.get('CPU', 0):.0f} CPUs and {here.get('GPU', 0):.0f} GPUs; {need} "
            f"{all_rank0} and {rank0_gpus}: start the run on another node"
            f"{', or with device: cpu' if gpus else ''}"
        )
    return 1.0 / sharing if gpus else 0.0
