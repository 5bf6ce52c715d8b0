"""Runs a configuration on Ray: what to start there, and what the user sees of it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ddrl.actors.unroll import EpisodeSink
from ddrl.inference.endpoint import Endpoint
from ddrl.inference.worker import work_alone
from ddrl.learners.all_reduce import DistributedReducer
from ddrl.runtimes.ray.cluster import cluster
from ddrl.runtimes.ray.learner_ranks import LearnerRank, Part
from ddrl.runtimes.ray.object_store import object_store_bytes
from ddrl.runtimes.ray.replay_side import ReplaySide
from ddrl.runtimes.ray.shard_side import ShardSide, shard_parts
from ddrl.system.allocator import keep_freed_memory
from ddrl.system.signals import Request, stopping
from ddrl.training.builder import Builder, Generation, act_alone
from ddrl.training.config.run_config import RunConfig
from ddrl.training.device import resolve_device
from ddrl.training.records import checkpoint
from ddrl.training.records.progress import Progress

if TYPE_CHECKING:
    from ddrl.runtimes.ray.actor_process import MakeActor
    from ddrl.runtimes.ray.messages import Beside, Status
    from ddrl.runtimes.ray.process_group import Plan
    from ddrl.runtimes.ray.rendezvous import Met


def train_with_ray(
    config: RunConfig,
    directory: Path,
    *,
    quiet: bool = False,
    accepted: Callable[[], None] = lambda: None,
    watch: Callable[[Status], bool] = lambda status: False,
) -> str:
    """Train or resume in `directory` with runtime `ray`; return the exit reason.

    `accepted` is called whenever the learners are built, so that nothing refuses the run any more, and not yet resumed.
    `watch` is shown every status of rank 0, and says whether to end the training early.
    """
    topology = config.topology
    builder, progress = Builder(config, torch.device("cpu")), Progress(config.env_frames, quiet=quiet)
    shards = shard_parts(builder)
    request, slots, memory = Request(), num_cpus(config) + len(shards), object_store_bytes(builder)
    with stopping(request.ask, directory), cluster(num_cpus=slots, object_store_bytes=memory) as folder:
        from ddrl.runtimes.ray.supervisor import RayRuntime  # imports Ray, which reads what `cluster` has set

        runtime = RayRuntime(plan(builder, directory, folder, shards), progress, accepted=accepted, watch=watch)
        request.answer(runtime.interrupt)
        with progress:
            if 0 < len(shards) < topology.parameter_shards:
                progress.note(
                    f"parameter shards: {len(shards)}, not {topology.parameter_shards}; none divides a tensor"
                )
            reason: str = runtime.run()
    if reason == "budget_reached" and (last := runtime.last_status):
        progress.done(last.counts, last.latest)
    return reason


def plan(
    builder: Builder,
    directory: Path,
    folder: Path | None,
    shards: list[slice],
    *,
    part: Part | None = None,
    runs_at_once: int = 1,
) -> Plan:
    """What to start; `folder` is that of an own cluster, `shards` those with processes of their own.

    With a `part` of the training, so many runs may be on the cluster at once.
    """
    from ddrl.runtimes.ray.process_group import Plan

    config, topology = builder.config, builder.config.topology
    make = partial(make_learner, config, directory.resolve(), folder)
    return Plan(
        num_actors=topology.num_actors,
        num_learners=topology.num_learners,
        learner_threads=_learner_threads(config),
        device=config.device,
        make_learner=partial(make, part=part) if part else make,
        make_actor=_actor_maker(config),
        describe_actor=lambda index, generation: builder.describe("actor", index, Generation(*generation)),
        describe_checkpoint=partial(describe_checkpoint, directory, topology.num_learners),
        folder=folder,
        make_replay=partial(ReplaySide, config, directory.resolve()) if topology.replay == "own" else None,
        make_shards=[(shard, partial(ShardSide, config, shard)) for shard in shards],
        runs_at_once=runs_at_once,
    )


def _actor_maker(config: RunConfig) -> MakeActor:
    """For central inference without the configuration: an algorithm's brings torch into the process that gets it."""
    if config.topology.inference == "central":
        return partial(work_alone, config.topology.num_learners)
    return partial(act_alone, config)


def num_cpus(config: RunConfig) -> int:
    """Of all processes but shards."""
    topology = config.topology
    return topology.num_actors + topology.num_learners * _learner_threads(config) + (topology.replay == "own")


def _learner_threads(config: RunConfig) -> int:
    """That compute: of training, and of central inference."""
    topology = config.topology
    return topology.learner_threads + (topology.central.num_threads if topology.inference == "central" else 0)


def describe_checkpoint(directory: Path, num_learners: int) -> str:
    """Where a run goes on when it is started again: at the newest checkpoint that learners and replay all have."""
    folders = [checkpoint.rank_folder(directory, rank) for rank in range(1, num_learners)]
    folders += [folder for folder in [checkpoint.replay_folder(directory)] if folder.exists()]
    for path in sorted((directory / "checkpoints").glob("*.sha256"), reverse=True):
        if all((folder / path.name).exists() for folder in folders):
            return f"the next start goes on from {path.with_suffix('.pt')}"
    return "there is no checkpoint, the next start begins anew"


def make_learner(
    config: RunConfig,
    directory: Path,
    folder: Path | None,
    rank: int,
    met: Met | None,
    beside: Beside,
    forward: EpisodeSink,
    part: Part | None = None,
) -> LearnerRank:
    """Build a learner, in its process; the arguments from `rank` on are those of `MakeLearner`."""
    from ddrl.runtimes.ray.replay_process import RemoteReplay
    from ddrl.runtimes.ray.shard_process import RemoteShards

    keep_freed_memory()
    name = f"{part.name}-{rank}" if part else str(rank)
    reducer = None
    if met is not None:
        device = resolve_device(config.device) if _has_own_gpu() else torch.device("cpu")
        reducer = DistributedReducer(met.store, rank, config.topology.num_learners, device, met.token)
    return LearnerRank(
        config,
        directory,
        reducer=reducer,
        endpoint=own_endpoint(folder, name) if config.topology.inference == "central" else None,
        replay=RemoteReplay(beside.replay) if beside.replay is not None else None,
        shards=RemoteShards(beside.shards) if beside.shards else None,
        part=part,
        forward=forward if rank else None,
    )


def own_endpoint(folder: Path | None, name: str) -> Endpoint:
    """Where a learner's inference service listens: on a Unix socket in the folder of an own cluster, or at its node.

    It wants a token that only the learner's own workers are told. A joined cluster encrypts this no more than the rest.
    """
    token = secrets.token_hex(32)
    if folder is None:
        import ray

        address = f"{ray.util.get_node_ip_address()}:0"  # type: ignore[no-untyped-call]
        return Endpoint(address, token, insecure=True)  # as all that roles of a cluster say to each other
    return Endpoint(f"unix:{folder / f'inference-{name}'}", token)


def _has_own_gpu() -> bool:
    """Whether this process shares its GPU with nobody, as NCCL demands; the answer of all learners is the same."""
    import ray

    resources = ray.get_runtime_context().get_assigned_resources()  # type: ignore[no-untyped-call]
    return bool(resources.get("GPU", 0) >= 1)
