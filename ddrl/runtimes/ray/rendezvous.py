"""The rendezvous of the learners of a run, for `torch.distributed`.

The stores of `torch.distributed` have no access control. On one machine learners meet in a file that no other user can
reach. On several they meet at a port, where anyone may read and set keys. So they also get a token, with the other
messages between the cluster's processes, and each proves to the others that it knows it (`DistributedReducer`).
"""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ddrl.system.private_folders import check_private

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # not in its __all__


class Rendezvous(NamedTuple):
    """A rendezvous, as other learners are told of it."""

    host: str  # empty: on one machine, in a file
    where: str  # the file's path, or the port
    token: str


class Met(NamedTuple):
    """A rendezvous that a learner has joined."""

    store: Store
    token: str


def open_in(folder: Path) -> Rendezvous:
    """Return a new meeting in a folder of this machine. Raise UserError where others can enter it."""
    check_private(folder)
    return Rendezvous("", str(folder / f"learners-{secrets.token_hex(8)}"), secrets.token_hex(32))


def open_at(host: str) -> tuple[Rendezvous, Met]:
    """Return a new meeting at one address of this machine; it lasts as long as the store."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

    listening = socket.create_server((host, 0))
    port, token = listening.getsockname()[1], secrets.token_hex(32)
    store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    return Rendezvous(host, str(port), token), Met(store, token)


def join(meeting: Rendezvous) -> Met:
    """Join a meeting that another learner has opened."""
    from torch.distributed import FileStore, TCPStore  # type: ignore[attr-defined]  # not in its __all__

    host, where, token = meeting
    return Met(TCPStore(host, int(where), is_master=False) if host else FileStore(where), token)
