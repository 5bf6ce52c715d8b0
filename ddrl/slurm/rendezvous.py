"""The protocol by which the tasks of a job connect to the first one, over a port that anybody may call.

    client -> server   rank, nonce        8 and 64 hexadecimal digits
    server -> client   nonce
    client -> server   proof              `ddrl.inference.proof`
    server -> client   proof

Several clients are served at once, each within `PROOF_SECONDS`. Then the connection stays open; its end tells each
side that the other one has gone.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from ddrl.errors import UserError
from ddrl.inference.proof import CLIENT, LENGTH, SERVER, holds, nonce, proof

PROOF_SECONDS = 10.0
"""Time for a client to prove that it knows the token."""
MOST_CLIENTS = 64
"""Clients served at once; beyond that, the oldest one without a proof is disconnected."""
LOOK_SECONDS = 0.2
_RANK = 8


def accept_all(
    listener: socket.socket, number: int, token: str, seconds: float, is_over: Callable[[], bool]
) -> list[socket.socket]:
    """Return the connections of `number` tasks of different ranks that know the token; disconnect all others.

    Raise UserError if they have not come within `seconds`, or once `is_over()`.
    """
    proven: queue.SimpleQueue[tuple[str, socket.socket]] = queue.SimpleQueue()
    pending: dict[socket.socket, threading.Thread] = {}
    found: dict[str, socket.socket] = {}
    end = time.monotonic() + seconds
    listener.settimeout(LOOK_SECONDS)
    with ExitStack() as left:  # if not all come, all are disconnected
        left.callback(lambda: _disconnect(*pending, *found.values()))
        while len(found) < number:
            if time.monotonic() > end or is_over():
                raise UserError(f"{number - len(found)} of the job's nodes did not come within {seconds:.0f} s")
            with suppress(OSError):  # nobody called within LOOK_SECONDS, or the caller is gone again
                client = listener.accept()[0]
                pending[client] = threading.Thread(target=_authenticate, args=(client, token, proven), daemon=True)
                pending[client].start()
            while len(pending) > MOST_CLIENTS:
                oldest = next(iter(pending))
                _disconnect(oldest)
                pending.pop(oldest).join(LOOK_SECONDS)  # else threads would pile up on a busy machine
            while not proven.empty():
                rank, client = proven.get()
                pending.pop(client, None)
                if rank and rank in found:  # the task has connected again
                    _disconnect(found[rank])
                if rank:
                    found[rank] = client
        left.pop_all()
    _disconnect(*pending)
    return list(found.values())


def call(address: tuple[str, int], rank: int, token: str, seconds: float) -> socket.socket:
    """Return a connection to a server that knows the token. Raise OSError if there is none."""
    with ExitStack() as stack:
        end = time.monotonic() + seconds
        connection = stack.enter_context(socket.create_connection(address, seconds))
        said = [f"{rank:0{_RANK}x}", nonce()]
        connection.sendall("".join(said).encode())
        said.append(_read(connection, LENGTH, end))
        connection.sendall(proof(token, CLIENT, *said).encode())
        if not holds(_read(connection, LENGTH, end), token, SERVER, *said):
            raise ConnectionError("who answers does not know the token")
        connection.settimeout(None)
        stack.pop_all()
        return connection


def _authenticate(client: socket.socket, token: str, proven: queue.SimpleQueue[tuple[str, socket.socket]]) -> None:
    """Check a client, and put it into `proven` with its rank, or with "" and closed if it proved nothing."""
    rank = ""
    with suppress(OSError, ValueError):
        end = time.monotonic() + PROOF_SECONDS
        said = [_read(client, _RANK, end), _read(client, LENGTH, end), nonce()]
        client.sendall(said[-1].encode())
        if holds(_read(client, LENGTH, end), token, CLIENT, *said):
            client.sendall(proof(token, SERVER, *said).encode())
            client.settimeout(None)
            rank = said[0]
    if not rank:
        client.close()
    proven.put((rank, client))


def _read(connection: socket.socket, size: int, end: float) -> str:
    """Read `size` characters. Raise OSError, also if they have not come by `end`, or ValueError if not ASCII."""
    read = b""
    while len(read) < size:
        connection.settimeout(max(0.001, end - time.monotonic()))
        if time.monotonic() > end or not (more := connection.recv(size - len(read))):
            raise ConnectionError("nothing more was said")
        read += more
    return read.decode("ascii")


def _disconnect(*clients: socket.socket) -> None:
    for client in clients:
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)  # also wakes the thread that reads from it
        client.close()
