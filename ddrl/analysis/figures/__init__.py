"""The look of every figure, and the panels that figures of several papers share."""
