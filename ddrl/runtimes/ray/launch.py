"""Runs of a configuration on Ray: what is started, and how a learner is built in its process."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ddrl.actors.unroll import EpisodeSink
from ddrl.inference.endpoint import Endpoint
from ddrl.inference.worker import work_alone
from ddrl.learners.all_reduce import DistributedReducer
from ddrl.learners.shared_updates import shards as shards_of
from ddrl.replay.replay_config import with_replay
from ddrl.runtimes.ray.cluster import cluster
from ddrl.runtimes.threads import ThreadsRuntime
from ddrl.system.allocator import keep_freed_memory
from ddrl.system.locks import TAKEOVER_SECONDS, open_lock, take_lock
from ddrl.system.signals import StopRequest, stopping
from ddrl.training.builder import Builder, Generation, act_alone
from ddrl.training.config.run_config import RunConfig
from ddrl.training.device import resolve_device
from ddrl.training.records import checkpoint
from ddrl.training.records.display import Relay
from ddrl.training.records.progress import Progress
from ddrl.training.run import Run
from ddrl.types import EnvSpec

if TYPE_CHECKING:
    from ddrl.runtimes.ray.learner_process import BuiltLearner
    from ddrl.runtimes.ray.messages import Beside, Status
    from ddrl.runtimes.ray.process_group import Plan
    from ddrl.runtimes.ray.rendezvous import Met

SPARE_BYTES = 128 * 2**20
"""Shared memory that nothing is reckoned for."""
BATCHES = 5
"""Batches of a replay in its own process that exist at once: trained on, made ready, drawn ahead, two to be freed."""


class MemberSegment(Protocol):
    """A segment of a population's member, as a learner on Ray carries it out."""

    @property
    def identity(self) -> str:
        """The name that checkpoints must have."""

    def resume(self, run: Run, note: Callable[[str], None], updates: int | None) -> int | None:
        """Prepare a run and resume it as `LearnerProcess.resume` does; `note` takes lines for the user."""

    def train(self, run: Run) -> Any:
        """Train to the end of the part; return the result for the supervisor."""


def train_with_ray(
    config: RunConfig,
    directory: Path,
    *,
    quiet: bool = False,
    accepted: Callable[[], None] = lambda: None,
    watch: Callable[[Status], bool] = lambda status: False,
) -> str:
    """Train or resume in `directory` with runtime `ray`; return the exit reason.

    `accepted` and `watch` are those of `RayRuntime`.
    """
    builder, progress = Builder(config, torch.device("cpu")), Progress(config.env_frames, quiet=quiet)
    shards, wanted = shard_parts(builder), config.topology.parameter_shards
    request, slots, memory = StopRequest(), num_cpus(config) + len(shards), object_store_bytes(builder)
    with stopping(request.ask, directory), cluster(num_cpus=slots, object_store_bytes=memory) as folder:
        from ddrl.runtimes.ray.supervisor import RayRuntime  # imports Ray, which reads what `cluster` has set

        runtime = RayRuntime(plan(builder, directory, folder, shards), progress, accepted=accepted, watch=watch)
        request.answer(runtime.interrupt)
        with progress:
            if 0 < len(shards) < wanted:
                progress.note(f"parameter shards: {len(shards)}, not {wanted}; none divides a tensor")
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
    part: MemberSegment | None = None,
    runs_at_once: int = 1,
) -> Plan:
    """Return what to start for a run, or for a `part` of it. `shards` are those of `shard_parts`; see also `Plan`."""
    from ddrl.runtimes.ray.process_group import Plan

    config, topology = builder.config, builder.config.topology
    # Central inference goes without the configuration: unpickling an algorithm's would import torch in the actor.
    central = topology.inference == "central"
    return Plan(
        num_actors=topology.num_actors,
        num_learners=topology.num_learners,
        learner_threads=_learner_threads(config),
        device=config.device,
        make_learner=partial(make_learner, config, directory.resolve(), folder, part=part),
        make_actor=partial(work_alone, topology.num_learners) if central else partial(act_alone, config),
        describe_actor=lambda index, generation: builder.describe("actor", index, Generation(*generation)),
        newest_checkpoint=partial(newest_checkpoint, directory, topology.num_learners),
        folder=folder,
        replay=(config, directory.resolve()) if topology.replay == "own" else None,
        shards=[(config, shard) for shard in shards],
        runs_at_once=runs_at_once,
    )


def shard_parts(builder: Builder) -> list[slice]:
    """Return the network's parameters of each shard with its own process; nothing where the learner holds them all."""
    topology = builder.config.topology
    if topology.runtime != "ray" or topology.parameter_shards == 1 or builder.config.system.parameters != "sharded":
        return []
    return [part for part, _ in shards_of(list(builder.network().parameters()), topology.parameter_shards)]


