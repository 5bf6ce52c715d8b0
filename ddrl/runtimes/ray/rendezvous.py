"""Where the learners of a run find each other, for `torch.distributed`.

Its stores ask nobody who he is. On one machine they meet in a file that no other user can reach. On several it is a
port, at which whoever reaches it may read and set keys: so the learners have a token too, which travels with what else
the cluster's processes say to each other, and each proves to the others that it knows it (`DistributedReducer`).
"""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ddrl.system.private_folders import check_private

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # not in its __all__


class Meeting(NamedTuple):
    """What a learner is told."""

    host: str
    """Empty: on one machine, in a file."""
    where: str
    """The file's path, or the port."""
    token: str


class Met(NamedTuple):
    """What a learner has of a meeting."""

    store: Store
    token: str


def open_in(folder: Path) -> Meeting:
    """Return a new meeting in a folder of this machine. Raise UserError where others can enter it."""
    check_private(folder)
    return Meeting("", str(folder / f"learners-{secrets.token_hex(8)}"), secrets.token_hex(32))


def open_at(host: str) -> tuple[Meeting, Met]:
    """Return a new meeting at an address of this machine, and nowhere else, for as long as the store is there."""
    listening = socket.create_server((host, 0))
    port = listening.getsockname()[1]
    store = _store(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    meeting = Meeting(host, str(port), secrets.token_hex(32))
    return meeting, Met(store, meeting.token)


def join(meeting: Meeting) -> Met:
    """Return what a learner has of a meeting that another one has opened."""
    if meeting.host:
        return Met(_store(meeting.host, int(meeting.where), is_master=False), meeting.token)
    from torch.distributed import FileStore  # type: ignore[attr-defined]  # not in its __all__

    return Met(FileStore(meeting.where), meeting.token)


def _store(host: str, port: int, **options: Any) -> Store:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

    return TCPStore(host, port, **options)
