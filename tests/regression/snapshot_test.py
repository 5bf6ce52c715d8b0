"""What a snapshot holds, and what is a difference between two."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddrl.regression import snapshot
from ddrl.regression.snapshot import Snapshot, differences


def test_figures_of_other_package_versions_are_not_compared() -> None:
    old = Snapshot({}, {"figure a": "1", "curves 1": "1"}, {"matplotlib": "3.11.2"})
    new = dataclasses.replace(old, digests={"figure a": "2", "curves 1": "1"})
    assert differences(old, new).lines == ["figure a: digest 1 -> 2"]
    assert not differences(old, dataclasses.replace(new, packages={"matplotlib": "3.12.0"}))


def test_equal_names_are_told_apart() -> None:
    rows: Sequence[Mapping[str, str]] = [{"claim": "a", "effect": "1"}, {"claim": "a", "effect": "2"}]
    assert list(snapshot.named("claims", rows)) == ["a", "a (2)"]


def test_a_row_that_is_new_in_an_accepted_table_is_a_change_and_a_table_that_is_new_an_addition() -> None:
    old = Snapshot({"claims": {"a": {"effect": "1"}}}, {"runs 1": "1"}, {})
    row = dataclasses.replace(old, tables={"claims": {"a": {"effect": "1"}, "b": {"effect": "1"}}})
    run = dataclasses.replace(old, digests={"runs 1": "1", "runs 2": "1"})
    table = dataclasses.replace(old, tables={**old.tables, "cells": {"c": {"ours": "1"}}})
    kind = dataclasses.replace(old, digests={"runs 1": "1", "curves 1": "1"})
    assert [len(differences(old, new).changed) for new in (row, run, table, kind)] == [1, 1, 0, 0]
    assert [len(differences(old, new).added) for new in (row, run, table, kind)] == [0, 0, 1, 1]


def test_every_value_of_the_summary_is_a_row() -> None:
    content = {"scale": "reference", "runs": 3, "prices": None, "paper": {"authors": ["A", "B"], "not_read": []}}
    assert dict(snapshot._leaves(content)) == {
        "scale": "reference",
        "runs": "3",
        "prices": "null",
        "paper.authors.0": "A",
        "paper.authors.1": "B",
        "paper.not_read": "[]",
    }


def test_a_snapshot_is_read_as_it_was_written(tmp_path: Path) -> None:
    tables = {"claims": {"a": {"detail": '=1, "two"\nlines', "effect": ""}, "b": {"detail": "-", "effect": "2"}}}
    written = Snapshot({**tables, "problems": {}}, {"figure a": "1"}, {"numpy": "2"})
    snapshot.write(written, tmp_path / "evidence", ["x"], "command")
    snapshot.write(written, tmp_path / "evidence", ["y"], "command")
    assert snapshot.read(tmp_path / "evidence" / "evidence.json") == (written, {"y"})
    assert snapshot.read(tmp_path / "nothing.json") is None
