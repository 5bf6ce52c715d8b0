# config.json -> curves.parquet and run.json. Checkpoints and log.txt lie beside them, undeclared: Snakemake deletes
# what it declared when a job fails, and the next attempt goes on from the checkpoints.


import re
from collections import Counter

RUN_OF = "{variant}/{environment}/seed{seed}"


def of_run(folder, what):
    """A function of wildcards: `what` of the run that a job stands for.

    Of wildcards alone: Snakemake repeats no job for a parameter that it derives from inputs.
    """
    return lambda wildcards: what(ALL_RUNS[f"{folder}/{RUN_OF}".format(**wildcards)])


def environment_of_peer(run):
    """The mark of the environment that a run needs besides the suite's own, if a peer carries it out."""
    peer = run.config.get("peer")
    return [f"{PEERS_IN}/{peer}/.ready"] if peer else []


def training_rules():
    """(name, folder of an experiment, wildcard constraints, job) of each rule that trains.

    One for all runs; on a cluster one for each experiment, and for each of its variants that need something else: the
    jobs of a rule make one array there, and all of an array get what its first job asked for. A run over several nodes
    has a rule of its own, since an array of such jobs would run the first of them again and again.
    """
    if SITE is None:
        return [("train", f"{RESULTS}/{{experiment}}", {"variant": "[a-z0-9_]+"}, None)]
    groups = {}
    for run in ALL_RUNS.values():
        key = (run.paper, run.experiment, run.resources)
        alone = str(run.directory()) if run.resources.nodes > 1 else None
        groups.setdefault((*key, alone), []).append(run)
    rules = []
    taken = Counter()
    for (paper, experiment, needs, _), runs in groups.items():
        name = f"train_{paper}_{experiment}"
        taken[name] += 1
        number = f"__{taken[name]}" if taken[name] > 1 else ""
        folder = f"results/{SCALE}/{paper}/{experiment}"
        job = Job("train", SCALE, paper, experiment, needs)
        rules.append((name + number, folder, wildcards_of(runs), job))
    return rules


def wildcards_of(runs):
    """What the wildcards of `RUN_OF` may be in a rule for these runs."""
    found = {"variant": set(), "environment": set(), "seed": set()}
    for run in runs:
        variant, environment, seed = Path(run.directory()).parts[-3:]
        found["variant"].add(variant)
        found["environment"].add(re.escape(environment))
        found["seed"].add(seed.removeprefix("seed"))
    return {name: "|".join(sorted(values)) for name, values in found.items()}


def as_step(job):
    """What stands before the command of a run on a cluster: it is a job step, over as many nodes as the run needs."""
    if job is None:
        return ""
    start = (
        f"python -m ddrl.slurm.step srun --overlap --nodes={job.needs.nodes} --ntasks={job.needs.nodes}"
        " --ntasks-per-node=1 --cpus-per-task={resources.cpus_per_task} --output={log:q} --open-mode=append "
    )
    meet = "python -m ddrl.slurm.ray_cluster --meet {params.directory:q} -- "
    return start + inside() + (meet if job.needs.nodes > 1 else "")


for name, folder, constraints, job in training_rules():

    rule:
        name:
            name
        input:
            config=f"{folder}/{RUN_OF}/config.json",
            peer=of_run(folder, environment_of_peer),
        output:
            f"{folder}/{RUN_OF}/curves.parquet",
            f"{folder}/{RUN_OF}/run.json",
        log:
            f"{folder}/{RUN_OF}/log.txt",
        wildcard_constraints:
            **constraints,
        # A step is started from outside of it; what it runs is inside.
        container:
            None if job else IMAGE
        threads: of_run(folder, lambda run: run.resources.threads)
        resources:
            **asked(
                job,
                mem_mb=of_run(folder, lambda run: run.resources.memory_mib),
                gpu=of_run(folder, lambda run: run.resources.gpus if HAS_GPU else 0),
            ),
        params:
            directory=f"{folder}/{RUN_OF}",
            version=of_run(folder, lambda run: VERSIONS[run.config["algorithm"]]),
        message:
            "train {params.directory}"
        # One torch thread per role (Snakemake would set `threads`). `exec`: SIGTERM ends a shell at once, and with it what
        # it has started, before training has saved its checkpoint. A cluster that has lost a node starts its job elsewhere
        # while the node may still be at work, hence the wait.
        shell:
            "export OMP_NUM_THREADS=1; exec "
            + as_step(job)
            + "python -m ddrl.cli train {input.config:q} --directory {params.directory:q} --wait 600 >> {log:q} 2>&1"
