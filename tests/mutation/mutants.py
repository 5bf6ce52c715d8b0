"""Faults that the tests must find: an edit of the package each, what it breaks, and the tests that should see it.

The first group was planted by an audit and survived then. `tests/mutation/mutation_test.py` holds that every old text
still stands exactly once where it is looked for.
"""

from __future__ import annotations

from typing import NamedTuple


class Edit(NamedTuple):
    """One text that takes the place of another."""

    file: str
    old: str
    """Stands exactly once in the file."""
    new: str


class Mutant(NamedTuple):
    """A fault of one or several edits."""

    name: str
    breaks: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    """Files or node ids, for pytest."""
    golden: tuple[str, ...] = ()
    """Golden curves that move with it, if any."""
    equivalent: str = ""
    """Why nothing can see it, where that is so."""


def mutant(name: str, breaks: str, file: str, old: str, new: str, *tests: str, golden: tuple[str, ...] = ()) -> Mutant:
    """Of a single edit."""
    return Mutant(name, breaks, (Edit(file, old, new),), tests, golden)


SEEN = "self.last_action, torch.from_numpy(step.reward)"
FED = "self.inference.infer(inputs)"
WRITTEN = 'arrays["last_reward"][t, self.columns] = inputs.last_reward.numpy()'
PLAYED = "step = self._env.step(self._policy.act(self._last).action.numpy())"
POLICY, UNROLL, EVALUATOR = "ddrl/actors/policy.py", "ddrl/actors/unroll.py", "ddrl/actors/evaluator.py"
ACTING = ("tests/actors/unroll_test.py", "tests/algorithms/acted_test.py")
EVALUATING = ("tests/actors/evaluator_test.py",)
EVALUATED = "tests/training/evaluated_test.py::test_"
RESTORED = "tests/algorithms/restored_test.py::test_everything_that_changes_as_a_learner_learns_is_restored"
ENDS = "tests/algorithms/rewards_and_ends_test.py"
COPIED = "tests/learners/replay_learner_test.py"
PREFETCH = "tests/replay/prefetch_test.py"

