"""Numbers of references that a verdict depends on: they are read as the tables of references have them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ddrl.papers.experiments import papers
from ddrl.papers.paper import load_paper
from ddrl.papers.published import best_returns, load_references, random_errors
from ddrl.papers.reference_numbers import REFERENCES, STATED_ERROR, reference_numbers
from ddrl.system.csv_cells import read_rows

ROOT = REFERENCES.parent


@pytest.mark.parametrize(
    ("notes", "error"),
    [
        ("standard error 0.16 of random play", "0.16"),
        ("standard error 0.16; 40 episodes", "0.16"),
        ("standard error 2 of random play", "2"),
        ("standard error 12.", "12"),
    ],
)
def test_a_standard_error_is_read_with_as_many_digits_as_it_has(notes: str, error: str) -> None:
    found = STATED_ERROR.match(notes)
    assert found is not None and found[1] == error


def test_every_standard_error_that_a_reference_states_is_read() -> None:
    stated = [
        row["notes"]
        for path in sorted(REFERENCES.glob("*.csv"))
        for row in read_rows(path)
        if "standard error" in row.get("notes", "")
    ]
    assert len(stated) > 20
    assert [notes for notes in stated if not STATED_ERROR.match(notes)] == []


@pytest.mark.parametrize("name", papers(ROOT))
def test_a_digest_has_the_numbers_that_verdicts_are_made_with(name: str) -> None:
    """Two readers of the same files: one for digests, without pandas, and one for verdicts."""
    paper = load_paper(Path(ROOT / name))
    best, errors = best_returns(paper), random_errors(paper)
    known = load_references(paper).set_index("environment")[["random", "human"]].astype("float64")
    expected = {
        task: (*(None if math.isnan(value) else value for value in bounds), best.get(task), errors.get(task))
        for task, bounds in zip(known.index, known.to_numpy().tolist(), strict=True)
    }
    assert dict(reference_numbers(paper)) == expected
