"""Where the learners of a run meet: who can be there, and what they make of a stranger."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
import torch
from torch.distributed import FileStore, TCPStore

from ddrl.errors import UserError
from ddrl.learners.all_reduce import DistributedReducer
from ddrl.runtimes.ray import rendezvous as meetings
from tests import processes

TOKEN = "of-this-run"


def test_on_one_machine_they_meet_in_a_file_that_only_this_user_reaches(tmp_path: Path) -> None:
    before = {one.laddr for one in psutil.Process().net_connections() if one.status == psutil.CONN_LISTEN}
    meeting = meetings.open_in(tmp_path)
    ranks = [meetings.join(meeting) for _ in range(2)]
    ranks[0].store.set("a", "1")
    assert ranks[1].store.get("a") == b"1"
    assert isinstance(ranks[1].store, FileStore) and ranks[1].token == meeting.token != meetings.open_in(tmp_path).token
    after = {one.laddr for one in psutil.Process().net_connections() if one.status == psutil.CONN_LISTEN}
    assert after <= before  # no port is open
    tmp_path.chmod(0o777)
    with pytest.raises(UserError, match="others may enter it"):
        meetings.open_in(tmp_path)
    tmp_path.chmod(0o700)


def test_on_several_they_meet_at_one_address_and_no_other_of_the_machine() -> None:
    meeting, met = meetings.open_at("127.0.0.1")
    listening = [one.laddr for one in psutil.Process().net_connections() if one.status == psutil.CONN_LISTEN]
    assert [address.ip for address in listening if address.port == int(meeting.where)] == ["127.0.0.1"]
    met.store.set("a", "1")
    assert meetings.join(meeting).store.get("a") == b"1"


def take_part(rank: int, port: int, token: str, directory: Path) -> None:
    """A rank that knows some token; what comes of it goes to `<rank>.txt`."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = TCPStore("127.0.0.1", port, is_master=False)
    try:
        reducer = DistributedReducer(store, rank, 2, torch.device("cpu"), token)
        total = torch.ones(1)
        reducer.sum_([total])
        (directory / f"{rank}.txt").write_text(str(total.item()))
        reducer.close()
    except ConnectionError as error:
        (directory / f"{rank}.txt").write_text(str(error))
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("token", [TOKEN, "another"])
def test_a_stranger_who_takes_a_rank_is_found_out_before_anything_is_added(tmp_path: Path, token: str) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    tokens = [TOKEN, token]
    started = [processes.start(take_part, rank, store.port, tokens[rank], tmp_path) for rank in range(2)]
    assert [processes.finish(process, 60) for process in started] == [0, 0]
    words = "2.0" if token == TOKEN else "learners [1] do not know the run's token: others have come in their place"
    assert (tmp_path / "0.txt").read_text() == words
