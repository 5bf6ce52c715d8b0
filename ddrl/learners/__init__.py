"""Learners: gradients, optimizers, statistics, and the state that they save."""
