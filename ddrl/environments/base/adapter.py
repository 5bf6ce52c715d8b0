"""What a module of environments exports: `ADAPTER`, an `Adapter`, whose tasks are called `prefix/task`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ddrl.types import Array, DeviceVectorEnv, EnvSpec, VectorEnv

if TYPE_CHECKING:
    from ddrl.environments.tools.camera import Camera


@dataclass(frozen=True)
class Option:
    """An option's default, which also fixes its type, and its inclusive range (numbers), or its values (texts)."""

    default: bool | int | float | str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    unread_with: tuple[str, bool | float] | None = None
    """Another option and the value of it with which this one is not read; None: it always is."""

    def describe(self) -> str:
        """Return what is allowed, in words."""
        if isinstance(self.default, bool):
            return "true, false"
        if isinstance(self.default, str):
            return ", ".join(self.choices)
        kind = "integers" if isinstance(self.default, int) else "numbers"
        return f"{kind} from {self.low} to {self.high}"

    def accepts(self, value: object) -> bool:
        """Return whether `value` has the right type and lies in the range."""
        if isinstance(self.default, bool) or isinstance(value, bool):
            return isinstance(self.default, bool) and isinstance(value, bool)
        if isinstance(self.default, str):
            return value in self.choices
        if not isinstance(value, int | float) or (isinstance(self.default, int) and not isinstance(value, int)):
            return False
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


class Options(Protocol):
    """Task -> {name: option}; a mapping, or what knows more tasks than it lists."""

    def __getitem__(self, task: str, /) -> Mapping[str, Option]:
        """Return the options of a task."""

    def __contains__(self, task: object, /) -> bool:
        """Return whether there is such a task."""


@dataclass(frozen=True)
class OwnTerms:
    """What lets a policy act in the environment that the simulator itself makes, such as that of `gymnasium.make`."""

    encode: Callable[[Any], Array | None]
    """An observation of that environment -> the one that a policy takes; None for what is no such observation."""
    decode: Callable[[Any], Any]
    """An action of a policy, an integer or numbers [A] in [-1, 1] -> the one that environment takes."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """The environments of one prefix. What has a default may be left out."""

    tasks: Sequence[str]
    """Names of all tasks."""
    options: Options
    spec: Callable[..., EnvSpec]
    """`spec(task, **options)`; cheap: it builds no vector environment."""
    make: Callable[..., VectorEnv]
    """`make(task, num_envs, seed, *, num_threads=1, **options)`, with every option given. `num_threads`: how many
    native threads may step the environments."""
    examples: Mapping[str, Mapping[str, Any]]
    """Task -> options: what the conformance check runs on. Episodes must end within some hundred steps."""
    make_on_device: Callable[..., DeviceVectorEnv | None] | None = None
    """`make_on_device(task, num_envs, seed, device, **options)`, with every option given: environments that step on a
    device of torch, such as "cuda:0", and whose steps are tensors there. None: not with these options. Runs with
    `topology.acting: device` ask for them first, and use those of `make` where there are none."""
    suites: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Name -> tasks that one agent can play: with the same observations, actions and frame skip."""
    reference_scores: str | None = None
    """The file with random and human scores of its tasks: in `replications/references/`, or an absolute path."""
    camera: Callable[..., Camera] | None = None
    """`camera(task, seed, **options)` shows more than what an agent sees (`ddrl.environments.tools.camera`)."""
    own_terms: Callable[..., OwnTerms] | None = None
    """`own_terms(task, **options)`, where the simulator has environments that people step themselves."""
    recipe: Callable[..., Mapping[str, Any]] | None = None
    """`recipe(task, **options)`: how another library's driver makes the same task, as plain data that
    `workflows/peers/drivers/environments.py` reads. Raises UserError for what is not made there."""
    extras: Mapping[str, tuple[Sequence[str], Sequence[str]]] = field(default_factory=dict)
    """Tasks, as `ddrl doctor` names them -> Python packages and shared libraries that only these need."""
    missing: Callable[[], str] = str
    """Say why nothing can be made, if the module can be imported without its simulator; `examples` is then empty."""
