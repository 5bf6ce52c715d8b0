# Tables and figures -> reports/<paper>.pdf and reports/suite.pdf, each with an HTML twin from the same data.
import shlex

LAYOUT = [
    str(BASE / "reports" / name)
    for name in ("template.typ", "report.html.j2", "style.css", "report.js")
]


def drawings_of(wildcards):
    """The figures that paper.yaml lists."""
    names = FIGURES_OF[wildcards.paper]
    return expand(
        f"{RESULTS}/figures/{{figure}}.svg", paper=wildcards.paper, figure=names
    )


def own_tables_of(wildcards):
    """The tables of the paper's own."""
    names = DERIVED_OF[wildcards.paper]
    return expand(f"{RESULTS}/tables/{{table}}.csv", paper=wildcards.paper, table=names)


def command_of(wildcards):
    """What to type for the same results: of one paper, or of the suite."""
    paper = wildcards.get("paper")
    settings = []
    for key, default in checked({}).items():
        value = SETTINGS[key]
        # Where it ran changes nothing about the results.
        where = key in ("site", "container")
        if value != default and not where and not (paper and key == "papers"):
            text = (
                f"[{','.join(map(str, value))}]" if isinstance(value, list) else value
            )
            settings.append(f"{key}={text}")
    words = ["snakemake", "--cores", *([paper] if paper else [])]
    return shlex.join(words + (["--config", *settings] if settings else []))


rule report:
    input:
        expand(f"{RESULTS}/tables/{{table}}.csv", table=TABLES, allow_missing=True),
        f"{RESULTS}/tables/summary.json",
        own_tables_of,
        drawings_of,
        LAYOUT,
        str(BASE / "reports/paper.typ"),
    output:
        pdf=report(
            "reports/{paper}.pdf",
            caption="report/paper.rst",
            category="Reports",
            labels={"report": "{paper}", "form": "PDF"},
        ),
        html=report(
            "reports/{paper}.html",
            caption="report/paper.rst",
            category="Reports",
            labels={"report": "{paper}", "form": "HTML"},
        ),
        data=f"{RESULTS}/report.json",
    resources:
        **asked(Job("report", SCALE)),
    params:
        results=RESULTS,
        command=command_of,
        root=str(BASE),
    message:
        "report {output.pdf}"
    shell:
        "python -m ddrl.report --results {params.results:q} --data {output.data:q} --pdf {output.pdf:q}"
        " --html {output.html:q} --command {params.command:q} --root {params.root:q}"


rule report_suite:
    input:
        expand(f"results/{SCALE}/suite/tables/{{table}}.csv", table=SUITE_TABLES),
        f"results/{SCALE}/suite/tables/summary.json",
        expand(f"results/{SCALE}/suite/figures/{{name}}.svg", name=SUITE_FIGURES),
        LAYOUT,
        str(BASE / "reports/suite.typ"),
    output:
        pdf=report(
            "reports/suite.pdf",
            caption="report/suite.rst",
            category="Reports",
            labels={"report": "suite", "form": "PDF"},
        ),
        html=report(
            "reports/suite.html",
            caption="report/suite.rst",
            category="Reports",
            labels={"report": "suite", "form": "HTML"},
        ),
        data=f"results/{SCALE}/suite/report.json",
    resources:
        **asked(Job("report_suite", SCALE)),
    params:
        results=f"results/{SCALE}/suite",
        command=command_of,
        root=str(BASE),
    message:
        "report {output.pdf}"
    shell:
        "python -m ddrl.report --results {params.results:q} --data {output.data:q} --pdf {output.pdf:q}"
        " --html {output.html:q} --command {params.command:q} --root {params.root:q}"


rule report_index:
    input:
        data=expand(f"results/{SCALE}/{{name}}/report.json", name=[*PAPERS, "suite"]),
        layout=[str(BASE / "reports" / name) for name in ("index.html.j2", "style.css")],
    output:
        "reports/index.html",
    resources:
        **asked(Job("report_index", SCALE)),
    params:
        root=str(BASE),
    message:
        "index {output[0]}"
    shell:
        "python -m ddrl.report --index reports --data {input.data:q} --root {params.root:q}"
