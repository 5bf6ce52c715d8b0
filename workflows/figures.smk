# Tables -> figures. A figure depends on its own script and on the tables that paper.yaml names for it.


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
        script="replications/{paper}/figures.py",
    output:
        f"{RESULTS}/figures/{{figure}}.svg",
        f"{RESULTS}/figures/{{figure}}.png",
    params:
        tables=f"{RESULTS}/tables",
        figures=f"{RESULTS}/figures",
    message:
        "figure {wildcards.figure} of {wildcards.paper}"
    shell:
        "python -m ddrl.analysis figure --paper {wildcards.paper:q} --name {wildcards.figure:q}"
        " --tables {params.tables:q} --output {params.figures:q}"
