"""Jobs of a SLURM cluster: what they ask for, their steps, and a Ray cluster over their nodes."""
