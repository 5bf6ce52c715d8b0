# What jobs ask for: of this machine, or of the cluster whose site file the configuration names.
import psutil

from ddrl.slurm.site import Job, check_partitions, load_for


def asked(job, **otherwise):
    """Resources of a rule: on a cluster what the site file says of `job`, at every attempt; `otherwise` elsewhere."""
    if SITE is None:
        return otherwise
    request = SITE.request(job)

    def at(name):
        return lambda wildcards, attempt: request.resources(attempt, SITE)[name]

    return {name: at(name) for name in request.resources(1, SITE)}


def limit_resources(runs):
    """What all jobs together may take, unless the command line or a profile says."""
    needed = max((run.resources.memory_mib for run in runs), default=0)
    limits = {"mem_mb": max(psutil.virtual_memory().total >> 20, needed), "gpu": 1}
    for name, value in limits.items():
        workflow.global_resources.setdefault(name, value)


try:
    SITE = load_for(Path(SETTINGS["site"]), ROOTS) if SETTINGS["site"] else None
except UserError as error:
    refuse(error)

if workflow.is_main_process and SITE is None:
    limit_resources(ALL_RUNS.values())


onstart:
    # Before anything is submitted, and not in a dry run, which may be far from the cluster.
    try:
        if SITE is not None:
            check_partitions(SITE)
        elif workflow.executor_plugin.name == "slurm":
            raise UserError(
                "configuration: site: jobs for SLURM need a site file, and none is named; copy"
                " workflows/profiles/slurm/site.example.yaml, edit it, and add --config site=FILE"
            )
    except UserError as error:
        refuse(error)
