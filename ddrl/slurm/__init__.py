"""Jobs on a SLURM cluster: their resources, their steps, and a Ray cluster over their nodes."""
