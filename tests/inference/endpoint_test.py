"""Where an inference service can be reached, by whom, and what those who may not come in can do to it."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import psutil
import pytest

from ddrl import cli
from ddrl.errors import UserError
from ddrl.inference import service as service_module
from ddrl.inference.client import Connection, LearnerLost
from ddrl.inference.endpoint import Endpoint, Tls, is_local
from ddrl.inference.worker import Worker
from ddrl.runtimes.ray.launch import own_endpoint
from ddrl.system import descriptors, private_folders
from ddrl.system.private_folders import check_own_socket, check_private, private_folder
from tests.inference.service_test import TOKEN, Rig, until, working
from tests.runs import BASE

ROOT = Path(__file__).parents[2]


@contextmanager
def rig_at(endpoint: Endpoint, places: int = 1) -> Iterator[Rig]:
    made = Rig(endpoint, places=places, actors=places)
    try:
        yield made
    finally:
        made.close()


def pair(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for this machine that signs itself, and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=localhost"
    files = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*make.split(), *files], check=True, capture_output=True)
    return certificate, key


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return pair(tmp_path_factory.mktemp("certified"), "learner")


# Addresses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:5000", "learner.example:5000"])
def test_other_machines_need_a_token_and_tls_or_the_word_that_it_is_insecure(
    certified: tuple[Path, Path], address: str
) -> None:
    certificate, key = certified
    with pytest.raises(UserError, match="--token-file"):
        Endpoint(address, tls=Tls(certificate, key)).check()
    with pytest.raises(UserError, match=r"in the clear; give --tls-cert and --tls-key, or say --insecure"):
        Endpoint(address, TOKEN).check()
    Endpoint(address, TOKEN, Tls(certificate, key)).check()
    Endpoint(address, TOKEN, insecure=True).check()
    with pytest.raises(UserError, match=r"in the clear; give --tls-ca, or say --insecure"):
        Endpoint(address).check_way()
    Endpoint(address, tls=Tls(authority=certificate)).check_way()
    Endpoint(address, insecure=True).check_way()


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.1.2.3:5", "localhost:5000", "[::1]:5000"])
def test_this_machine_alone_needs_neither(address: str) -> None:
    Endpoint(address).check()
    Endpoint(address).check_way()


def test_a_name_that_only_looks_like_this_machine_s_is_another_s() -> None:
    assert not any(is_local(f"{name}:1") for name in ("localhost.example", "127.0.0.1.example", "1270.0.0.1", ""))


@pytest.mark.parametrize("address", ["unix-abstract:x", "dns:///a:1", "127.0.0.1", "127.0.0.1:99999", "a b:1", "unix:"])
def test_other_kinds_of_addresses_are_refused(address: str) -> None:
    for check in (Endpoint(address, TOKEN, insecure=True).check, Endpoint(address, insecure=True).check_way):
        with pytest.raises(UserError, match=r"allowed are HOST:PORT and unix:/PATH|has 1 to 107 bytes"):
            check()


def test_an_address_in_use_is_refused(tmp_path: Path) -> None:
    with rig_at(Endpoint(f"unix:{tmp_path}/s")), pytest.raises(UserError, match="another process listens there"):
        Rig(Endpoint(f"unix:{tmp_path}/s"), places=1, actors=0)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UserError, match=r"--listen 127\.0\.0\.1"):
        Rig(Endpoint(f"127.0.0.1:{taken.getsockname()[1]}"), places=1, actors=0)


def test_a_web_proxy_that_the_environment_names_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with rig_at(Endpoint("127.0.0.1:0", TOKEN)) as rig, working(rig):
        assert rig.progresses(0)


# Encryption -----------------------------------------------------------------------------------------------------------


def test_the_stream_is_encrypted_and_the_learner_known_by_its_certificate(
    tmp_path: Path, certified: tuple[Path, Path]
) -> None:
    certificate, key = certified
    with rig_at(Endpoint("localhost:0", TOKEN, Tls(certificate, key))) as rig:
        worker = Worker(rig.connect(tls=Tls(authority=certificate)))
        for _ in range(3):
            worker.step()
        worker.close()
        for tls in (Tls(), Tls(authority=pair(tmp_path, "another")[0])):
            stranger = rig.connect(tls=tls)
            with pytest.raises(LearnerLost, match="no connection: "):
                stranger.join()
            stranger.close()


def test_a_learner_with_an_authority_wants_certificates_of_workers_too(
    tmp_path: Path, certified: tuple[Path, Path]
) -> None:
    certificate, key = certified
    own, own_key = pair(tmp_path, "worker")
    with rig_at(Endpoint("localhost:0", TOKEN, Tls(certificate, key, own))) as rig:
        worker = Worker(rig.connect(tls=Tls(own, own_key, certificate)))
        worker.step()
        worker.close()
        nameless = rig.connect(tls=Tls(authority=certificate))
        with pytest.raises(LearnerLost):
            nameless.join()
        nameless.close()


def test_files_that_are_no_certificates_are_one_line(tmp_path: Path, certified: tuple[Path, Path]) -> None:
    (certificate, key), (_, another) = certified, pair(tmp_path, "b")
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    for tls, message in (
        (Tls(certificate), "--tls-cert and --tls-key go together"),
        (Tls(key=key), "--tls-cert and --tls-key go together"),
        (Tls(certificate, tmp_path / "none"), "--tls-key .*none: no such file"),
        (Tls(certificate, another), "--tls-cert .*mismatch"),
        (Tls(wrong, key), "--tls-cert"),
        (Tls(authority=wrong), "--tls-ca"),
        (Tls(authority=certificate), "--tls-ca .* goes with --tls-cert and --tls-key"),
    ):
        with pytest.raises(UserError, match=message) as refused:
            Endpoint("localhost:0", TOKEN, tls).check()
        assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match="--tls-key of a worker go with --tls-ca"):
        Endpoint("localhost:0", tls=Tls(certificate, key)).check_way()


@pytest.mark.parametrize("options", [["--insecure"], ["--tls-ca", "a.pem"], ["--token-file", "/nowhere"]])
def test_options_of_a_door_need_a_door(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(BASE))
    assert cli.main(["train", str(config), "--directory", str(tmp_path / "run"), *options]) == 2
    assert "go with --listen" in capsys.readouterr().err


def test_a_worker_sends_nothing_in_the_clear_to_another_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["worker", "--connect", "192.0.2.1:5000"]) == 2
    assert "--connect 192.0.2.1:5000: the stream would cross the network in the clear" in capsys.readouterr().err


# Unix sockets ---------------------------------------------------------------------------------------------------------


def test_a_socket_that_a_dead_learner_has_left_is_replaced(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "s"))
    left.close()
    with rig_at(Endpoint(f"unix:{tmp_path}/s", TOKEN)) as rig, working(rig):
        assert rig.progresses(0)


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o701, 0o1777])
def test_neither_side_trusts_a_folder_that_others_may_enter(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "planted"
    folder.mkdir()
    folder.chmod(mode)
    for side in (Endpoint(f"unix:{folder}/s", TOKEN).check, lambda: Connection(Endpoint(f"unix:{folder}/s", TOKEN))):
        with pytest.raises(UserError, match="others may enter it"):
            side()


def test_neither_side_trusts_what_belongs_to_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s").touch()
    check_own_socket(tmp_path / "s")
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    for side in (
        Endpoint(f"unix:{tmp_path}/s", TOKEN).check,
        lambda: Connection(Endpoint(f"unix:{tmp_path}/s", TOKEN)),
    ):
        with pytest.raises(UserError, match="it belongs to user"):
            side()


def test_a_private_folder_in_one_that_all_may_change_or_behind_a_link_is_none(tmp_path: Path) -> None:
    everybody_s = tmp_path / "open"
    own = everybody_s / "own"
    own.mkdir(mode=0o700, parents=True)
    check_private(own)
    everybody_s.chmod(0o777)  # as Ray leaves its own
    with pytest.raises(UserError, match="others may put another folder in its place"):
        check_private(own)
    everybody_s.chmod(0o1777)  # as /tmp is: there only the owner may
    check_private(own)
    (tmp_path / "link").symlink_to(own)
    with pytest.raises(UserError, match="no folder"):
        check_private(tmp_path / "link")


@pytest.mark.parametrize("sticky", [0, 0o1000])
def test_a_private_folder_below_one_of_another_user_or_group_is_none(tmp_path: Path, sticky: int) -> None:
    other = tmp_path / "other"
    own = other / "own"
    own.mkdir(mode=0o700, parents=True)
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    os.chown(other, 54321, -1)
    other.chmod(0o755 | sticky)
    with pytest.raises(UserError, match="others may put another folder in its place"):
        check_private(own)
    os.chown(other, 0, 54321)
    check_private(own)
    other.chmod(0o775 | sticky)
    with pytest.raises(UserError, match="in its place") if not sticky else nullcontext():
        check_private(own)


def test_the_socket_of_an_own_cluster_is_not_in_the_folder_that_ray_opens_to_all(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir(mode=0o700)
    endpoint = own_endpoint(folder, "0")
    endpoint.check()
    assert Path(endpoint.address.removeprefix("unix:")).parent == folder
    folder.chmod(0o777)
    with pytest.raises(UserError, match="others may enter it"):
        endpoint.check()


ODD = ["a#b", "a%20b", "a%b", "a b", "a?b", "ä", "x" * 100]


@pytest.mark.parametrize("name", ODD)
def test_an_odd_or_long_temporary_directory_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
    folder = private_folder("ddrl-test-")
    try:
        assert folder.parent != tmp_path / name
        check_private(folder)
        with rig_at(Endpoint(f"unix:{folder / private_folders.SOCKET}", TOKEN)) as rig, working(rig):
            assert rig.progresses(0)
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


@pytest.mark.parametrize("name", ODD[:-1])
def test_a_socket_with_an_odd_path_is_reached(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(mode=0o700)
    with rig_at(Endpoint(f"unix:{tmp_path / name}/s", TOKEN)) as rig, working(rig):
        assert (tmp_path / name / "s").is_socket()
        assert rig.progresses(0)


def test_a_socket_s_path_need_not_be_utf_8(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir(mode=0o700)
    with rig_at(Endpoint(f"unix:{folder}/s", TOKEN)) as rig, working(rig):
        assert rig.progresses(0)


def test_a_socket_whose_path_is_too_long_is_one_line(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/{'x' * 107}"
    for side in (Endpoint(address, TOKEN).check, lambda: Connection(Endpoint(address))):
        with pytest.raises(UserError, match="has 1 to 107 bytes"):
            side()


# Connections ----------------------------------------------------------------------------------------------------------

LEARNER = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))
from pathlib import Path
import torch
from ddrl.training.records import checkpoint
from ddrl.inference import service
from ddrl.inference.endpoint import Endpoint
from tests.inference.service_test import TOKEN, Rig
service.HANDSHAKE_SECONDS = 1.0
rig = Rig(Endpoint("127.0.0.1:0", TOKEN), places=2, actors=2)
print(rig.service.address, resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
for line in sys.stdin:
    checkpoint.save(Path(sys.argv[1]), int(line), {"a": torch.zeros(3)})
    print(len(os.listdir("/proc/self/fd")), flush=True)
os._exit(0)
"""
HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


