"""Draws figures: their look, and the panels that figures of several papers share."""
