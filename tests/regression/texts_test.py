"""Words are compared exactly, numbers as numbers."""

from __future__ import annotations

import pytest

from ddrl.regression.texts import same


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("1.25", "1.2500000001"),
        ("", ""),
        ("nan", "nan"),
        ("0.0", "1e-17"),
        ("A against B: 1.59 [1.54, 1.64]", "A against B: 1.590000001 [1.54, 1.64]"),
        ("1,234 frames in 12.5 s.", "1234 frames in 12.5000001 s."),
        ("at -0.5", "at -0.50"),
        ("20000000.0", "20000000.1"),
        ("20000000", "20000000.1"),
        ("6.781113172905166e-16", "6.781113172905167e-16"),
        ("mean 0.30000000000000004.", "mean 0.30000000000000007."),
    ],
)
def test_the_same_numbers_in_the_same_words_are_the_same(before: str, now: str) -> None:
    assert same(before, now)
    assert same(now, before)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("1.25", "1.26"),
        ("1.25", ""),
        ("4e-12", "2e-12"),
        ("6.781113172905166e-16", "-6.781113172905166e-16"),
        ("6.781113172905166e-16", "6.7812e-16"),
        ("6.781113172905166e-16", "0"),
        ("p = 6.78e-16 here", "p = 6.79e-16 here"),
        ("arXiv:1803.00933", "arXiv:1803.00934"),
        ("arXiv 1803.00933", "arXiv 1803.00934"),
        ("arxiv.org/abs/1803.00933", "arxiv.org/abs/1803.00934"),
        ("doi:10.1038/14236.12345678", "doi:10.1038/14236.12345679"),
        ("seed1234567.1", "seed1234567.2"),
        ("took 1234567.1 s", "took 1234567.2 s"),
        ("0", "nan"),
        ("A against B: 1.59 [1.54, 1.64]", "A against B: 1.59 [1.54, 1.65]"),
        ("A against B: 1.59", "A against C: 1.59"),
        ("5 seeds. Written after the runs.", "5 seeds."),
        ("ALE 0.12.1", "ALE 0.12.10"),
        ("commit 26d0a324", "commit 26d0a325"),
        ("v1", "v2"),
        ("at -0.5", "at 0.5"),
        ("1, 2", "1 2"),
        ("two", "2"),
        ("20000000", "20000001"),
        ("after 20,000,000 frames", "after 20,000,001 frames"),
    ],
)
def test_another_word_or_number_is_another_text(before: str, now: str) -> None:
    assert not same(before, now)
    assert not same(now, before)
