"""Fast access to the parts of a network."""

from __future__ import annotations

from torch import nn


def find_parts_directly(network: nn.Module) -> None:
    """Let each module find its parameters and submodules as plain attributes, once its layers are made.

    torch looks them up in dictionaries of its own, by a Python function: with layers of some dozen units that takes as
    long as the layers. It forgets a plain attribute by itself where another parameter or module takes its name.
    """
    for module in list(network.modules()):
        vars(module).update(module._parameters, **module._modules)
