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


def speeds_of(wildcards):
    """Speeds beside other libraries that have been measured."""
    folders = (Path("results/reference/peers"), Path(f"results/{SCALE}/peers"))
    return sorted(str(file) for folder in folders for file in folder.rglob("*.json"))


def facts_of(wildcards):
    """What the paper published, and what this replication set out to do."""
    folder = FOLDER_OF[wildcards.paper]
    return sorted(
        map(
            str,
            [
                *folder.glob("*.yaml"),
                *folder.glob("*.md"),
                *folder.glob("published/*.csv"),
                *(folder.parent / "references").glob("*.csv"),
            ],
        )
    )


rule aggregate:
    input:
        results=results_of,
        reference=reference_of,
        speeds=speeds_of,
        facts=facts_of,
    output:
        expand(f"{RESULTS}/tables/{{table}}.parquet", table=TABLES, allow_missing=True),
        report(
            expand(
                f"{RESULTS}/tables/{{table}}.csv", table=TABLES, allow_missing=True
            ),
            caption="report/table.rst",
            category="Tables",
            subcategory="{paper}",
        ),
        f"{RESULTS}/tables/summary.json",
    resources:
        **asked(Job("aggregate", SCALE)),
    params:
        tables=f"{RESULTS}/tables",
        scale=SCALE,
        filters=filter_options,
        folders=replication_options(),
    message:
        "aggregate {wildcards.paper}"
    shell:
        "python -m ddrl.analysis aggregate --paper {wildcards.paper:q} --scale {params.scale:q} {params.filters:q}"
        " --output {params.tables:q} {params.folders:q}"


def inputs_of_derived(wildcards):
    """The tables that one of the paper's own is made from."""
    table = DERIVED_OF[wildcards.paper][wildcards.derived]
    return expand(
        f"{RESULTS}/tables/{{table}}.parquet",
        paper=wildcards.paper,
        table=table.tables,
    )


def own_modules(wildcards):
    """The Python and YAML of a replication, but for its figures."""
    folder = FOLDER_OF[wildcards.paper]
    files = [path for kind in ("*.py", "*.yaml") for path in folder.glob(kind)]
    return sorted(str(path) for path in files if path.name != "figures.py")


rule derive:
    input:
        inputs_of_derived,
        own_modules,
    output:
        f"{RESULTS}/tables/{{derived}}.parquet",
        report(
            f"{RESULTS}/tables/{{derived}}.csv",
            caption="report/table.rst",
            category="Tables",
            subcategory="{paper}",
        ),
    resources:
        **asked(Job("figure", SCALE)),
    params:
        tables=f"{RESULTS}/tables",
        folders=replication_options(),
    message:
        "table {wildcards.derived} of {wildcards.paper}"
    shell:
        "python -m ddrl.analysis table --paper {wildcards.paper:q} --name {wildcards.derived:q} --tables {params.tables:q}"
        " {params.folders:q}"


def tables_of_papers(wildcards):
    """What the suite's tables are made of."""
    return expand(
        f"{RESULTS}/tables/{{table}}.parquet",
        paper=PAPERS,
        table=SUITE_NEEDS,
    )


def facts_of_suite(wildcards):
    """What the systems are, and how fast they were on the machines of the committed benchmarks."""
    settings = chain(
        *(
            root.glob(f"*/{name}.yaml")
            for root in ROOTS
            for name in ("experiments", "paper")
        )
    )
    benchmarks = Path().glob("results/reference/bench/*.json")
    sources = {
        *BASE.glob("ddrl/algorithms/*.py"),
        *(
            ALGORITHMS.source(name)
            for name in USED
            if name not in ALGORITHMS.built_in()
        ),
    }
    return sorted(map(str, chain(settings, benchmarks, sources)))


rule aggregate_suite:
    input:
        tables=tables_of_papers,
        facts=facts_of_suite,
    output:
        expand(f"results/{SCALE}/suite/tables/{{table}}.parquet", table=SUITE_TABLES),
        report(
            expand(f"results/{SCALE}/suite/tables/{{table}}.csv", table=SUITE_TABLES),
            caption="report/suite_table.rst",
            category="Tables",
            subcategory="suite",
        ),
        f"results/{SCALE}/suite/tables/summary.json",
    resources:
        **asked(Job("aggregate_suite", SCALE)),
    params:
        scale=SCALE,
        papers=PAPERS,
        tables=f"results/{SCALE}/suite/tables",
        folders=replication_options(),
    message:
        "aggregate the suite"
    shell:
        "python -m ddrl.analysis suite --scale {params.scale:q} --papers {params.papers:q} --output {params.tables:q}"
        " {params.folders:q}"
