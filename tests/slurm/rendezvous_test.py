"""How the tasks of a job find each other while strangers call, keep silent, lie or drip; no Ray, no SLURM."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ddrl.errors import UserError
from ddrl.inference.proof import CLIENT, LENGTH, proof
from ddrl.slurm import ray_cluster, rendezvous
from ddrl.slurm.rendezvous import accept_all, call

TOKEN = "of-this-job-" + "0" * 40
NEVER: Callable[[], bool] = lambda: False  # noqa: E731


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as made:
        yield made


def calls(listener: socket.socket, rank: int, token: str = TOKEN) -> tuple[threading.Thread, list[Any]]:
    """A task that calls, in a thread, and what comes of it."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(call(listener.getsockname(), rank, token, 10))
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, found


def test_tasks_that_know_the_token_meet(listener: socket.socket) -> None:
    tasks = [calls(listener, rank) for rank in (1, 2, 3)]
    connections = accept_all(listener, 3, TOKEN, 20, NEVER)
    for thread, found in tasks:
        thread.join(10)
        assert isinstance(found[0], socket.socket)
    for one in connections:
        one.close()
    for _, found in tasks:
        assert found[0].recv(1) == b""  # the connection stays until the other side is gone
        found[0].close()


def strange(address: tuple[str, int]) -> list[socket.socket]:
    """One of each kind: mute, gone, half of it, drips, another token, nonsense."""
    made = [socket.create_connection(address) for _ in range(6)]
    _, gone, half, drips, wrong, nonsense = made
    gone.close()
    half.sendall(b"00000001" + b"0" * 10)
    nonsense.sendall(b"\xff" * 1000)
    wrong.sendall(b"00000001" + b"0" * LENGTH + proof("another", CLIENT).encode())

    def drip() -> None:
        with suppress(OSError):
            for _ in range(200):
                drips.sendall(b"0")
                time.sleep(0.05)

    threading.Thread(target=drip, daemon=True).start()
    return made


def test_strangers_hold_up_nobody_and_are_sent_away(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "PROOF_SECONDS", 0.5)
    strangers = strange(listener.getsockname())
    began = time.monotonic()
    late = threading.Timer(0.8, lambda: tasks.append(calls(listener, 2)))
    tasks = [calls(listener, 1)]
    late.start()
    found = accept_all(listener, 2, TOKEN, 20, NEVER)
    assert time.monotonic() - began < 6
    late.join()
    for thread, _ in tasks:
        thread.join(10)
    for one in strangers:
        with suppress(OSError):  # reset, or closed
            one.settimeout(5)
            while one.recv(4096):
                pass
        one.close()
    for one in [*found, *(made[0] for _, made in tasks)]:
        one.close()


def test_many_who_are_mute_do_not_keep_a_task_out(listener: socket.socket) -> None:
    mute = [socket.create_connection(listener.getsockname()) for _ in range(3 * rendezvous.MOST_CLIENTS)]
    before = threading.active_count()
    thread, made = calls(listener, 1)
    (found,) = accept_all(listener, 1, TOKEN, 20, NEVER)
    thread.join(10)
    assert threading.active_count() <= before + rendezvous.MOST_CLIENTS + 1
    for one in [*mute, found, made[0]]:
        one.close()


def test_a_task_that_calls_again_counts_once(listener: socket.socket) -> None:
    tasks = [calls(listener, 1), calls(listener, 1)]
    with pytest.raises(UserError, match=r"^1 of the job's nodes did not come"):
        accept_all(listener, 2, TOKEN, 1.5, NEVER)
    for thread, made in tasks:
        thread.join(10)
        made[0].close()


