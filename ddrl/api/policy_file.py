"""`policy.safetensors`: the parameters of a trained agent, without optimizer, replay or code, beside a run's manifest.

It holds every parameter and buffer of the network, so the statistics that normalise observations are among them. Its
metadata says what they are of (`About`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ddrl.errors import UserError, about, using
from ddrl.system.files import replacing
from ddrl.training.config.run_config import RunConfig, fingerprint_of, parse_run_config, read_mapping_of, to_json

NAME = "policy.safetensors"
FORMAT = "ddrl-policy-1"
"""The value of `format` in the metadata; a change of layout raises the number."""


@dataclass(frozen=True)
class About:
    """The metadata of a policy."""

    config: RunConfig
    """Of the agent; of a population, that of its best member."""
    fingerprint: str
    """The digest of `config.json` beside the file."""
    version: int
    """The algorithm's `VERSION`."""
    env_frames: int
    """Frames that the parameters were trained for."""
    source: str
    """The run that was exported, and the commit that trained it."""


def write(path: Path, network: nn.Module, described: About, *, half: bool) -> None:
    """Write the policy, atomically; with `half` parameters of 32 bits are stored with 16.

    Raise UserError where the file cannot be written.
    """
    metadata = {
        "format": FORMAT,
        "config": json.dumps(to_json(described.config)),
        "fingerprint": described.fingerprint,
        "version": str(described.version),
        "env_frames": str(described.env_frames),
        "source": described.source,
    }
    parameters = dict(network.named_parameters())
    tensors = {
        name: (rounded(tensor) if half and name in parameters else tensor).contiguous().cpu().clone()
        for name, tensor in network.state_dict().items()
    }
    with using(path), replacing(path) as temporary:
        save_file(tensors, temporary, metadata)


def rounded(tensor: Tensor) -> Tensor:
    """Return a tensor of 32-bit numbers as one of 16-bit numbers; others as they are."""
    return tensor.half() if tensor.dtype == torch.float32 else tensor


def read(path: Path) -> tuple[About, dict[str, Tensor]]:
    """Return a policy's metadata and tensors.

    Raise UserError where the file is damaged, is no policy, or `config.json` beside it is of another run.
    """
    try:
        with using(path), safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except SafetensorError as error:
        raise UserError(f"{path}: is damaged, or no safetensors file ({' '.join(str(error).split())})") from None
    found = _parsed(path, metadata)
    config = path.with_name("config.json")
    if (beside := fingerprint_of(read_mapping_of(config))) != found.fingerprint:
        raise UserError(
            f"{path}: is of a run with fingerprint {found.fingerprint}, and {config} has {beside}; "
            "allowed: the policy that was exported from this run"
        )
    return found, tensors


def _parsed(path: Path, metadata: Mapping[str, str]) -> About:
    """Return checked metadata. Raise UserError naming the file and what is wrong."""
    if metadata.get("format") != FORMAT:
        raise UserError(
            f"{path}: format '{metadata.get('format', '')}' in its metadata is not allowed; allowed: {FORMAT}, as "
            "written by `ddrl export`"
        )
    try:
        values = json.loads(metadata["config"])
        numbers = int(metadata["version"]), int(metadata["env_frames"])
        texts = metadata["fingerprint"], metadata["source"]
    except (KeyError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: its metadata is damaged ({type(error).__name__}: {error})") from None
    with about(path):
        config = parse_run_config(values)
    return About(config, texts[0], *numbers, texts[1])


def fill(network: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy `tensors` into the network's parameters and buffers.

    Raise UserError where names or shapes are others, or a number is not finite.
    """
    wanted = network.state_dict()
    for name in sorted(wanted.keys() ^ tensors.keys()):
        raise UserError(f"{path}: tensor '{name}' is {'missing' if name in wanted else 'not one of the network'}")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            shapes = f"{list(tensor.shape)}, and the network's is {list(wanted[name].shape)}"
            raise UserError(f"{path}: tensor '{name}' has shape {shapes}")
        if not torch.isfinite(tensor).all():
            raise UserError(f"{path}: tensor '{name}' holds numbers that are not finite")
    network.load_state_dict({name: tensor.to(wanted[name].dtype) for name, tensor in tensors.items()})
