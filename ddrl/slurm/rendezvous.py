"""The protocol by which the tasks of a job connect to the first one, over a port that anybody may call.

    visitor -> host   rank, nonce        8 and 64 hexadecimal digits
    host -> visitor   nonce
    visitor -> host   proof              `ddrl.inference.proof`
    host -> visitor   proof

Several visitors are served at once, each within `VISIT_SECONDS`. Then the connection stays open; its end tells each
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
from ddrl.inference.proof import HOST, LENGTH, VISITOR, holds, nonce, proof

VISIT_SECONDS = 10.0
"""Time for a visitor to prove that it knows the token."""
MOST_VISITORS = 64
"""Visitors served at once; beyond that, the oldest one without a proof is disconnected."""
LOOK_SECONDS = 0.2
_RANK = 8


def welcome(
    listener: socket.socket, number: int, token: str, seconds: float, is_over: Callable[[], bool]
) -> list[socket.socket]:
    """Return the connections of `number` tasks of different ranks that know the token; disconnect all others.

    Raise UserError if they have not come within `seconds`, or once `is_over()`.
    """
    came: queue.SimpleQueue[tuple[str, socket.socket]] = queue.SimpleQueue()
    hearing: dict[socket.socket, threading.Thread] = {}
    found: dict[str, socket.socket] = {}
    end = time.monotonic() + seconds
    listener.settimeout(LOOK_SECONDS)
    with ExitStack() as left:  # if not all come, all are disconnected
        left.callback(lambda: _send_away(*hearing, *found.values()))
        while len(found) < number:
            if time.monotonic() > end or is_over():
                raise UserError(f"{number - len(found)} of the job's nodes did not come within {seconds:.0f} s")
            with suppress(OSError):  # nobody called within LOOK_SECONDS, or the caller is gone again
                visitor = listener.accept()[0]
                hearing[visitor] = threading.Thread(target=_hear, args=(visitor, token, came), daemon=True)
                hearing[visitor].start()
            while len(hearing) > MOST_VISITORS:
                oldest = next(iter(hearing))
                _send_away(oldest)
                hearing.pop(oldest).join(LOOK_SECONDS)  # else threads would pile up on a busy machine
            while not came.empty():
                rank, visitor = came.get()
                hearing.pop(visitor, None)
                if rank and rank in found:  # the task has connected again
                    _send_away(found[rank])
                if rank:
                    found[rank] = visitor
        left.pop_all()
    _send_away(*hearing)
    return list(found.values())


def call(address: tuple[str, int], rank: int, token: str, seconds: float) -> socket.socket:
    """Return a connection to a host that knows the token. Raise OSError if there is none."""
    with ExitStack() as stack:
        end = time.monotonic() + seconds
        connection = stack.enter_context(socket.create_connection(address, seconds))
        said = [f"{rank:0{_RANK}x}", nonce()]
        connection.sendall("".join(said).encode())
        said.append(_read(connection, LENGTH, end))
        connection.sendall(proof(token, VISITOR, *said).encode())
        if not holds(_read(connection, LENGTH, end), token, HOST, *said):
            raise ConnectionError("who answers does not know the token")
        connection.settimeout(None)
        stack.pop_all()
        return connection


def _hear(visitor: socket.socket, token: str, came: queue.SimpleQueue[tuple[str, socket.socket]]) -> None:
    """Check a visitor, and put it into `came` with its rank, or with "" and closed if it proved nothing."""
    rank = ""
    with suppress(OSError, ValueError):
        end = time.monotonic() + VISIT_SECONDS
        said = [_read(visitor, _RANK, end), _read(visitor, LENGTH, end), nonce()]
        visitor.sendall(said[-1].encode())
        if holds(_read(visitor, LENGTH, end), token, VISITOR, *said):
            visitor.sendall(proof(token, HOST, *said).encode())
            visitor.settimeout(None)
            rank = said[0]
    if not rank:
        visitor.close()
    came.put((rank, visitor))


def _read(connection: socket.socket, size: int, end: float) -> str:
    """Read `size` characters. Raise OSError, also if they have not come by `end`, or ValueError if not ASCII."""
    read = b""
    while len(read) < size:
        connection.settimeout(max(0.001, end - time.monotonic()))
        if time.monotonic() > end or not (more := connection.recv(size - len(read))):
            raise ConnectionError("nothing more was said")
        read += more
    return read.decode("ascii")


def _send_away(*visitors: socket.socket) -> None:
    for visitor in visitors:
        with suppress(OSError):
            visitor.shutdown(socket.SHUT_RDWR)  # also wakes the thread that reads from it
        visitor.close()
