# Tables -> figures. A figure depends on its own script and on the tables that paper.yaml names for it.

SUITE_FIGURES = ("verdicts", *(f"coverage_{paper}" for paper in PAPERS))


def tables_of(wildcards):
    """The tables that one figure draws."""
    figure = FIGURES_OF[wildcards.paper][wildcards.figure]
    return expand(
        f"{RESULTS}/tables/{{table}}.parquet",
        paper=wildcards.paper,
        table=figure.tables,
    )


rule figure:
    input:
        tables_of,
        script=lambda wildcards: str(FOLDER_OF[wildcards.paper] / "figures.py"),
    output:
        report(
            f"{RESULTS}/figures/{{figure}}.svg",
            caption="report/figure.rst",
            category="Figures",
            subcategory="{paper}",
            labels={"figure": "{figure}"},
        ),
        f"{RESULTS}/figures/{{figure}}.png",
    resources:
        **asked(Job("figure", SCALE)),
    params:
        tables=f"{RESULTS}/tables",
        figures=f"{RESULTS}/figures",
        folders=replication_options(),
    message:
        "figure {wildcards.figure} of {wildcards.paper}"
    shell:
        "python -m ddrl.analysis figure --paper {wildcards.paper:q} --name {wildcards.figure:q}"
        " --tables {params.tables:q} --output {params.figures:q} {params.folders:q}"


rule figures_suite:
    input:
        expand(
            f"results/{SCALE}/suite/tables/{{table}}.parquet",
            table=("claims", "cells_by_verdict", "coverage", "matrix"),
        ),
        str(BASE / "ddrl/report/figures.py"),
    output:
        report(
            expand(f"results/{SCALE}/suite/figures/{{name}}.svg", name=SUITE_FIGURES),
            caption="report/suite_figure.rst",
            category="Figures",
            subcategory="suite",
        ),
        expand(f"results/{SCALE}/suite/figures/{{name}}.png", name=SUITE_FIGURES),
    resources:
        **asked(Job("figures_suite", SCALE)),
    params:
        tables=f"results/{SCALE}/suite/tables",
        figures=f"results/{SCALE}/suite/figures",
    message:
        "figures of the suite"
    shell:
        "python -m ddrl.report.figures --tables {params.tables:q} --output {params.figures:q}"
