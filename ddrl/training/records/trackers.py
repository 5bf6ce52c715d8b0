"""Where a run's curves are shown while it trains: TensorBoard, Weights & Biases, MLflow (key `tracking`).

A tracker is a view. The results are in `curves.jsonl` and `curves.parquet`, so a tracker that fails never ends a run:
the user is told once, and it is left out until the run is started again. All files stay in the run's directory, unless
the trackers' own environment variables (`WANDB_MODE`, `MLFLOW_TRACKING_URI`) say otherwise.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

from ddrl.errors import UserError, using
from ddrl.system.config_differences import flatten
from ddrl.system.files import read_file, write_whole
from ddrl.system.notes import say

PACKAGES = {"wandb": "wandb", "mlflow": "mlflow"}
"""Tracker -> the package of the extra `trackers` that it needs."""
FILES = ("tensorboard", "wandb", "mlruns", "trackers.json")
"""Folders and files of trackers in a run's directory; the last one has the names by which a resumed run goes on."""
PROJECT = "ddrl"
HEADLINES = ("train/episode_return", "evaluation/return")
"""Tags beside the hyperparameters in TensorBoard's table."""
LONGEST_VALUE, MOST_PARAMETERS = 500, 100
"""Letters of a parameter, and parameters in one call, that every MLflow store takes."""
Scalars = Mapping[str, float]


class Tracker(Protocol):
    """Shows the curves of a run. It is made with the run's directory and its configuration, which it shows once."""

    forgets: ClassVar[bool]
    """True: where a run goes back to a checkpoint, it hides what came later, and is shown the rest again."""

    def log(self, env_frames: int, values: Scalars) -> None:
        """Show values by tag, such as `train/episode_return`, at a number of frames."""

    def close(self) -> None:
        """Write what is left; the run may go on later."""


class TensorBoard:
    """TensorBoard's event files, in the folder `tensorboard`."""

    forgets: ClassVar[bool] = True

    def __init__(self, directory: Path, config: Mapping[str, Any], reached: int | None) -> None:
        """Begin an event file, which hides older events from step `reached` on."""
        from torch.utils.tensorboard import SummaryWriter  # here, since it is slow to import
        from torch.utils.tensorboard.summary import hparams

        _let_the_caller_tell()
        self._folder = directory / "tensorboard"
        with using(self._folder):
            _wait_for_a_later_name(self._folder)
            self._writer = SummaryWriter(str(self._folder), purge_step=reached)
            text = json.dumps(config, indent=1).replace("\n", "\n    ")  # four spaces: a block of code
            self._writer.add_text("configuration", f"    {text}", reached or 0)
            for summary in hparams(_plain(config), dict.fromkeys(HEADLINES, 0.0)):  # type: ignore[no-untyped-call]
                cast(Any, self._writer.file_writer).add_summary(summary)  # `add_hparams` would make another folder

    def log(self, env_frames: int, values: Scalars) -> None:
        """Show values at a step of frames, at once."""
        with using(self._folder):
            for tag, value in values.items():
                self._writer.add_scalar(tag, value, env_frames)
            self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        with using(self._folder):
            self._writer.close()


def _wait_for_a_later_name(folder: Path) -> None:
    """Wait until a new event file's name comes after those in the folder, which TensorBoard reads in order of names.

    A name begins with the second in which it was made; what follows, process and counter, is no order.
    """
    seconds = (path.name.split(".")[3] for path in folder.glob("events.out.tfevents.*"))
    later = max((int(second) for second in seconds if second.isdecimal()), default=0) + 1
    if (left := later - time.time()) <= 1:  # more: of a clock that was ahead
        time.sleep(max(0.0, left))


class WeightsAndBiases:
    """Weights & Biases: in the folder `wandb`, offline unless `WANDB_MODE` says otherwise.

    Values may come out of order, as an evaluation does that has begun before a record: so frames are a value of their
    own, by which all others are drawn, and not wandb's step, which must grow.
    """

    forgets: ClassVar[bool] = False

    def __init__(self, directory: Path, config: Mapping[str, Any], reached: int | None) -> None:
        """Begin or continue a run of the project `WANDB_PROJECT`, or `ddrl`."""
        import wandb

        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        name, _ = known_name(directory, "wandb", lambda: secrets.token_hex(4))
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=str(directory),
            mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]  # wandb checks the text itself
            id=name,
            name=title(config),
            group=title({**config, "seed": None}),
            resume="allow",
            reinit="create_new",
            config=dict(config),
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("env_frames", hidden=True)
        self._run.define_metric("*", step_metric="env_frames")

    def log(self, env_frames: int, values: Scalars) -> None:
        """Show values together with their frames."""
        self._run.log({**values, "env_frames": env_frames})

    def close(self) -> None:
        """End the run for now."""
        self._run.finish()