def num_cpus(config: RunConfig) -> int:
    """Return the CPU slots of all processes except parameter shards."""
    topology = config.topology
    return topology.num_actors + topology.num_learners * _learner_threads(config) + (topology.replay == "own")


def _learner_threads(config: RunConfig) -> int:
    """Return how many threads of a learner compute: those of training and of central inference."""
    topology = config.topology
    return topology.learner_threads + (topology.central.num_threads if topology.inference == "central" else 0)


def object_store_bytes(builder: Builder) -> int:
    """Return the shared memory that a run may need: unrolls that wait or travel, and parameters, both twice over."""
    config, topology = builder.config, builder.config.topology
    step = step_bytes(builder.spec)
    unroll = (config.hyperparameters.unroll_length + 1) * topology.envs_per_actor * step
    rounds = -(-config.hyperparameters.fresh_columns // (topology.num_actors * topology.envs_per_actor))
    ahead = rounds * (2 + (topology.max_policy_lag or 0))  # of the learner, where the gate bounds what waits
    waiting = topology.num_learners * topology.queue_capacity + topology.num_actors * (2 + ahead)
    network = builder.network()
    parameters = sum(tensor.nbytes for tensor in [*network.parameters(), *network.buffers()])
    versions = topology.num_learners * (4 + topology.num_actors)
    needed = 2 * (waiting * unroll + versions * parameters)
    if topology.replay == "own":
        rule = with_replay(config.hyperparameters).replay
        needed += BATCHES * rule.batch_size * (rule.cut.before + rule.cut.reach + 1) * step
    return needed + SPARE_BYTES


def step_bytes(spec: EnvSpec) -> int:
    """Return about what one step of an unroll takes: its observation, the policy's output and a few numbers."""
    observation = torch.empty(spec.observation_shape, dtype=getattr(torch, spec.observation_dtype)).nbytes
    return observation + 4 * spec.distribution_size + 8 * spec.action_size + 64


def newest_checkpoint(directory: Path, num_learners: int) -> Path | None:
    """Return the newest checkpoint that all learners and the replay have; None where there is none."""
    folders = [checkpoint.rank_folder(directory, rank) for rank in range(1, num_learners)]
    folders += [folder for folder in [checkpoint.replay_folder(directory)] if folder.exists()]
    for path in sorted((directory / "checkpoints").glob("*.sha256"), reverse=True):
        if all((folder / path.name).exists() for folder in folders):
            return path.with_suffix(".pt")
    return None


def make_learner(
    config: RunConfig,
    directory: Path,
    folder: Path | None,
    rank: int,
    met: Met | None,
    beside: Beside,
    forward: EpisodeSink,
    part: MemberSegment | None = None,
) -> BuiltLearner:
    """Build a learner in its process. The parameters from `rank` to `forward` are those of `MakeLearner`."""
    from ddrl.runtimes.ray.learner_process import BuiltLearner
    from ddrl.runtimes.ray.replay_process import RemoteReplay
    from ddrl.runtimes.ray.shard_process import RemoteShards

    keep_freed_memory()
    reducer = endpoint = lock = None
    if met is not None:
        import ray

        resources = ray.get_runtime_context().get_assigned_resources()  # type: ignore[no-untyped-call]
        own_gpu = resources.get("GPU", 0) >= 1  # as NCCL needs it; the same for all learners
        device = resolve_device(config.device) if own_gpu else torch.device("cpu")
        reducer = DistributedReducer(met.store, rank, config.topology.num_learners, device, met.token)
    if config.topology.inference == "central":
        endpoint = own_endpoint(folder, f"{directory.name}-{rank}" if part else str(rank))  # members share the folder
    if not rank:  # it writes the run directory
        lock = open_lock(directory / "learner.lock")
        take_lock(lock, directory, TAKEOVER_SECONDS)
    relay = Relay()
    run = Run(
        config,
        directory,
        make_runtime=ThreadsRuntime,
        display=relay,
        reducer=reducer,
        remote_actors=True,
        endpoint=endpoint,
        replay=RemoteReplay(beside.replay) if beside.replay is not None else None,
        shards=RemoteShards(beside.shards) if beside.shards else None,
        identity=part.identity if part else None,
        forward=forward if rank else None,
        store=met.store if met else None,
    )
    return BuiltLearner(run, relay, part, lock)


def own_endpoint(folder: Path | None, name: str) -> Endpoint:
    """Return where a learner's inference service listens, with a new token that only the learner's workers get.

    It is a Unix socket in `folder`, that of an own cluster. On a joined cluster (None) it is a port of this node, not
    encrypted, as nothing is between the processes of such a cluster.
    """
    token = secrets.token_hex(32)
    if folder is None:
        import ray

        address = f"{ray.util.get_node_ip_address()}:0"  # type: ignore[no-untyped-call]
        return Endpoint(address, token, insecure=True)
    return Endpoint(f"unix:{folder / f'inference-{name}'}", token)
