"""Environment workers that a run starts on its own machine: a process for each actor, replaced where it dies.

Runtime threads has them with `topology.central.worker_processes`. Each is `python -m ddrl.inference.worker_pool ADDRESS
PLACE GENERATION`, with the run's token in its standard input, where no other user sees it, and ends with its learner,
however that ends.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from ddrl.coordinator.restarts import RestartPolicy, gives_up
from ddrl.errors import Closed, UserError
from ddrl.inference.client import Connection, LearnerLost
from ddrl.inference.endpoint import Endpoint
from ddrl.inference.worker import HANGING, Worker, give_up
from ddrl.system.allocator import keep_freed_memory
from ddrl.system.calls import watched
from ddrl.system.exit_code import exit_code
from ddrl.system.private_folders import SOCKET, private_folder
from ddrl.system.signals import STOP, deaf_children
from ddrl.system.temporary import claim, remove_left

COMMAND = (sys.executable, "-m", "ddrl.inference.worker_pool")
POLL_SECONDS = 0.1
ENDING_SECONDS = 10.0
"""For workers to close their environments when the run is over; then they are killed."""
FAILED, LOST = 2, HANGING
"""Exit statuses of a worker: its environments could not be made, or raised (`exit_code`); they hang, or the learner is
lost."""


class LocalWorkers:
    """The workers of one learner, and a role that looks after them."""

    def __init__(
        self,
        describe: Callable[[int, int], str],
        delivered: Callable[[], Sequence[int]],
        note: Callable[[str], None],
        restarted: Callable[[], None],
    ) -> None:
        """Starts nothing yet.

        `describe`: (place, restarts) -> what a message calls it. `delivered`: unrolls of each place so far.
        """
        self._folder = private_folder("ddrl-workers-")
        remove_left(self._folder.parent, "ddrl-workers-")
        self._claim = claim(self._folder)
        self.endpoint = Endpoint(f"unix:{self._folder / SOCKET}", secrets.token_hex(32))
        self._describe = describe
        self._delivered = delivered
        self._note = note
        self._restarted = restarted
        self._over = threading.Event()
        self._looking = threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._restarts: list[int] = []
        self._policy = RestartPolicy()

    def start(self, number: int) -> None:
        """Sends so many to the learner that listens at `endpoint`."""
        self._restarts = [0] * number
        self._processes = [self._started(place) for place in range(number)]

    def _started(self, place: int) -> subprocess.Popen[bytes]:
        command = [*COMMAND, self.endpoint.address, str(place), str(self._restarts[place])]
        with deaf_children(*STOP):
            process = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert process.stdin is not None and self.endpoint.token is not None
        with suppress(BrokenPipeError), process.stdin as pipe:  # of one that is dead already
            pipe.write(self.endpoint.token.encode())
        return process

    def ready(self) -> bool:
        """Nobody asks: a thread of its own looks after them."""
        return True

    def step(self) -> None:
        """Looks at all of them, once in a while.

        Raises `Closed` once the run is over, UserError where environments fail or a worker dies again and again.
        """
        if self._over.wait(POLL_SECONDS):
            raise Closed
        with self._looking:
            for place, process in enumerate(self._processes):
                if (status := process.poll()) and not self._over.is_set():
                    self._replace(place, status)

    def _replace(self, place: int, status: int) -> None:
        name = self._describe(place, self._restarts[place])
        if status == FAILED:
            raise UserError(f"{name}: its process cannot go on; what it wrote stands above")
        reason = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        deaths = self._policy.died(place, self._delivered()[place])
        if gives_up(deaths):
            raise UserError(f"{name}: its process died {deaths} times in a row without an unroll ({reason})")
        self._restarts[place] += 1
        self._processes[place] = self._started(place)
        self._note(f"{name}: its process died ({reason}); a new one takes its place")
        self._restarted()

    def close(self) -> None:
        """Ends the processes that the learner has sent away, or that never came to it."""
        self._over.set()
        end = time.monotonic() + ENDING_SECONDS
        with self._looking:
            for process in self._processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, end - time.monotonic()))
                process.kill()
                process.wait()
        self._claim.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _work(address: str, place: int, generation: int) -> int:
    """Until the learner says that the run is over, or is lost; returns the exit status."""
    connection = Connection(address, token=sys.stdin.read())
    try:
        worker = Worker(connection, place=place, generation=generation)
        while True:
            worker.step()
    except Closed:
        return 0
    except LearnerLost as lost:
        return 0 if lost.was_interrupted else LOST
    finally:
        connection.close()


def main(arguments: Sequence[str]) -> int:
    """One worker; returns its exit status."""
    address, place, generation = arguments
    keep_freed_memory()
    with watched(give_up=give_up):
        return exit_code(lambda: _work(address, int(place), int(generation)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
