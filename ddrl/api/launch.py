"""Train: a population or a single run, on the runtime or by the library that its configuration names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from ddrl.errors import UserError
from ddrl.inference.endpoint import Endpoint
from ddrl.runtimes.local import train_local
from ddrl.system.calls import watched
from ddrl.system.locks import locked
from ddrl.system.notes import say
from ddrl.training.config.run_config import RunConfig, load_run_config, to_json
from ddrl.training.device import check_endpoint
from ddrl.training.records import finished
from ddrl.training.records.recorder import write_json
from ddrl.training.records.trackers import check_installed


def train(
    config: RunConfig,
    directory: Path,
    *,
    quiet: bool = False,
    named: bool = True,
    wait: float = 0.0,
    endpoint: Endpoint | None = None,
) -> str:
    """Train or resume in `directory`; return the exit reason, `budget_reached` or `interrupted`.

    A run that has finished is left as it is, and the user is told. `config.json` is written once nothing refuses the
    configuration any more.

    Args:
        named: whether the caller chose the directory; another one is said once the configuration is accepted.
        wait: seconds to wait for another process that trains there.
        endpoint: where environment workers come to, if any do.

    Raises: UserError where another process trains there, another run has finished there, or the configuration cannot
        be trained on this machine.
    """
    check_installed(config.tracking)
    if endpoint:
        check_endpoint(config, endpoint)
    if finished.told(config, directory):  # without a lock: its file would be a change
        return "budget_reached"
    torch.set_num_threads(1)
    with _made(directory), locked(directory, wait, lambda line: say(f"ddrl: {line}")), watched():
        if finished.told(config, directory):  # whoever had the lock has ended it
            return "budget_reached"
        path = directory / "config.json"
        is_stated = path.exists() and load_run_config(path) == config

        def state() -> None:
            if not named:
                say(f"run directory: {directory}")
            finished.set_aside(config, directory)
            if not is_stated:
                write_json(path, to_json(config))

        if config.peer:
            from ddrl.peers.train import train_peer  # only where it is used

            return train_peer(config, directory, quiet=quiet, accepted=state)
        if config.population:
            from ddrl.population.controller import Controller  # only where it is used

            controller = Controller(config, directory, quiet=quiet)
            state()
            return controller.train()
        if config.topology.runtime == "ray":
            from ddrl.runtimes.ray.launch import train_with_ray  # Ray is slow to import, so only where it is used

            return train_with_ray(config, directory, quiet=quiet, accepted=state)
        return train_local(config, directory, quiet=quiet, accepted=state, endpoint=endpoint)


@contextmanager
def _made(directory: Path) -> Iterator[None]:
    """Make a run directory; remove it again where the configuration is refused before anything is written into it.

    Folders above it that were made for it go, too.
    """
    own = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except UserError:
        with suppress(OSError):  # it is gone, or another run is beside it by now
            if own and {path.name for path in directory.iterdir()} <= {"lock"}:
                (directory / "lock").unlink(missing_ok=True)
                for path in own:
                    path.rmdir()
        raise
