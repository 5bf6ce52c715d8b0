"""The list of peers, and runs that name one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddrl.errors import UserError
from ddrl.peers.catalogue import PLACE, known_peers, peers

ROOT = Path(__file__).parents[2]


def run(peer: str | None) -> Any:
    return cast(Any, SimpleNamespace(key="scale/experiment/variant/task/seed1", config={"peer": peer} if peer else {}))


def test_every_listed_peer_has_a_driver_and_pinned_needs() -> None:
    assert sorted(peers()) == known_peers(ROOT, [])
    assert all(peer.driver.is_file() and (ROOT / PLACE / f"{peer.name}.txt").is_file() for peer in peers().values())


def test_a_run_of_an_unknown_peer_is_named_with_what_is_allowed() -> None:
    known_peers(ROOT, [run(None), run("rllib")])
    with pytest.raises(UserError, match=r"scale/experiment/variant/task/seed1: .*'rlib'.*rllib"):
        known_peers(ROOT, [run("rlib")])
