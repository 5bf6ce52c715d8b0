"""Faults that a regression check must find, each planted for as long as a `with` lasts.

`planted_test.py` plants all of them in `make test` and `make system`, so that none outlives the code it replaces.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from ddrl import types
from ddrl.algorithms import a3c, apex_dqn, appo, d4pg, ga3c, gorila, impact, impala, ppo, r2d2
from ddrl.coordinator.shared_parameters import LiveParameters
from ddrl.learners import core, data_parallel, parameter_groups, shared_updates
from ddrl.losses import vtrace
from ddrl.replay import queue
from ddrl.runtimes.ray import launch
from ddrl.types import Unroll

Function = Callable[..., Any]


@dataclass(frozen=True)
class Fault:
    """A function that does something else."""

    owner: Any
    """The module or class that its callers look it up in."""
    name: str
    wrong: Callable[[Function], Function]
    """The function as it is -> what stands in for it; must take the arguments that its callers give."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Raises `AttributeError` where `owner` has no such function any more."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.owner, self.name, self.wrong(getattr(self.owner, self.name)))
            yield


def wrong_sign(right: Function) -> Function:
    """V-trace corrects in the opposite direction: v = V - (v_s - V)."""
    return lambda values, *others, **options: 2 * values - right(values, *others, **options)


def halved_learning_rate(right: Function) -> Function:
    """The optimizer gets half of the rate that is recorded."""
    return lambda optimizer, rate: right(optimizer, rate / 2)


def dropped_last_step(right: Function) -> Function:
    """The loss sees T - 1 transitions of every unroll, and bootstraps one step early."""
    return lambda network, batch, config, weight: right(network, without_last_step(batch), config, weight)


def without_last_step(batch: Unroll) -> Unroll:
    """The first T - 1 transitions of an unroll [T, B]."""
    cut: dict[str, Any] = {}
    for name, value in batch.as_dict().items():
        in_time = types._axis(name) == 1
        parts = tuple(part[:-1] for part in value) if isinstance(value, tuple) else value[:-1]
        cut[name] = parts if in_time else value
    return Unroll(**cut)


def frozen_target(right: Function) -> Function:
    """Target updates are counted, and adapt the penalty, but the target network stays what it was."""

    def wrong(learner: impact.Learner) -> None:
        before = copy.deepcopy(learner.target_network.state_dict())
        right(learner)
        learner.target_network.load_state_dict(before)

    return wrong


def uncorrected_ratio(right: Function) -> Function:
    """The surrogate's ratio is pi / pi_target whatever the worker's policy was."""
    return lambda kind, *policies: right("target", *policies)


def unweighted_advantages(right: Function) -> Function:
    """V-trace GAE takes what the worker did for what the target policy would have done."""

    def wrong(*inputs: Any, **options: Any) -> Any:
        *others, log_rhos = inputs
        return right(*others, torch.zeros_like(log_rhos), **options)

    return wrong


def ignored_end(right: Function) -> Function:
    """Every episode's end counts as truncated: the value after it is bootstrapped from."""

    def wrong(network: Any, target_network: Any, batch: Unroll, *others: Any) -> Any:
        endless = dataclasses.replace(batch, terminated=torch.zeros_like(batch.terminated))
        return right(network, target_network, endless, *others)

    return wrong


def misaligned_advantages(right: Function) -> Function:
    """Each sample has the advantage of the one before it."""

    def wrong(*inputs: Any) -> Any:
        samples = right(*inputs)
        return dataclasses.replace(samples, advantages=samples.advantages.roll(1))

    return wrong


