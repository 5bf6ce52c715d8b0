"""Stores of experience between actors and learner."""
