"""Central inference: one network acts for all actors of a learner, whose environments may be in other processes."""