def half_of_the_samples(right: Function) -> Function:
    """Minibatches are drawn from the first half of a batch only, twice as often."""
    return lambda samples, indices: right(samples, [one % (samples.batch_size // 2) for one in indices])


def unweighted_items(right: Function) -> Function:
    """Importance weights are 1, however likely an item was drawn."""

    def wrong(network: Any, target_network: Any, part: Any, *others: Any) -> Any:
        drawn = dataclasses.replace(part.drawn, weight=torch.ones_like(part.drawn.weight))
        return right(network, target_network, dataclasses.replace(part, drawn=drawn), *others)

    return wrong


def online_values(right: Function) -> Function:
    """The action that the network values most is valued by itself, not by the target network."""
    return lambda online, target: right(online, online)


def forgotten_state(right: Function) -> Function:
    """Sequences begin with a recurrent state of zeros."""
    return lambda network, part: right(network, dataclasses.replace(part, state=()))


def largest_error_alone(right: Function) -> Function:
    """A sequence's priority is its largest error."""
    return lambda td_error, valid, eta: right(td_error, valid, 1.0)


def first_rewards_only(right: Function) -> Function:
    """Targets of one step, whatever n is."""
    return lambda *inputs: right(*inputs[:-1], 1)


def never_again_synchronised(right: Function) -> Function:
    """An actor copies the shared parameters once and stays with its own (the best-known fault of copies of A3C)."""
    had: set[int] = set()

    def wrong(params: LiveParameters, network: torch.nn.Module, unroll_index: int) -> int:
        if unroll_index and id(network) in had:
            return params.version
        had.add(id(network))
        return int(right(params, network, unroll_index))

    return wrong


def last_reward_alone(right: Function) -> Function:
    """Returns of one step: r_t + gamma V(x_{t+1})."""

    def wrong(values: torch.Tensor, last: torch.Tensor, rewards: torch.Tensor, *others: Any) -> torch.Tensor:
        following = torch.cat([values[1:], last[None]])
        return torch.where(others[1], rewards + others[0] * following, values)

    return wrong


def endless_episodes(right: Function) -> Function:
    """Returns go on after an episode's end."""
    return lambda values, last, rewards, discounts, valid: right(
        values, last, rewards, torch.full_like(discounts, float(discounts.max())), valid
    )


def mean_loss(right: Function) -> Function:
    """The loss of a batch is averaged instead of summed, which RMSProp's epsilon is not made for."""

    def wrong(network: Any, target_network: Any, part: Any, config: Any) -> Any:
        loss, metrics = right(network, target_network, part, config)
        return loss / part.batch_size, metrics

    return wrong


def present_returns(right: Function) -> Function:
    """The trainer computes the returns anew, as A3C's loss does, instead of taking those of the actor."""

    def wrong(network: Any, batch: Unroll, config: Any, weight: float) -> Any:
        with torch.no_grad():
            inputs = (batch.observation, batch.last_action, batch.last_reward, batch.start)
            values = network(*inputs, batch.initial_state).value
        return right(network, ga3c.with_returns(batch, list(values), config), config, weight)

    return wrong


def agent_steps_as_frames(right: Function) -> Function:
    """A learner's frames are agent steps: they are not multiplied by the frame skip."""

    def wrong(learner: core.LearnerCore[Any], agent_steps: int) -> None:
        right(learner, agent_steps)
        learner.env_frames = agent_steps

    return wrong


def uncounted_skip(right: Function) -> Function:
    """Gradients of actors count their agent steps as frames."""

    def wrong(updates: shared_updates.SharedUpdates, *arguments: Any) -> Any:
        metrics = right(updates, *arguments)
        updates.env_frames = updates.agent_steps
        return metrics

    return wrong


def decayed_by_agent_steps(right: Function) -> Function:
    """The learning rate falls with the agent steps, of which a game of four skipped frames has a quarter."""
    return lambda initial, env_frames, decay_frames: right(initial, env_frames // 4, decay_frames)


def never_decayed(right: Function) -> Function:
    """The learning rate stays what it was at the beginning."""
    return lambda initial, env_frames, decay_frames: initial


def memory_of_unrolls_lost(right: Function) -> Function:
    """The loss computes each unroll from a recurrent state of zeros."""

    def wrong(network: Any, batch: Unroll, *others: Any) -> Any:
        empty = tuple(torch.zeros_like(part) for part in batch.initial_state)
        return right(network, dataclasses.replace(batch, initial_state=empty), *others)

    return wrong


def memory_of_the_last_episode(right: Function) -> Function:
    """The loss keeps the recurrent state where a new episode starts."""
    replaced = dataclasses.replace
    return lambda net, batch, *others: right(net, replaced(batch, start=torch.zeros_like(batch.start)), *others)


def any_age(right: Function) -> Function:
    """Steps are learned from however old their policy is."""
    return lambda batch, version, oldest: batch.valid


def symmetric_clip(right: Function) -> Function:
    """The lower bound of the ratio is PPO's."""
    return lambda ratio, advantage, epsilon, bounds: right(ratio, advantage, epsilon, "symmetric")


def any_value(right: Function) -> Function:
    """Values may move as far as they like from those that were predicted while acting."""
    return lambda value, old_value, target, epsilon: right(value, old_value, target, None)


def any_slope(right: Function) -> Function:
    """The critic's slope by the action is not bounded."""
    return lambda slope, bound, **options: slope


def any_reward(right: Function) -> Function:
    """Rewards are learned from as they are, whatever the configuration clips."""
    return lambda rewards, reward_clipping: rewards


def any_norm(right: Function) -> Function:
    """The norm of a gradient is measured and never bounded."""
    return lambda parameters, max_norm: right(parameters, None)


def unclipped(losses: Any, updates: Any, *, gradients: bool = True) -> dict[str, Fault]:
    """Clipping left out: of rewards, in the module of the loss, and of gradients, where the update is made."""
    rewards = {"rewards not clipped": Fault(losses, "clipped_rewards", any_reward)}
    return rewards | ({"gradients not clipped": Fault(updates, "clip_global_norm", any_norm)} if gradients else {})


def lost_thread(right: Function) -> Function:
    """The gradient of every learner thread but the first is lost."""

    def wrong(loss: Any, network: Any, parameters: Any, *pieces: Any) -> Any:
        metrics = right(loss, network, parameters, *pieces)
        if threading.current_thread().name.startswith("learner_"):
            for parameter in parameters:
                parameter.grad.zero_()
        return metrics

    return wrong


def lost_rank(right: Function) -> Function:
    """The learner of rank 1 brings no gradient to the sum."""
    return learner_without_gradient


def learner_without_gradient(config: Any, directory: Any, folder: Any, rank: int, *others: Any, **options: Any) -> Any:
    """Make a learner in its process; it keeps its gradient for itself where its rank is not 0."""
    if rank:
        backward = data_parallel.ColumnParallel.backward

        def wrong(gradients: data_parallel.ColumnParallel, loss: Any, batch: Any, *kept: Any) -> Any:
            metrics = backward(gradients, loss, batch)
            for parameter in gradients._replicas[0][1]:
                if parameter.grad is not None:
                    parameter.grad.zero_()
            return metrics

        data_parallel.ColumnParallel.backward = wrong  # type: ignore[method-assign]
    return launch.make_learner(config, directory, folder, rank, *others, **options)


def slowed_queue(seconds: float = 0.1) -> Fault:
    """Every hand-over of an unroll or a batch holds the queue for longer."""

    def slowed(right: Function) -> Function:
        def wrong() -> Any:
            condition = right()
            wait_until = condition.wait_until

            def wait_longer(*arguments: Any) -> None:
                time.sleep(seconds)
                wait_until(*arguments)

            condition.wait_until = wait_longer
            return condition

        return wrong

    return Fault(queue, "ClosableCondition", slowed)


OF_LEARNING: Mapping[str, Mapping[str, Fault]] = {
    "v_trace": {
        "wrong sign in V-trace": Fault(vtrace, "vtrace", wrong_sign),
        "halved learning rate": Fault(parameter_groups, "set_learning_rate", halved_learning_rate),
        "dropped last step": Fault(impala, "impala_loss", dropped_last_step),
    },
    "v_trace_lstm": {
        "rate not decayed": Fault(parameter_groups, "linear_decay", never_decayed),
        "recurrent state forgotten": Fault(impala, "impala_loss", memory_of_unrolls_lost),
        "state of the last episode": Fault(impala, "impala_loss", memory_of_the_last_episode),
    },
    "v_trace_assault": {
        **unclipped(impala, parameter_groups),
        "frames without the frame skip": Fault(core.LearnerCore, "count_to", agent_steps_as_frames),
        "decay by agent steps": Fault(parameter_groups, "linear_decay", decayed_by_agent_steps),
    },
    "v_trace_threads": {
        "gradient of a thread lost": Fault(data_parallel, "_backward", lost_thread),
    },
    "v_trace_ray": {
        "gradient of a learner lost": Fault(launch, "make_learner", lost_rank),
    },
    "impact_track": {
        "target never updated": Fault(impact.Learner, "_update_target", frozen_target),
        "ratio without the worker": Fault(impact, "importance_ratio", uncorrected_ratio),
        "advantages unweighted": Fault(impact, "vtrace_gae", unweighted_advantages),
    },
    "impact_catch": {
        "terminated ignored": Fault(impact, "prepare", ignored_end),
    },
    "apex_catch": {
        "importance weights dropped": Fault(apex_dqn, "apex_loss", unweighted_items),
        "bootstraps from the network itself": Fault(apex_dqn, "double_q_values", online_values),
        "priorities of one step": Fault(apex_dqn, "n_step_targets", first_rewards_only),
    },
    "r2d2_memory": {
        "stored state forgotten": Fault(r2d2, "unrolled", forgotten_state),
        "priority without the mean": Fault(r2d2, "mixed_priority", largest_error_alone),
        "targets of one step": Fault(r2d2, "n_step_targets", first_rewards_only),
    },
    "a3c_memory": {
        "never synchronised again": Fault(LiveParameters, "pull", never_again_synchronised),
        "returns of one step": Fault(a3c, "n_step_returns", last_reward_alone),
        "terminated ignored": Fault(a3c, "n_step_returns", endless_episodes),
    },
    "a3c_assault": {
        **unclipped(a3c, shared_updates),
        "frames without the frame skip": Fault(shared_updates.SharedUpdates, "apply", uncounted_skip),
        "decay by agent steps": Fault(shared_updates, "linear_decay", decayed_by_agent_steps),
    },
    "ga3c_catch": {
        "returns of one step": Fault(ga3c, "n_step_returns", last_reward_alone),
        "returns of the present values": Fault(ga3c, "ga3c_loss", present_returns),
    },
    "gorila_catch": {
        "target never updated": Fault(gorila.Actor, "_refresh_target", frozen_target),
        "mean of the losses": Fault(gorila, "dqn_loss", mean_loss),
        "never synchronised again": Fault(LiveParameters, "pull", never_again_synchronised),
    },
    "a2c_track": {
        "returns of one step": Fault(a3c, "n_step_returns", last_reward_alone),
    },
    "ppo_track": {
        "advantages misaligned": Fault(ppo, "prepare", misaligned_advantages),
        "half of the samples": Fault(ppo.Samples, "minibatches", half_of_the_samples),
    },
    "d4pg_track": {
        "importance weights dropped": Fault(d4pg, "d4pg_loss", unweighted_items),
        "slope of the critic not bounded": Fault(d4pg, "action_gradients", any_slope),
        "gradients not clipped": Fault(parameter_groups, "clip_global_norm", any_norm),
    },
    "appo_memory": {
        "old steps learned from": Fault(appo, "learned_steps", any_age),
        "symmetric bounds of the ratio": Fault(appo, "clipped_surrogate", symmetric_clip),
        "values not clipped": Fault(appo, "clipped_value_loss", any_value),
    },
    "appo_assault": unclipped(appo, parameter_groups),
    "impact_assault": unclipped(impact, parameter_groups),
    "apex_assault": unclipped(apex_dqn, parameter_groups),
    "r2d2_assault": unclipped(r2d2, parameter_groups),
    "ga3c_assault": unclipped(ga3c, shared_updates, gradients=False),
    "gorila_assault": unclipped(gorila, shared_updates, gradients=False),
    "a2c_assault": unclipped(a3c, parameter_groups),
    "ppo_assault": unclipped(ppo, parameter_groups),
}
"""Golden curve that must differ -> name of the fault -> the fault."""
