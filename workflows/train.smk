# config.json -> curves.parquet and run.json. Checkpoints and log.txt lie beside them, undeclared: Snakemake deletes
# what it declared when a job fails, and the next attempt goes on from the checkpoints.


def run_of(wildcards):
    """The run a job stands for."""
    return ALL_RUNS[RUN.format(**wildcards)]


rule train:
    input:
        f"{RUN}/config.json",
    output:
        f"{RUN}/curves.parquet",
        f"{RUN}/run.json",
    log:
        f"{RUN}/log.txt",
    threads: lambda wildcards: run_of(wildcards).threads
    resources:
        mem_mb=lambda wildcards: run_of(wildcards).memory_mib,
        gpu=lambda wildcards: run_of(wildcards).gpus if HAS_GPU else 0,
    params:
        directory=RUN,
        version=lambda wildcards: VERSIONS[run_of(wildcards).config["algorithm"]],
    message:
        "train {wildcards.paper}: {wildcards.experiment}, {wildcards.variant}, {wildcards.environment}, seed {wildcards.seed}"
    # One torch thread per role (Snakemake would set `threads`).
    shell:
        "OMP_NUM_THREADS=1 python -m ddrl.cli train {input:q} --directory {params.directory:q} >> {log:q} 2>&1"