class MLflow:
    """MLflow: a store of files in the folder `mlruns`, or what `MLFLOW_TRACKING_URI` names.

    Its other store without a server is a database, which needs more packages than `mlflow-skinny` has. Since version
    3.10 files must be allowed by a variable.
    """

    forgets: ClassVar[bool] = False

    def __init__(self, directory: Path, config: Mapping[str, Any], reached: int | None) -> None:
        """Begin a run of the experiment `ddrl`, or continue it."""
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.tracking import MlflowClient

        own = (directory / "mlruns").absolute()
        if "MLFLOW_TRACKING_URI" not in os.environ:
            # MLflow makes its folders once in a process, and a run may begin anew after its folder was moved.
            (own / ".trash").mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI", own.as_uri()))
        self._name, begun = known_name(directory, "mlflow", lambda: self._new(title(config)))
        if begun:
            self._log_parameters(config)
        else:
            self._client.update_run(self._name, status="RUNNING")

    def _new(self, name: str) -> str:
        experiment = self._client.get_experiment_by_name(PROJECT)
        number = experiment.experiment_id if experiment else self._client.create_experiment(PROJECT)
        return str(self._client.create_run(number, run_name=name).info.run_id)

    def _log_parameters(self, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        found = [Param(key, str(value)[:LONGEST_VALUE]) for key, value in flatten(config).items()]
        for first in range(0, len(found), MOST_PARAMETERS):
            self._client.log_batch(self._name, params=found[first : first + MOST_PARAMETERS])

    def log(self, env_frames: int, values: Scalars) -> None:
        """Show values at a step of frames."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._name, [Metric(tag, value, now, env_frames) for tag, value in values.items()])

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._name)


TRACKERS: Mapping[str, Callable[[Path, Mapping[str, Any], int | None], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


class Trackers:
    """The trackers of a run, which begin with its first value, when it is known where the run is resumed."""

    def __init__(
        self,
        names: Iterable[str] = (),
        directory: Path = Path(),
        config: Mapping[str, Any] | None = None,
        tell: Callable[[str], None] = say,
    ) -> None:
        """`names`: keys of `TRACKERS`; `tell` is given a line about each that fails."""
        self._names, self._directory, self._config = tuple(dict.fromkeys(names)), directory, config or {}
        self._tell = tell
        self._open: dict[str, Tracker] | None = None
        self._reached: int | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Begin or continue all of them, unless that is done."""
        with self._lock:
            if self._open is None:
                self._open = {}
                for name in self._names:
                    self._try(name, partial(self._begin_one, name))

    def _begin_one(self, name: str) -> None:
        assert self._open is not None
        self._open[name] = TRACKERS[name](self._directory, self._config, self._reached)

    def log(self, env_frames: int, values: Scalars, *, again: bool = False) -> None:
        """Show values by tag; `again`: only to those that forget where the run goes back to a checkpoint."""
        self.begin()
        with self._lock:
            for name, tracker in list((self._open or {}).items()):
                if tracker.forgets or not again:
                    self._try(name, partial(tracker.log, env_frames, values))

    def go_back(self, reached: int) -> None:
        """Begin them such that what came from `reached` frames on is hidden, where they can."""
        self._reached = reached

    def begin_anew(self, aside: Path) -> None:
        """Move all their files to the folder `aside`; what comes now is another run."""
        self.close()
        for path in (self._directory / name for name in FILES):
            if path.exists():
                path.rename(aside / path.name)

    def close(self) -> None:
        """Close all of them."""
        with self._lock:
            for name, tracker in list((self._open or {}).items()):
                self._try(name, tracker.close)
            self._open = None

    def _try(self, name: str, call: Callable[[], None]) -> None:
        """Call; leave a tracker that fails out from now on, and tell the user."""
        try:
            call()
        except Exception as error:  # of a library, a server or a disk
            if self._open is not None:
                self._open.pop(name, None)
            words = (str(error) or type(error).__name__).splitlines()[0]
            self._tell(f"tracking by {name} has stopped ({words}); the run goes on, and its curves are complete")


def check_installed(names: Iterable[str]) -> None:
    """Raise UserError where the package of a tracker is not installed."""
    for name in names:
        if name in PACKAGES and find_spec(PACKAGES[name]) is None:
            raise UserError(
                f"key 'tracking': {name} needs a package that is not installed; type: pip install 'ddrl[trackers]'"
            )


def title(config: Mapping[str, Any]) -> str:
    """Return a name to show: algorithm, task and, where it has one, the seed."""
    seed = "" if config["seed"] is None else f" seed {config['seed']}"
    return f"{config['algorithm']} {config['environment']['name']}{seed}"


def known_name(directory: Path, tracker: str, make: Callable[[], str]) -> tuple[str, bool]:
    """Return the name of this run in a tracker, kept in `trackers.json`, and whether it was made now."""
    path = directory / FILES[-1]
    names: dict[str, str] = {}
    with suppress(OSError, ValueError):
        names = dict(json.loads(read_file(path)))
    if tracker in names:
        return names[tracker], False
    names[tracker] = make()
    write_whole(path, (json.dumps(names, indent=1) + "\n").encode())
    return names[tracker], True


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as TensorBoard's table of hyperparameters takes it: flat, with texts for other types."""
    flat = flatten(config).items()
    return {key: value if isinstance(value, bool | int | float | str) else str(value) for key, value in flat}


@cache
def _let_the_caller_tell() -> None:
    """Silence tracebacks of TensorBoard's thread at a full disk, once per process: the next call raises the error."""
    otherwise = threading.excepthook

    def tell(error: threading.ExceptHookArgs) -> None:
        if not (isinstance(error.exc_value, OSError) and type(error.thread).__module__.startswith("tensorboard.")):
            otherwise(error)

    threading.excepthook = tell
