# Environments of other people's libraries, and the runs that they carry out as controls. Nothing here is part of a report.
#
#   make peers                       the environments: .peers/<name>, each from workflows/peers/<name>.txt
#   make peers SCALE=workstation     and all runs of that scale whose variant names a peer, our own runs beside them, and
#                                    the speeds of both sides

from ddrl.papers.peer_pairs import pairs
from ddrl.peers.catalogue import INSTALLED as PEERS_IN, known_peers

try:
    PEERS = known_peers(BASE, ALL_RUNS.values())
except UserError as error:
    refuse(error)


wildcard_constraints:
    peer="|".join(PEERS),


rule peer_environment:
    input:
        pins=str(BASE / "workflows/peers/{peer}.txt"),
        torch=str(BASE / "constraints.txt"),
    output:
        f"{PEERS_IN}/{{peer}}/.ready",
    log:
        f"{PEERS_IN}/{{peer}}.log",
    # Nodes of a cluster may reach no packages.
    localrule: True
    params:
        folder=f"{PEERS_IN}/{{peer}}",
        pip=f"{PEERS_IN}/{{peer}}/bin/python -m pip --disable-pip-version-check install --quiet",
        driver=str(BASE / "workflows/peers/drivers/{peer}_driver.py"),
    message:
        "environment {params.folder}"
    # As `make HASHED=1`: all but torch by hash, torch last, by its version, since the machine decides which build it gets.
    shell:
        "exec >{log:q} 2>&1;"
        " python -m venv --clear {params.folder:q};"
        " {params.pip} --no-deps --ignore-requires-python --require-hashes -r {input.pins:q};"
        ' {params.pip} "$(grep -x "torch==[0-9.]*" {input.torch:q})";'
        " {params.folder:q}/bin/python {params.driver:q} --check; touch {output:q}"


# (paper, experiment, our variant) -> the variants of peers that carry out the same configuration.
SIDES = {}
for paper, folder in FOLDER_OF.items():
    for name, experiment in experiments.load_experiments(folder).items():
        for pair in pairs(experiment):
            SIDES.setdefault((paper, name, pair.ours), []).append(pair.theirs)


def runs_of_peers(wildcards):
    """The results of this scale's runs that peers carry out, and of our own runs beside them."""
    theirs = {
        (run.paper, run.experiment, run.variant)
        for run in ALL_RUNS.values()
        if run.config.get("peer")
    }
    beside = {
        side
        for side, variants in SIDES.items()
        if theirs & {(*side[:2], variant) for variant in variants}
    }
    return [
        f"{directory}/curves.parquet"
        for directory, run in ALL_RUNS.items()
        if (run.paper, run.experiment, run.variant) in theirs | beside
    ]


def peers_beside(paper, experiment, variant):
    """The peers whose runs this scale has beside a variant of ours."""
    planned = {
        run.config.get("peer")
        for run in RUNS_OF[paper]
        if run.experiment == experiment
        and run.variant in SIDES.get((paper, experiment, variant), ())
    }
    return sorted(planned - {None})


def speeds_of_peers(wildcards):
    """One measurement for each configuration that this scale has runs of on both sides."""
    return sorted(
        {
            f"results/{SCALE}/peers/{run.paper}/{run.experiment}/{run.variant}/{Path(directory).parent.name}.json"
            for directory, run in ALL_RUNS.items()
            if peers_beside(run.paper, run.experiment, run.variant)
        }
    )


def config_of_speed(wildcards):
    """The configuration that is measured: that of the first seed, which makes no difference here."""
    folder = Path(
        f"results/{SCALE}/{wildcards.paper}/{wildcards.experiment}/{wildcards.variant}/{wildcards.environment}"
    )
    return next(
        f"{directory}/config.json"
        for directory in ALL_RUNS
        if Path(directory).parent == folder
    )


rule peer_speed:
    input:
        config=config_of_speed,
        peers=lambda wildcards: [
            f"{PEERS_IN}/{peer}/.ready"
            for peer in peers_beside(
                wildcards.paper, wildcards.experiment, wildcards.variant
            )
        ],
    output:
        f"results/{SCALE}/peers/{{paper}}/{{experiment}}/{{variant}}/{{environment}}.json",
    log:
        f"results/{SCALE}/peers/{{paper}}/{{experiment}}/{{variant}}/{{environment}}.log",
    localrule: True
    # Nothing else of this workflow runs meanwhile. On a cluster, which has no number of cores, the job is local, too: all
    # systems are measured on one machine.
    threads: workflow.resource_settings.cores or 1
    params:
        peers=lambda wildcards: ",".join(
            peers_beside(wildcards.paper, wildcards.experiment, wildcards.variant)
        ),
    message:
        "speed {output}"
    shell:
        "exec python -m ddrl.cli peers speed {input.config:q} --peers {params.peers:q} --repeats 3 --json {output:q}"
        " > {log:q} 2>&1"


rule peers:
    input:
        expand(f"{PEERS_IN}/{{peer}}/.ready", peer=PEERS),
        runs_of_peers,
        speeds_of_peers,
    localrule: True
