"""`ddrl roundtrip`: the inference service alone, with workers that step no environment and a policy without a network.

This measures the transport: encoding observations, the stream, checks, the hand-over to the actor's thread, and the way
back. The workers are those of `ddrl.inference.idle_worker`.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from ddrl.coordinator.traffic import Traffic
from ddrl.errors import Closed
from ddrl.inference.endpoint import Endpoint
from ddrl.inference.idle_worker import SPEC
from ddrl.inference.remote_env import RemoteEnv
from ddrl.inference.service import InferenceService
from ddrl.system.notes import say
from ddrl.system.private_folders import SOCKET, private_folder
from ddrl.training.records import manifest

WARM_UP = 0.25
"""Length of the warm-up as a fraction of the measurement."""
START_SECONDS, END_SECONDS = 60.0, 10.0


def measure(workers: int, envs: int, transport: str, seconds: float) -> dict[str, Any]:
    """Measure one layout: `workers` with `envs` environments each, over `transport` unix or tcp (loopback).

    A round trip is from a worker's call until it has its actions; bytes are those sent to the learner.
    """
    traffic = Traffic(frame_skip=1)
    slots = [RemoteEnv(SPEC, envs, traffic, lambda workers_before: _OFFER) for _ in range(workers)]
    with ExitStack() as stack:
        folder = private_folder("ddrl-roundtrip-")
        stack.callback(shutil.rmtree, folder)
        endpoint = Endpoint("127.0.0.1:0" if transport == "tcp" else f"unix:{folder / SOCKET}")
        service = InferenceService(endpoint, slots, note=say)
        actors = [threading.Thread(target=_act, args=(slot,), daemon=True) for slot in slots]
        for actor in actors:
            actor.start()
        command = [sys.executable, "-m", "ddrl.inference.idle_worker", service.address, str(envs)]
        processes = [subprocess.Popen(command) for _ in range(workers)]
        try:
            _await(lambda: all(slot.session for slot in slots), processes)
            time.sleep(WARM_UP * seconds)
            traffic.take()
            before, began = traffic.agent_steps, time.perf_counter()
            time.sleep(seconds)
            after, took = traffic.agent_steps, time.perf_counter() - began
            metrics = traffic.take()
        finally:
            service.close("finished")
            for process in processes:
                process.wait(END_SECONDS)
    return {
        "workers": workers,
        "envs": envs,
        "transport": transport,
        "observations_per_second": (after - before) / took,
        "round_trip_ms_p50": metrics["round_trip_ms_p50"],
        "round_trip_ms_p99": metrics["round_trip_ms_p99"],
        "bytes_per_observation": metrics["wire_bytes_per_frame_to_learner"],
    }


_OFFER: dict[str, Any] = {"environment": {}, "first_env": 0, "env_threads": 1, "seed": 0, "name": "nothing"}


def _await(ready: Callable[[], bool], processes: Sequence[subprocess.Popen[bytes]]) -> None:
    end = time.monotonic() + START_SECONDS
    while not ready():
        if time.monotonic() > end or any(process.poll() is not None for process in processes):
            raise RuntimeError("the workers did not come")
        time.sleep(0.02)


def _act(env: RemoteEnv) -> None:
    """Step `env` with action 0 until it is closed."""
    actions = np.zeros(env.num_envs, dtype=np.int64)
    with suppress(Closed):
        env.reset()
        while True:
            env.step(actions)


def roundtrip(
    layouts: Sequence[tuple[int, int, str]], *, seconds: float, repeats: int, note: Callable[[str], None]
) -> dict[str, Any]:
    """Measure all layouts (workers, envs, transport) once in each repeat; return plain data."""
    found: list[list[dict[str, Any]]] = [[] for _ in layouts]
    for repeat in range(repeats):
        for layout, results in zip(layouts, found, strict=True):
            results.append(measure(*layout, seconds))
            note(f"repeat {repeat + 1}/{repeats}: {_row(results[-1])}")
    provenance = manifest.provenance()
    return {
        "seconds": seconds,
        **{name: provenance[name] for name in ("hardware", "git_sha", "git_dirty", "packages")},
        "measurements": found,
    }


def describe(result: Mapping[str, Any]) -> str:
    """Return a line for each layout, with medians over repeats."""
    hardware = result["hardware"]
    lines = [
        f"the inference service with a policy that does nothing, observations {list(SPEC.observation_shape)} uint8; "
        f"{hardware['cpu']}, {hardware['cores']} cores; medians of {len(result['measurements'][0])}"
    ]
    for repeats in result["measurements"]:
        numbers = {name: statistics.median(one[name] for one in repeats) for name in _NUMBERS}
        lines.append(_row(repeats[0] | numbers))
    return "\n".join(lines)


_NUMBERS = ("observations_per_second", "round_trip_ms_p50", "round_trip_ms_p99", "bytes_per_observation")


def _row(one: Mapping[str, Any]) -> str:
    return (
        f"{one['workers']} worker{'s' * (one['workers'] > 1)} x {one['envs']} over {one['transport']}: "
        f"{one['observations_per_second']:,.0f} observations/s, round trip p50 {one['round_trip_ms_p50']:.2f} ms, "
        f"p99 {one['round_trip_ms_p99']:.2f} ms, {one['bytes_per_observation']:,.0f} bytes each"
    )