def test_more_connections_than_descriptors_cost_neither_a_checkpoint_nor_a_worker(tmp_path: Path) -> None:
    """Nobody proves anything: some are mute, some speak HTTP/2 and begin no stream."""
    command = [sys.executable, "-c", LEARNER, str(tmp_path)]
    learner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert learner.stdin is not None and learner.stdout is not None

    def saved(number: int) -> int:
        """Saves a checkpoint; the descriptors that the learner has then."""
        print(number, file=learner.stdin, flush=True)
        return int(learner.stdout.readline())

    try:
        address, limit = learner.stdout.readline().split()
        host, port = address.split(":")
        assert int(limit) == 300  # raised as far as is allowed
        before = saved(1)
        with ExitStack() as stack:
            worker = Worker(Connection(Endpoint(address, TOKEN)))
            stack.callback(worker.close)
            for index in range(400):
                stranger = stack.enter_context(socket.create_connection((host, int(port))))
                if index % 2:
                    stranger.sendall(HTTP2_HELLO)
            assert saved(2) <= before + 2 + service_module.SPARE_CONNECTIONS + 10
            for _ in range(20):
                worker.step()  # who is in is not disturbed
            assert until(lambda: saved(3) < before + 10, 20), "they hold on"
            another = Worker(Connection(Endpoint(address, TOKEN)))
            another.step()
            another.close()
    finally:
        learner.kill()
        learner.wait()
        learner.stdin.close()
        learner.stdout.close()
    assert {path.name for path in tmp_path.glob("*.sha256")} >= {"000000000002.sha256"}


def test_a_limit_that_is_too_low_for_the_workers_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, limits = psutil.Process().num_fds(), [(100, 200)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    room = 200 - opened - descriptors.KEPT_FREE
    descriptors.make_room(max(0, room - 10))
    assert limits[-1] == (200, 200)
    with pytest.raises(UserError, match=r"may have 200 files open, and its workers need \d+ \(ulimit -n\)"):
        descriptors.make_room(room + 50)
