# Tables and figures -> reports/<paper>.pdf.
import shlex


def drawings_of(wildcards):
    """The figures that paper.yaml lists."""
    names = FIGURES_OF[wildcards.paper]
    return expand(
        f"{RESULTS}/figures/{{figure}}.svg", paper=wildcards.paper, figure=names
    )


def command_of(wildcards):
    """What to type for the same results."""
    words = ["snakemake", "--cores", wildcards.paper]
    for key, default in checked({}).items():
        value = SETTINGS[key]
        if value != default and key != "papers":
            text = (
                f"[{','.join(map(str, value))}]" if isinstance(value, list) else value
            )
            words += (
                [f"{key}={text}"]
                if "--config" in words
                else ["--config", f"{key}={text}"]
            )
    return shlex.join(words)


rule report:
    input:
        expand(f"{RESULTS}/tables/{{table}}.csv", table=TABLES, allow_missing=True),
        f"{RESULTS}/tables/summary.json",
        drawings_of,
        "reports/paper.typ",
        "reports/template.typ",
    output:
        pdf="reports/{paper}.pdf",
        data=f"{RESULTS}/report.json",
    params:
        results=RESULTS,
        command=command_of,
    message:
        "report {output.pdf}"
    shell:
        "python -m ddrl.report --results {params.results:q} --data {output.data:q} --pdf {output.pdf:q}"
        " --command {params.command:q}"