AUDITED = (
    mutant(
        "ga3c_unclipped_returns",
        "GA3C's returns are of the raw rewards",
        "ddrl/algorithms/ga3c.py",
        "rewards = clipped_rewards(unroll.reward, config.reward_clipping)",
        "rewards = unroll.reward",
        ENDS,
    ),
    mutant(
        "ppo_resume_forgets_kl_cost",
        "a continued run of PPO begins with the first coefficient of the penalty again",
        "ddrl/algorithms/ppo.py",
        'self._kl_cost = state["kl_cost"]',
        '_ = state["kl_cost"]',
        f"{RESTORED}[ppo-discrete-3]",
    ),
    mutant(
        "impact_resume_forgets_kls",
        "a continued run of IMPACT adapts its penalty by a part of the lap",
        "ddrl/algorithms/impact.py",
        'self._kls = deque(state["kls"], maxlen=self.config.num_slots)',
        "self._kls = deque(maxlen=self.config.num_slots)",
        f"{RESTORED}[impact-discrete-3]",
    ),
    mutant(
        "atari_last_life_is_a_lost_one",
        "a game whose lives are gone before it is over begins an episode there",
        "ddrl/environments/atari.py",
        "(lives < self._lives) & (lives > 0) & ~ended",
        "(lives < self._lives) & ~ended",
        "tests/environments/atari_test.py::test_the_last_life_is_lost_when_the_game_is_over_and_not_before",
    ),
    mutant(
        "impala_truncation_terminates",
        "nothing is bootstrapped after a time limit",
        "ddrl/algorithms/impala.py",
        "discounts = config.discount * (~batch.terminated).float()",
        "discounts = config.discount * (~(batch.terminated | batch.truncated)).float()",
        ENDS,
        golden=("v_trace_track",),
    ),
    mutant(
        "evaluation_is_greedy",
        "evaluations play the most probable action",
        "ddrl/actors/policy.py",
        "sample: Sampler = network.family.sample",
        "sample: Sampler = network.family.sample if envs is not None else lambda pi, _: pi.argmax(dim=-1)",
        f"{EVALUATED}an_evaluation_acts_as_in_training_or_with_the_epsilon_that_the_key_says",
        golden=("v_trace",),
    ),
    mutant(
        "evaluator_plays_the_largest",
        "the evaluator plays what the network puts out most, whatever the sampler says",
        EVALUATOR,
        PLAYED,
        "step = self._env.step(self._policy.act(self._last).distribution.argmax(dim=-1).numpy())",
        *EVALUATING,
        golden=("v_trace",),
    ),
    mutant(
        "old_last_action_at_a_start",
        "an episode begins with the last action of the one before it",
        POLICY,
        "action = action.masked_fill(start if action.dim() == 1 else start.unsqueeze(-1), 0)",
        "pass",
        *ACTING,
    ),
    mutant(
        "old_last_reward_at_a_start",
        "an episode begins with the last reward of the one before it, for actor and learner alike",
        POLICY,
        "reward = reward.masked_fill(start, 0.0)",
        "pass",
        *ACTING,
    ),
    Mutant(
        "statistics_before_the_update",
        "the learner sees observations through other statistics than the actors did",
        (
            Edit(
                "ddrl/learners/core.py",
                "self._normalisation.add_rewards(fresh)",
                "self._normalisation.add_rewards(fresh)\n        self._normalisation.add_observations(fresh)",
            ),
            Edit(
                "ddrl/learners/core.py",
                '"""Add a fresh batch\'s observations to the statistics, after the update (see `Normalisation`)."""\n'
                "        self._normalisation.add_observations(fresh)",
                "pass",
            ),
        ),
        ("tests/algorithms/acted_test.py",),
        ("v_trace_track",),
    ),
    mutant(
        "actor_fed_no_last_reward",
        "the actor's network never sees a reward, the learner's does",
        POLICY,
        FED,
        "self.inference.infer(inputs._replace(last_reward=torch.zeros(len(inputs.start))))",
        *ACTING,
        golden=("r2d2_memory", "v_trace_lstm"),
    ),
    mutant(
        "learner_fed_no_last_reward",
        "the learner's network never sees a reward, the actor's does",
        UNROLL,
        WRITTEN,
        'arrays["last_reward"][t] = 0.0',
        *ACTING,
        golden=("r2d2_memory", "v_trace_lstm"),
    ),
    mutant(
        "nobody_fed_a_last_reward",
        "no network ever sees a reward",
        POLICY,
        SEEN,
        "self.last_action, torch.zeros(len(step.start))",
        *ACTING,
        golden=("r2d2_memory", "v_trace_lstm"),
    ),
    mutant(
        "first_episodes_to_finish",
        "scores are of the episodes that end first, which are short",
        EVALUATOR,
        "if self._quota[column] > 0:",
        "if len(self.finished) < self.planned:",
        *EVALUATING,
        golden=("r2d2_memory", "v_trace_lstm"),
    ),
    mutant(
        "evaluator_feeds_no_last_reward",
        "an evaluation's network never sees a reward",
        EVALUATOR,
        PLAYED,
        PLAYED.replace("self._last)", "self._last._replace(reward=0 * self._last.reward))"),
        *EVALUATING,
        golden=("r2d2_memory", "v_trace_lstm"),
    ),
    mutant(
        "evaluator_zeroes_the_state",
        "an evaluation remembers nothing",
        EVALUATOR,
        PLAYED,
        f"self._policy.state = tuple(0 * part for part in self._policy.state)\n        {PLAYED}",
        *EVALUATING,
        golden=("r2d2_memory", "v_trace_lstm"),
    ),
    mutant(
        "evaluator_never_resets_the_state",
        "an evaluation's episodes begin with the memory of the one before",
        EVALUATOR,
        PLAYED,
        PLAYED.replace("self._last)", "self._last._replace(start=np.zeros_like(self._last.start)))"),
        *EVALUATING,
        golden=("r2d2_memory", "v_trace_lstm"),
    ),
    mutant(
        "initial_parameters_are_scored",
        "evaluations play with the parameters that a run began with",
        "ddrl/training/evaluation.py",
        "self._params.pull_newest(inference.network)",
        "self._params.version  # noqa: B018",
        f"{EVALUATED}every_evaluation_plays_parameters_that_were_learned_by_then",
        golden=("v_trace",),
    ),
    mutant(
        "training_seeds_are_scored",
        "evaluations play the episodes that an actor was trained on",
        "ddrl/training/builder.py",
        'seed = self.env_seed("evaluation", index)',
        'seed = self.env_seed("actor", index)',
        f"{EVALUATED}no_evaluation_plays_the_episodes_of_an_actor_or_of_another_evaluation",
        golden=("v_trace",),
    ),
    mutant(
        "priorities_not_copied_back",
        "new priorities of a batch that was uploaded are all 0",
        "ddrl/learners/replay_learner.py",
        "batch.td_error.copy_(on_device.td_error)",
        "pass",
        COPIED,
    ),
    mutant(
        "states_after_acting",
        "a replay holds the recurrent states after its steps as if they were those before",
        UNROLL,
        "        group.states.append(group.policy.state)\n        acted, columns = group.act(), group.columns\n",
        "        acted, columns = group.act(), group.columns\n        group.states.append(group.policy.state)\n",
        *ACTING,
        golden=("r2d2_memory",),
    ),
)
