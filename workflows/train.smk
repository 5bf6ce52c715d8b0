# config.json -> curves.parquet and run.json. Checkpoints and log.txt lie beside them, undeclared: Snakemake deletes
# what it declared when a job fails, and the next attempt goes on from the checkpoints.


RUN_OF = "{variant}/{environment}/seed{seed}"


def of_run(folder, what):
    """A function of wildcards: `what` of the run that a job stands for.

    Of wildcards alone: Snakemake repeats no job for a parameter that it derives from inputs.
    """
    return lambda wildcards: what(ALL_RUNS[f"{folder}/{RUN_OF}".format(**wildcards)])


def training_rules():
    """(name, folder of an experiment, variants, job) of each rule that trains.

    One for all runs; on a cluster one for each experiment, and for each of its variants that need something else: the
    jobs of a rule make one array there, and all of an array get what its first job asked for.
    """
    if SITE is None:
        return [("train", f"{RESULTS}/{{experiment}}", "[a-z0-9_]+", None)]
    groups = {}
    for run in ALL_RUNS.values():
        key = (run.paper, run.experiment, run.resources)
        groups.setdefault(key, set()).add(run.variant)
    rules = []
    for (paper, experiment, needs), variants in groups.items():
        folder = f"results/{SCALE}/{paper}/{experiment}"
        name = f"train_{paper}_{experiment}"
        taken = sum(
            known == name or known.startswith(f"{name}__") for known, *_ in rules
        )
        job = Job("train", SCALE, paper, experiment, needs)
        rules.append(
            (
                f"{name}__{taken + 1}" if taken else name,
                folder,
                "|".join(sorted(variants)),
                job,
            )
        )
    return rules


def as_step(job):
    """What stands before the command of a run on a cluster: it is a job step, over as many nodes as the run needs."""
    if job is None:
        return ""
    start = (
        f"python -m ddrl.coordinator.step srun --overlap --nodes={job.needs.nodes} --ntasks={job.needs.nodes}"
        " --ntasks-per-node=1 --cpus-per-task={resources.cpus_per_task} --output={log:q} --open-mode=append "
    )
    meet = "python -m ddrl.coordinator.allocation --meet {params.directory:q} -- "
    return start + inside() + (meet if job.needs.nodes > 1 else "")


for name, folder, variants, job in training_rules():

    rule:
        name:
            name
        input:
            f"{folder}/{RUN_OF}/config.json",
        output:
            f"{folder}/{RUN_OF}/curves.parquet",
            f"{folder}/{RUN_OF}/run.json",
        log:
            f"{folder}/{RUN_OF}/log.txt",
        wildcard_constraints:
            variant=variants,
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
            + "python -m ddrl.cli train {input:q} --directory {params.directory:q} --wait 600 >> {log:q} 2>&1"
