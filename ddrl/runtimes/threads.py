"""Runtime `threads`: one process, a thread for each role; native environments and torch release the global lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import torch

from ddrl.coordinator.program import Program
from ddrl.errors import Closed
from ddrl.interfaces import Service

POLL_SECONDS = 0.05
ENDING_SECONDS = 5.0
"""Actors and the evaluator have this time to end their step. A thread that hangs in an environment is left behind and
does no harm: its calls into the run raise `Closed`, and the process may end without it."""


class ThreadsRuntime:
    """A runtime with a thread for each role; the first error of any role ends the run and is raised."""

    generator = None  # the learner's side is saved, and what actors have begun is lost

    def run(self, program: Program) -> None:
        """Run until the program is finished or interrupted."""
        over = threading.Event()
        errors: list[BaseException] = []

        def step(role: Service) -> None:
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

        def body(loop: Callable[[], None]) -> None:
            torch.set_num_threads(1)  # per thread: two intra-op threads are slow beside busy actors
            try:
                loop()
            except Closed:
                pass
            except BaseException as error:
                errors.append(error)
                over.set()

        def thread(name: str, loop: Callable[[], None]) -> threading.Thread:
            return threading.Thread(target=body, args=(loop,), name=name, daemon=True)

        actors = [thread(f"actor-{i}", partial(step, role)) for i, role in enumerate(program.actors)]
        others = [thread(name, partial(step, role)) for name, role in program.services.items()]
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
