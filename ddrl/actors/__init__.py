"""Actors: policies, exploration, the collection of unrolls, items for a replay, and evaluation."""
