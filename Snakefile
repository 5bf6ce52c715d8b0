# From replications/<paper>/experiments.yaml to reports/<paper>.pdf and reports/suite.pdf, one arrow at a time.
#
#   snakemake --cores                                        every paper and the suite, scale smoke
#   snakemake --cores impala_2018                            one paper
#   snakemake --cores --config scale=workstation             a larger budget
#   snakemake --profile workflows/profiles/workstation       the same, for one GPU or many cores
#   snakemake --cores peers                                  environments and runs of other people's libraries (make peers)
#   snakemake --report results.html                          what was made, and how, in one HTML file
#   snakemake --cores --configfile narrow.yaml               keys: workflows/schemas/config.schema.yaml
#
# A run that was killed goes on from its checkpoints: type the same command again.
from snakemake.utils import min_version

min_version("9.0")


workdir: workflow.basedir


include: "workflows/common.smk"
include: "workflows/cluster.smk"
include: "workflows/container.smk"


rule all:
    default_target: True
    input:
        expand("reports/{paper}.pdf", paper=PAPERS),
        "reports/suite.pdf",
        "reports/index.html",


for paper in PAPERS:

    rule:
        name:
            paper
        input:
            f"reports/{paper}.pdf",


include: "workflows/peers.smk"
include: "workflows/train.smk"
include: "workflows/aggregate.smk"
include: "workflows/figures.smk"
include: "workflows/report.smk"
