"""Environment workers that a run starts on its own machine: a process for each actor, replaced where it dies.

Runtime threads has them with `topology.central.worker_processes`. Each is `python -m ddrl.inference.worker_pool ADDRESS
PLACE GENERATION` and reads the run's token from its standard input, where no other user sees it. It ends with its
learner, however that ends.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

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
"""Time for workers to close their environments when the run is over; then they are killed."""
FAILED, LOST = 2, HANGING
"""Exit statuses of a worker. FAILED: its environments could not be made, or raised (`exit_code`). LOST: they do not
answer, or the learner is lost."""


class LocalWorkers:
    """A service: the workers of one learner, each of which is replaced when it dies."""

    def __init__(
        self,
        describe: Callable[[int, int], str],
        delivered: Callable[[], Sequence[int]],
        note: Callable[[str], None],
        restarted: Callable[[], None],
    ) -> None:
        """Make the endpoint, and start nothing yet.

        `describe`: (slot, restarts) -> the worker's name in messages. `delivered`: returns the unrolls of each slot.
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
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._restarts = Counter[int]()
        self._policy = RestartPolicy()

    def start(self, number: int) -> None:
        """Start so many workers, for the learner that listens at `endpoint`."""
        self._processes = [self._start(slot) for slot in range(number)]

    def _start(self, slot: int) -> subprocess.Popen[bytes]:
        command = [*COMMAND, self.endpoint.address, str(slot), str(self._restarts[slot])]
        with deaf_children(*STOP):
            process = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert process.stdin is not None and self.endpoint.token is not None
        with suppress(BrokenPipeError), process.stdin as pipe:  # of one that is dead already
            pipe.write(self.endpoint.token.encode())
        return process

    def step(self) -> None:
        """Wait a moment, then replace the workers that have died.

        Raise `Closed` once the run is over, UserError if environments fail or a worker dies again and again.
        """
        if self._over.wait(POLL_SECONDS):
            raise Closed
        with self._lock:
            for slot, process in enumerate(self._processes):
                if (status := process.poll()) and not self._over.is_set():
                    self._replace(slot, status)

    def _replace(self, slot: int, status: int) -> None:
        name = self._describe(slot, self._restarts[slot])
        if status == FAILED:
            raise UserError(f"{name}: its process cannot go on; what it wrote stands above")
        reason = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        deaths = self._policy.died(slot, self._delivered()[slot])
        if gives_up(deaths):
            raise UserError(f"{name}: its process died {deaths} times in a row without an unroll ({reason})")
        self._restarts[slot] += 1
        self._processes[slot] = self._start(slot)
        self._note(f"{name}: its process died ({reason}); a new one takes its place")
        self._restarted()

    def close(self) -> None:
        """Wait for the processes to end, and kill those that do not."""
        self._over.set()
        end = time.monotonic() + ENDING_SECONDS
        with self._lock:
            for process in self._processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, end - time.monotonic()))
                process.kill()
                process.wait()
        self._claim.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _work(address: str, place: int, generation: int) -> int:
    """Work until the run is over or the learner is lost; return the exit status."""
    with closing(Connection(Endpoint(address, sys.stdin.read()))) as connection:
        try:
            worker = Worker(connection, place=place, generation=generation)
            while True:
                worker.step()
        except Closed:
            return 0
        except LearnerLost as lost:
            return 0 if lost.was_interrupted else LOST


def main(arguments: Sequence[str]) -> int:
    """Run one worker; return its exit status."""
    address, place, generation = arguments
    keep_freed_memory()
    with watched(give_up=give_up):
        return exit_code(lambda: _work(address, int(place), int(generation)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
