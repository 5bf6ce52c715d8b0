"""The networks and learners that the driver of RLlib hands to it.

The network is the request's, as a module of RLlib's kind. A learner is RLlib's own, with the request's optimizer.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from environments import Logged
from networks import Torso, initialise
from ray.rllib.algorithms.appo.torch.appo_torch_learner import APPOTorchLearner
from ray.rllib.algorithms.impala.torch.impala_torch_learner import IMPALATorchLearner
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import TARGET_NETWORK_ACTION_DIST_INPUTS, InferenceOnlyAPI, TargetNetworkAPI
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import nn

ONE_POLICY = "default_policy"


class Network(TorchRLModule, ValueFunctionAPI):
    """The request's network as a module of RLlib."""

    def setup(self) -> None:
        """Build the layers."""
        network = self.model_config["network"]
        shape, actions = self.observation_space.shape, self.action_space
        self.scaled = len(shape) == 3 and self.model_config["scaled_pixels"]
        hidden, policy, value = network["gains"]
        self.torso = Torso(shape, network["torso"])
        self.value_torso = Torso(shape, network["torso"]) if network["separate"] else None
        discrete = hasattr(actions, "n")
        self.policy = nn.Linear(self.torso.size, int(actions.n) if discrete else actions.shape[0])
        self.value = nn.Linear(self.torso.size, 1)
        self.log_std = None
        if not discrete:
            first = self.model_config["initial_log_std"]
            self.log_std = nn.Parameter(torch.full((actions.shape[0],), first))
        for module, gain in ((self, hidden), (self.policy, policy), (self.value, value)):
            initialise(module, gain)

    def _seen(self, batch: Mapping[str, Any]) -> torch.Tensor:
        observation = batch[Columns.OBS].float()
        return observation / 255.0 if self.scaled else observation

    def _forward(self, batch: Mapping[str, Any], **_: Any) -> dict[str, torch.Tensor]:
        features = self.torso(self._seen(batch))
        return {Columns.ACTION_DIST_INPUTS: self.distribution(self, features), Columns.EMBEDDINGS: features}

    @staticmethod
    def distribution(network: Any, features: torch.Tensor) -> torch.Tensor:
        """Return the inputs of the distribution of actions, by the policy of `network`."""
        inputs = network.policy(features)
        if network.log_std is not None:
            inputs = torch.cat([inputs, network.log_std.expand_as(inputs)], dim=-1)
        return inputs

    def _forward_exploration(self, batch: Mapping[str, Any], **_: Any) -> dict[str, torch.Tensor]:
        return {Columns.ACTION_DIST_INPUTS: self._forward(batch)[Columns.ACTION_DIST_INPUTS]}

    _forward_inference = _forward_exploration

    def compute_values(self, batch: Mapping[str, Any], embeddings: Any = None) -> torch.Tensor:
        """Return V(x)."""
        if self.value_torso is not None:
            features = self.value_torso(self._seen(batch))
        else:
            features = self.torso(self._seen(batch)) if embeddings is None else embeddings
        return self.value(features).squeeze(-1)


class Target(nn.Module):
    """The policy of a target network, whose parameters have the names that they have in the network."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.torso, self.policy = copy.deepcopy(network.torso), copy.deepcopy(network.policy)
        self.log_std = copy.deepcopy(network.log_std)
        self.requires_grad_(False)


class ImpactNetwork(Network, TargetNetworkAPI, InferenceOnlyAPI):
    """The network with a target network, which learners have."""

    def make_target_networks(self) -> None:
        """Copy the policy."""
        self.target = Target(self)

    def get_target_network_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the network and its target network; only parameters that the second has are copied."""
        return [(self, self.target)]

    def forward_target(self, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the distributions of the target network."""
        return {TARGET_NETWORK_ACTION_DIST_INPUTS: self.distribution(self.target, self.target.torso(self._seen(batch)))}

    def get_non_inference_attributes(self) -> list[str]:
        """Return what those that act do not get."""
        return ["target"]


def with_optimizer(base: type) -> type:
    """Return a learner of RLlib with the request's optimizer, whose loss is a sum where ours is one."""

    class OwnOptimizer(base):  # type: ignore[misc]
        def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
            """Register the optimizer."""
            kind, arguments = config.learner_config_dict["optimizer"]
            parameters = self.get_parameters(self._module[module_id])
            optimizer = getattr(torch.optim, kind)(parameters, lr=1.0, **arguments)
            self.register_optimizer(
                module_id=module_id, optimizer=optimizer, params=parameters, lr_or_lr_schedule=config.lr
            )

        def compute_loss_for_module(self, **given: Any) -> Any:
            """Return RLlib's loss, times the number of samples where ours is a sum."""
            return super().compute_loss_for_module(**given) * given["config"].learner_config_dict["loss_times"]

    return OwnOptimizer


ImpalaLearner, AppoLearner, PpoLearner = map(with_optimizer, (IMPALATorchLearner, APPOTorchLearner, PPOTorchLearner))


class Placed:
    """The request's task at one place of one process."""

    def __new__(cls, context: Any) -> Any:
        """Make it; what RLlib takes for a class is a function here."""
        number = context.worker_index * 1000 + (context.vector_index or 0)
        return Logged(context["task"], context["seed"], number, context["folder"])
