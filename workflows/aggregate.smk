# curves.parquet and run.json of every run, and the committed reference runs -> tables.


def results_of(wildcards):
    """Every result file of this paper at this scale."""
    directories = [run.directory() for run in RUNS_OF[wildcards.paper]]
    return [
        f"{directory}/{name}"
        for directory in directories
        for name in ("curves.parquet", "run.json")
    ]


def reference_of(wildcards):
    """Committed results of long runs, where there are any."""
    files = Path("results/reference", wildcards.paper).rglob("seed*/*")
    return sorted(
        str(file) for file in files if file.name in ("curves.parquet", "run.json")
    )


def facts_of(wildcards):
    """What the paper published, and what this replication set out to do."""
    folder = Path("replications", wildcards.paper)
    return sorted(
        map(
            str,
            [
                *folder.glob("*.yaml"),
                *folder.glob("*.md"),
                *folder.glob("published/*.csv"),
            ],
        )
    )


rule aggregate:
    input:
        results=results_of,
        reference=reference_of,
        facts=facts_of,
    output:
        expand(
            f"{RESULTS}/tables/{{table}}.{{kind}}",
            table=TABLES,
            kind=("parquet", "csv"),
            allow_missing=True,
        ),
        f"{RESULTS}/tables/summary.json",
    params:
        tables=f"{RESULTS}/tables",
        scale=SCALE,
        filters=FILTER_OPTIONS,
    message:
        "aggregate {wildcards.paper}"
    shell:
        "python -m ddrl.analysis aggregate --paper {wildcards.paper:q} --scale {params.scale:q} {params.filters:q}"
        " --output {params.tables:q}"
