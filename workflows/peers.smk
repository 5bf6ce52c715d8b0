# Environments of other people's libraries, and the runs that they carry out as controls. Nothing here is part of a report.
#
#   make peers                       the environments: .peers/<name>, each from workflows/peers/<name>.txt
#   make peers SCALE=workstation     and all runs of that scale whose variant names a peer

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


def runs_of_peers(wildcards):
    """The results of this scale's runs that peers carry out."""
    return [
        f"{directory}/curves.parquet"
        for directory, run in ALL_RUNS.items()
        if run.config.get("peer")
    ]


rule peers:
    input:
        expand(f"{PEERS_IN}/{{peer}}/.ready", peer=PEERS),
        runs_of_peers,
    localrule: True
