"""Runtime threads with environments in processes of their own, which the run starts, replaces and ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddrl.api.launch import train
from ddrl.cli.commands import INTERRUPTED
from ddrl.errors import UserError
from ddrl.inference import worker_pool
from ddrl.inference.endpoint import Endpoint
from ddrl.training.device import check_endpoint
from tests.runs import BASE, config, curves, merged
from tests.runtimes.ray import clusters

WORKERS = {"runtime": "threads", "inference": "central", "central": {"worker_processes": True}}
LONG = {"env_frames": 2**40, "topology": WORKERS, "evaluation": {"period_frames": None}}
BROKEN = """
import sys
from ddrl.inference import worker_pool
from ddrl.environments.toy import ToyEnvs
from tests.runtimes import crash
ToyEnvs.step = crash.broken_step("actor", 3)
raise SystemExit(worker_pool.main(sys.argv[1:]))
"""


def own_workers(parent: psutil.Process) -> list[psutil.Process]:
    return [one for one in parent.children() if "ddrl.inference.worker_pool" in one.cmdline()]


def test_a_run_reaches_its_budget_and_its_workers_end(tmp_path: Path) -> None:
    assert train(config(topology=WORKERS), tmp_path, quiet=True) == "budget_reached"
    table = curves(tmp_path)
    assert table.env_frames.max() >= 2000
    assert (table[table.metric == "wire_bytes_per_frame_to_learner"].value > 4 * 50).all()
    assert (table[table.metric == "episode_length"].value == 9).all()
    assert not own_workers(psutil.Process())


@pytest.mark.system
def test_a_worker_that_is_killed_is_replaced(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def kill() -> None:
        clusters.wait_until(lambda: clusters.lines(tmp_path) > 3)
        for worker in own_workers(psutil.Process()):
            worker.send_signal(signal.SIGKILL)

    killer = clusters.meanwhile(kill)
    assert train(config(topology=WORKERS, env_frames=8_000), tmp_path) == "budget_reached"
    killer.join()
    assert json.loads((tmp_path / "run.json").read_text())["actor_restarts"] == 2
    assert "its process died (SIGKILL); a new one takes its place" in capfd.readouterr().err
    table = curves(tmp_path)
    assert (table[table.metric == "episode_length"].value == 9).all()  # no abandoned episode is counted


@pytest.mark.slow
def test_a_worker_that_dies_again_and_again_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "COMMAND", (sys.executable, "-c", "raise SystemExit(7)"))
    with pytest.raises(UserError, match=r"actor \d, environment toy/catch.* died 3 times in a row .*exit status 7"):
        train(config(topology=WORKERS), tmp_path, quiet=True)


@pytest.mark.slow
def test_an_environment_that_raises_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker_pool, "COMMAND", (sys.executable, "-c", BROKEN))
    with pytest.raises(UserError, match=r"actor 1, environment toy/catch.* what it wrote stands above"):
        train(config(**LONG), tmp_path, quiet=True)
    shown = capfd.readouterr().err
    assert "Traceback" in shown and "ArithmeticError: the ball fell through the floor" in shown
    assert not own_workers(psutil.Process())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_workers_end_with_their_learner_however_it_ends(tmp_path: Path, number: signal.Signals) -> None:
    process = clusters.start(merged(BASE, LONG), tmp_path)
    clusters.wait_for_lines(process, tmp_path, 3)
    workers = own_workers(psutil.Process(process.pid))
    assert len(workers) == 2
    if number == signal.SIGKILL:
        process.send_signal(number)
    else:
        os.killpg(process.pid, number)  # as a terminal, or SLURM, does
    error = process.ended(60)
    assert psutil.wait_procs(workers, timeout=30)[1] == []
    if number == signal.SIGKILL:
        return
    assert process.returncode == INTERRUPTED, error
    assert "takes its place" not in error
    (tmp_path / "config.json").unlink()
    longer = config(**merged(LONG, {"env_frames": clusters.frames(tmp_path) + 500}))
    assert train(longer, tmp_path, quiet=True) == "budget_reached"
    assert json.loads((tmp_path / "run.json").read_text())["resumes"] == 1


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ({"runtime": "serial"}, "may be true only with 'topology.runtime: threads' (got serial)"),
        ({"runtime": "ray"}, "(got ray, whose workers are processes anyway)"),
        ({"inference": "local"}, "'topology.central' is read only with 'topology.inference: central'"),
    ],
)
def test_other_systems_refuse_the_key(topology: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        config(topology=WORKERS | topology)
    assert message in str(raised.value)


def test_a_worker_is_told_the_token_where_no_other_user_can_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"import sys; open({str(tmp_path / 'told')!r}, 'w').write(sys.stdin.read())"
    monkeypatch.setattr(worker_pool, "COMMAND", (sys.executable, "-c", script))
    workers = worker_pool.LocalWorkers(lambda *_: "a worker", lambda: [0], print, lambda: None)
    folder = Path(workers.endpoint.address.removeprefix("unix:")).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    workers.start(1)
    process = workers._processes[0]
    workers.close()
    token = workers.endpoint.token
    assert token and len(token) == 64
    assert (tmp_path / "told").read_text() == token
    assert token not in " ".join(map(str, process.args)) + " ".join(os.environ.values())
    assert not folder.exists()


def test_workers_by_hand_and_own_ones_are_not_for_the_same_run() -> None:
    with pytest.raises(UserError, match="the run starts its workers itself"):
        check_endpoint(config(topology=WORKERS), Endpoint("127.0.0.1:0"))


@pytest.mark.parametrize("name", ["toy/catch", "atari/pong"])
def test_a_worker_steps_its_environments_without_torch(name: str) -> None:
    code = f"""
import sys
from ddrl.inference import worker_pool
from ddrl.environments.tools.named import make_env
env = make_env({{"name": "{name}"}}, 2, 7, num_threads=1, name="worker 0")
env.reset()
env.close()
assert "torch" not in sys.modules
env.state_dict()
assert "torch" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=clusters.ROOT)
