"""Population-based training (Jaderberg et al. 2017, as in Espeholt et al. 2018, Appendix F).

A population is one run. Its members are runs of their own in `members/<number>`, trained in segments; at the end of
each a member may take over weights and hyperparameters of another one, and changes its own (`rule`). Every such
decision is a line of `lineage.jsonl`, on the disk before it is carried out (`lineage`).
"""
