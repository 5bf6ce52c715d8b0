"""Faults of several learners: preempted unrolls, dropped gradients, weights; and of networks with two streams."""

from __future__ import annotations

from tests.mutation.mutants import mutant

PREEMPTION = "tests/actors/preemption_test.py"
DROPPING = "tests/learners/dropping_test.py"
WEIGHTING = "tests/learners/weighting_test.py"

SEVERAL = (
    mutant(
        "preempted_unroll_repeats_the_last_but_one",
        "the step before the cut bootstraps from its own observation",
        "ddrl/actors/unroll.py",
        "arrays[name][steps + 1 :] = arrays[name][steps]",
        "arrays[name][steps:] = arrays[name][steps - 1]",
        PREEMPTION,
    ),
    mutant(
        "preempted_steps_are_learned_from",
        "what is left of an unroll counts",
        "ddrl/actors/unroll.py",
        'for name in ("reward", "terminated", "truncated", "valid"):',
        'for name in ("reward", "terminated", "truncated"):',
        PREEMPTION,
    ),
    mutant(
        "running_returns_decay_on_dead_steps",
        "a preempted unroll lowers the running return",
        "ddrl/learners/normalisation.py",
        "kept = np.where(lives, self._discount, 1.0)",
        "kept = np.where(lives, self._discount, self._discount)",
        PREEMPTION,
    ),
    mutant(
        "preemption_for_ever",
        "once one unroll was ended all later ones are",
        "ddrl/actors/preemption.py",
        'return f"preemption/{unroll_index}/over"',
        'return "preemption/over"',
        PREEMPTION,
    ),
    mutant(
        "preemption_from_the_first_step",
        "an unroll may be ended before a quarter is there",
        "ddrl/actors/preemption.py",
        "if steps < self._least_fraction * length:",
        "if steps < 0:",
        PREEMPTION,
    ),
    mutant(
        "learners_alike_by_steps",
        "the gradient is the sum over learners, not their mean",
        "ddrl/learners/weighting.py",
        "return float(max(1, steps) * self._reducer.size)",
        "return float(max(1, steps))",
        WEIGHTING,
    ),
    mutant(
        "own_minibatches_skip_the_empty",
        "a learner with few steps makes fewer gradient steps, and the others wait for ever",
        "ddrl/learners/minibatches.py",
        "count = num_minibatches if alone else min(num_minibatches, self.total)",
        "count = min(num_minibatches, self.total)",
        WEIGHTING,
    ),
    mutant(
        "one_gradient_too_many",
        "a step takes one gradient more than it requires",
        "ddrl/learners/dropping.py",
        "return place <= self._required",
        "return place <= self._required + 1",
        DROPPING,
    ),
    mutant(
        "dropped_gradients_shrink_the_step",
        "the mean is over all learners, though some add nothing",
        "ddrl/learners/core.py",
        "factor = 1.0 / counted if counts else 0.0",
        "factor = 1.0 if counts else 0.0",
        DROPPING,
    ),
    mutant(
        "two_streams_see_the_same",
        "the second stream sees the end of the body's numbers",
        "ddrl/networks/torsos.py",
        "self.surroundings.forward(seen[:, self.body_size :])",
        "self.surroundings.forward(seen[:, : seen.shape[1] - self.body_size])",
        "tests/networks/torsos_test.py",
    ),
)
