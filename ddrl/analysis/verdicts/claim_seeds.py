"""Counts the seeds that would decide an open claim, at the spread seen: by the power of the verdict's own test.

With a smallest effect that counts, they are as many as would show no difference if there is none. By symmetry they
would also support the claim if the effect were twice the smallest. Without one (a claim that is held against a number
or a margin, or whose times were cut), they are as many as tell an effect from its line if it lies a margin beyond it.
Variants that are said to be alike need as many as show that they are, if they are equal.

The level is 5 % over the number of claims in the family of Holm's correction, which is what the correction asks of the
smallest p. What the observed effect would need says little, since it is as uncertain as the effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddrl.analysis.statistics.claim_tests import ALPHA, MIN_SETTINGS, Contrast
from ddrl.analysis.statistics.significance import POWER, seeds_for_difference, seeds_for_no_difference
from ddrl.analysis.verdicts.preconditions import MIN_SEEDS, Obstacle
from ddrl.papers.claim_verdicts import goal
from ddrl.papers.paper import Claim


@dataclass(frozen=True)
class Outlook:
    """What would decide an open claim."""

    claim: Claim
    contrasts: Sequence[Contrast | None]
    """Of all comparisons; None: it says nothing."""
    decisive: Contrast
    """The comparison that is shown."""
    smallest: float
    """The smallest effect that counts, on the tested scale."""
    of_interest: float
    """The same, or the margin of a claim that has one instead."""
    obstacles: tuple[Obstacle, ...] = ()
    """What keeps some of the comparisons from being tested."""

    def units(self, family: int = 1) -> int | None:
        """Return the seeds a group (of a stability claim: the settings) that decide the most demanding comparison.

        None: more than 1000, or a comparison says nothing. `family`: the number of claims of Holm's correction.
        """
        fewest = MIN_SETTINGS if self.claim.kind == "stability" else MIN_SEEDS
        needs = [self._units(item, ALPHA / family) if item else None for item in self.contrasts]
        known = [need for need in needs if need is not None]
        return max(fewest, *known) if len(known) == len(needs) else None

    def note(self, family: int = 1) -> str:
        """Return which way the estimate leans, and how many seeds or settings would decide."""
        unit = "settings" if self.claim.kind == "stability" else "seeds a group"
        needed = self.units(family)
        level = f", level 5 % / {family} for {family} claims" if family > 1 else ""
        if needed is None:
            return f"{self.leans}. How many {unit} would {self.goal} is not known, or more than 1000."
        return f"{self.leans}. About {needed} {unit} would {self.goal} (power {POWER:g}{level})."

    @property
    def leans(self) -> str:
        """Which way the estimate leans."""
        if self.claim.kind == "alike":
            return f"The estimate leans {'for' if self.decisive.p_outside(0.0) > ALPHA else 'against'} the claim"
        if self.decisive.effect == self.decisive.null:
            return "The estimate leans neither way"
        return f"The estimate leans {'for' if self.decisive.effect > self.decisive.null else 'against'} the claim"

    @property
    def goal(self) -> str:
        """The result that is hoped for of so many seeds, and its condition."""
        return goal(self.claim.kind, beyond_line=not self._equality(self.decisive))

    def _equality(self, item: Contrast) -> bool:
        """Return whether no difference is what seeds are counted for; what was cut at a horizon never shows it."""
        return self.claim.kind == "alike" or (self.smallest > 0 and self.claim.kind != "up_to" and not item.cut)

    def _units(self, item: Contrast, level: float) -> int | None:
        # What was cut before the lines says nothing, whatever the number of seeds.
        if self.of_interest <= 0 or (item.cut and item.beyond() == 0):
            return None
        if not self._equality(item):
            return seeds_for_difference(*item.deviations, self.of_interest, alpha=level)
        number = 1 if self.claim.kind == "alike" else len(self.contrasts)
        return seeds_for_no_difference(*item.deviations, self.of_interest, alpha=level / number)
