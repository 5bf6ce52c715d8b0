"""Hosts of their own on one machine: network namespaces, joined by a bridge.

What listens on the loopback device of one of them, or takes its name for its address, is not found by the others: as
between machines.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

BRIDGE = "ddrl-slurm"
SUBNET = "198.18.77"
"""Of a range that is set apart for tests (RFC 2544)."""
HERE = f"{SUBNET}.1"
"""The address of this machine among them."""


@contextmanager
def hosts(names: Sequence[str]) -> Iterator[Mapping[str, str]]:
    """Host -> its address. On leaving, nothing of them is left. Raises `CalledProcessError`, which says why."""
    left = [["netns", "delete", namespace(name)] for name in names]
    left += [["link", "delete", device] for device in (BRIDGE, *map(_cable, names))]
    for arguments in left:
        with suppress(subprocess.CalledProcessError):  # only what a killed test has left is there
            _ip(*arguments)
    with ExitStack() as stack:
        _ip("link", "add", BRIDGE, "type", "bridge")
        stack.callback(_ip, "link", "delete", BRIDGE)
        _ip("address", "add", f"{HERE}/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        addresses = {name: f"{SUBNET}.{number}" for number, name in enumerate(names, start=2)}
        for name, address in addresses.items():
            space, cable = namespace(name), _cable(name)
            _ip("netns", "add", space)
            stack.callback(_ip, "netns", "delete", space)
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", cable, "master", BRIDGE, "up")
            _ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _ip("-n", space, "link", "set", device, "up")
        yield addresses


def enter(name: str) -> list[str]:
    """What stands before a command that is to run on a host. (`ip netns exec` would hide /sys/fs/cgroup as well.)"""
    return ["nsenter", f"--net=/run/netns/{namespace(name)}"]


def namespace(name: str) -> str:
    """Of a host."""
    return f"{BRIDGE}-{name}"


def _cable(name: str) -> str:
    return f"{BRIDGE}-{name}"[-15:]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=30)
