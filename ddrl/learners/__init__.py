"""What a learner does to parameters: gradients and optimizers."""
