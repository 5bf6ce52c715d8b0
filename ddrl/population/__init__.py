"""Population-based training (Jaderberg et al. 2017, as in Espeholt et al. 2018, Appendix F).

A population is one run. Its members are runs of their own in `members/<number>`, trained in segments. At the end of a
segment a member may copy the weights and hyperparameters of another one, and changes its own (`exploit_explore`). Each
such decision is a line of `lineage.jsonl`, which is on the disk before the decision is carried out (`journal`).
"""
