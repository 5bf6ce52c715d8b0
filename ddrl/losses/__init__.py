"""Losses and targets as pure functions of tensors: no configuration, no logger, no state."""