def test_a_task_meets_nobody_who_does_not_know_the_token(listener: socket.socket) -> None:
    """Somebody else at the port that an old file names: he hears no token."""
    heard: list[bytes] = []

    def listen() -> None:
        with listener.accept()[0] as caller:
            heard.append(caller.recv(8 + LENGTH, socket.MSG_WAITALL))
            caller.sendall(b"0" * LENGTH)
            heard.append(caller.recv(LENGTH, socket.MSG_WAITALL))
            caller.sendall(heard[-1])

    thread = threading.Thread(target=listen)
    thread.start()
    with pytest.raises(ConnectionError, match="does not know the token"):
        call(listener.getsockname(), 1, TOKEN, 10)
    thread.join(10)
    assert TOKEN.encode() not in b"".join(heard)


def test_nodes_that_do_not_come_are_one_line_at_the_deadline(
    listener: socket.socket,
) -> None:
    strangers = strange(listener.getsockname())
    began = time.monotonic()
    with pytest.raises(UserError, match=r"^2 of the job's nodes did not come within 1 s$"):
        accept_all(listener, 2, TOKEN, 1.0, NEVER)
    assert time.monotonic() - began < 3
    for one in strangers:
        one.close()


def test_the_first_task_does_not_wait_where_its_ray_has_ended(listener: socket.socket) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(UserError, match="did not come"):
        accept_all(listener, 1, TOKEN, 20, lambda: ended.poll() is not None)


def test_the_file_that_says_where_to_meet_is_new_and_nobody_s_but_ours(tmp_path: Path) -> None:
    path = tmp_path / "nodes-7.json"
    planted = [tmp_path / "nodes-7.partial", tmp_path / "seen"]
    for one in planted:
        one.write_text("planted")
        one.chmod(0o666)
    path.symlink_to(tmp_path / "seen")
    with ray_cluster.announced(path, ray_cluster.HeadAddress("127.0.0.1:1", 2, TOKEN, str(tmp_path / "folder"))):
        assert TOKEN in path.read_text()
        assert not path.is_symlink() and path.stat().st_mode & 0o777 == 0o600
    assert [one.read_text() for one in planted] == ["planted", "planted"]
    assert sorted(tmp_path.iterdir()) == sorted(planted)


@pytest.mark.parametrize("spoilt", ["another user's", "of the wrong form"])
def test_another_task_believes_no_file_of_another_user_and_survives_one_of_the_wrong_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoilt: str
) -> None:
    path = tmp_path / "nodes-7.json"
    content: dict[str, Any] = {"address": "127.0.0.1:1", "port": 1, "token": TOKEN, "folder": str(tmp_path / "folder")}
    path.write_text(json.dumps(content | ({"address": 5} if spoilt == "of the wrong form" else {})))
    called: list[Any] = []
    monkeypatch.setattr(rendezvous, "call", lambda *given: called.append(given))
    monkeypatch.setattr(ray_cluster, "START_SECONDS", 0.3)
    if spoilt == "another user's":
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(UserError, match="the job's first task is not there"):
        ray_cluster.join(path, 1)
    assert called == []


def test_another_task_joins_by_the_file_and_makes_its_folder_private(
    listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = listener.getsockname()
    path, folder = tmp_path / "nodes-7.json", tmp_path / "ddrl-ray-1-x"
    path.write_text(json.dumps({"address": f"{host}:1", "port": port, "token": TOKEN, "folder": str(folder)}))
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(ray_cluster.join(path, 1)))
    thread.start()
    (found,) = accept_all(listener, 1, TOKEN, 20, NEVER)
    thread.join(10)
    meeting, joined = made[0]
    assert (meeting.token, meeting.folder) == (TOKEN, str(folder))
    for one in (found, joined):
        one.close()
    ray_cluster._make_private(folder)
    ray_cluster._make_private(folder)  # as a second task on the same machine
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(UserError, match="others may enter it"):
        ray_cluster._make_private(folder)
    monkeypatch.setattr(ray_cluster, "START_SECONDS", 0.5)
    listener.close()
    with pytest.raises(UserError, match="the job's first task is not there"):
        ray_cluster.join(path, 1)
