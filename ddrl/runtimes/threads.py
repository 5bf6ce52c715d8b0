"""Runtime `threads`: each role a thread of one process; native environments and torch release the global lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch

from ddrl.coordinator.program import Program, Service
from ddrl.errors import Closed

POLL_SECONDS = 0.05
ENDING_SECONDS = 5.0
"""For actors and the evaluator to end what they are at. Who hangs in an environment is left behind, and harms nobody:
whatever it calls of the run raises `Closed`, and its thread is no reason for the process to go on."""


class ThreadsRuntime:
    """Runs the roles until the program is finished; the first error in any of them ends the run and is raised."""

    saves_roles = False
    """What actors are at is lost; the learner's side is not."""

    def state_dict(self) -> dict[str, str]:
        """Nothing of its own."""
        return {}

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Nothing to do."""

    def run(self, program: Program) -> None:
        """Until the program is finished or interrupted."""
        over = threading.Event()
        errors: list[BaseException] = []

        def act(role: Service) -> None:
            while not over.is_set():
                role.step()

        def learn() -> None:
            while not (over.is_set() or program.finished() or program.interrupted()):
                program.learner.step()
            over.set()

        def evaluate() -> None:
            while not over.wait(0 if program.evaluator.ready() else POLL_SECONDS):
                if program.evaluator.ready():
                    program.evaluator.step()

        def thread(name: str, loop: Callable[[], None]) -> threading.Thread:
            def body() -> None:
                torch.set_num_threads(1)  # per thread: two intra-op threads collapse beside busy actors
                try:
                    loop()
                except Closed:
                    pass
                except BaseException as error:
                    errors.append(error)
                    over.set()

            return threading.Thread(target=body, name=name, daemon=True)

        actors = [thread(f"actor-{i}", lambda role=role: act(role)) for i, role in enumerate(program.actors)]  # type: ignore[misc]
        others = [thread(name, lambda role=role: act(role)) for name, role in program.services.items()]  # type: ignore[misc]
        others += [thread("learner", learn)]
        evaluator = thread("evaluator", evaluate)
        for worker in [*actors, *others, evaluator]:
            worker.start()
        while not over.wait(POLL_SECONDS):  # the main thread stays free for signals
            if program.interrupted():
                over.set()
        program.close()
        for worker in others:  # the learner may be saving
            worker.join()
        end = time.monotonic() + ENDING_SECONDS
        for worker in [*actors, evaluator]:
            worker.join(max(0.0, end - time.monotonic()))
        if errors:
            raise errors[0]
