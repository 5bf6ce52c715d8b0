"""Losses and targets as pure functions of tensors, without configuration, logger or state."""
