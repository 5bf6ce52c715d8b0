# What the rules share: the checked configuration, the runs it asks for, names of files, limits of this machine.
import fcntl
import os
import sys
from itertools import chain
from pathlib import Path

from snakemake.logging import logger

sys.path.insert(0, workflow.basedir)
# The jobs' `python` is the one that runs Snakemake, also where its environment was not activated.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

from ddrl.training.config import experiments
from ddrl.papers.table_names import SUITE_NEEDS, SUITE_TABLES, TABLES
from ddrl.papers.declared import declared
from ddrl.papers.experiments import with_further
from ddrl.papers.own_code import check_own_code
from ddrl.papers.paper import load_paper
from ddrl.papers.schema import check, schema
from ddrl.errors import UserError, unknown_name
from ddrl.system.locks import announce_workflow
from ddrl.system.plugins import ALGORITHMS
from ddrl.system.text_files import parse_yaml

BASE = Path(os.path.relpath(workflow.basedir))
"""The checkout, seen from the working directory: `.`, unless `--directory` names another."""
FILTERS = ("experiments", "variants", "environments", "seeds")


def checked(given):
    """The configuration with its defaults; `UserError` for what is not allowed."""
    keys = schema("config")["properties"]
    values = {key: list_of(value, keys.get(key, {})) for key, value in given.items()}
    check(values, "config", where="configuration")
    return {key: keys[key].get("default") for key in keys} | values


def list_of(value, rules):
    """`--config seeds=1` and `seeds='[1, 2]'`, read as text, mean lists of numbers."""
    if rules.get("type") != "array":
        return value
    items = value if isinstance(value, list) else [value]
    return [parse_yaml(item) if isinstance(item, str) else item for item in items]


def wanted_filters(settings):
    """Paper -> what the lists of the configuration leave of it."""
    allowed = experiments.papers(ROOTS)
    for paper in settings["papers"] or []:
        if paper not in allowed:
            raise unknown_name("paper", paper, allowed, where="configuration")
    lists = {name: settings[name] for name in FILTERS if name != "seeds"}
    names = settings["papers"] or allowed
    left = experiments.narrowed(names, **lists, asked=sys.argv, root=ROOTS)
    seeds = {"seeds": settings["seeds"]}
    return {paper: filters | seeds for paper, filters in left.items()}


def filter_options(wildcards):
    """The same as options of `python -m ddrl.analysis aggregate`."""
    return [
        text
        for name, values in FILTERS_OF[wildcards.paper].items()
        if values
        for text in (f"--{name}", *map(str, values))
    ]


def replication_options():
    """Where the commands of the jobs find the papers, if not in `replications/` of the working directory alone."""
    return [] if ROOTS == (experiments.ROOT,) else ["--replications", *map(str, ROOTS)]


def take_over():
    """Makes the next command go on where a Snakemake was killed; returns a lock to keep.

    The operating system drops the lock on `alive` with its owner, so whoever gets it
    knows that no other workflow is at work here. Outputs are renamed into place when
    they are whole, so none that exists is incomplete.
    """
    state = Path(".snakemake")
    state.mkdir(exist_ok=True)
    alive = open(state / "alive", "w", encoding="utf-8")
    try:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return alive
    for left in chain(state.glob("locks/*.lock"), state.glob("incomplete/*")):
        left.unlink()
    return alive


def refuse(error):
    """Ends the workflow with the one line that says what is wrong."""
    logger.error(f"ddrl: {error}")
    sys.exit(2)


try:
    SETTINGS = checked(config)
    ROOTS = with_further(
        BASE / experiments.ROOT, map(Path, SETTINGS["replications"] or [])
    )
    FILTERS_OF = wanted_filters(SETTINGS)
    # A cluster's jobs read this file again: what has been checked before they were submitted is not checked by each.
    RUNS_OF = {
        paper: experiments.expand(
            paper,
            SETTINGS["scale"],
            **filters,
            root=ROOTS,
            validate=workflow.is_main_process,
        )
        for paper, filters in FILTERS_OF.items()
    }
    FOLDER_OF = {paper: experiments.folder_of(paper, ROOTS) for paper in RUNS_OF}
    READ = {paper: load_paper(folder) for paper, folder in FOLDER_OF.items()}
    if workflow.is_main_process:
        for paper in READ.values():
            check_own_code(paper)
    FIGURES_OF = {key: {one.name: one for one in READ[key].figures} for key in READ}
    DERIVED_OF = {key: {one.name: one for one in READ[key].derived} for key in READ}
    ALL_RUNS = {str(run.directory()): run for run in chain(*RUNS_OF.values())}
    # Without an import: a new number retrains, a new comment does not.
    USED = {run.config["algorithm"] for run in ALL_RUNS.values()}
    VERSIONS = {one: declared(ALGORITHMS.source(one), "VERSION") for one in USED}
except UserError as error:
    refuse(error)

SCALE = SETTINGS["scale"]
PAPERS = sorted(RUNS_OF)
RESULTS = f"results/{SCALE}/{{paper}}"
RUN = f"{RESULTS}/{{experiment}}/{{variant}}/{{environment}}/seed{{seed}}"
HAS_GPU = any(Path("/dev").glob("nvidia[0-9]*"))


wildcard_constraints:
    paper="|".join(PAPERS),
    seed="[0-9]+",
    table="[a-z0-9_]+",
    figure="[a-z0-9_]+",
    derived="|".join(chain.from_iterable(DERIVED_OF.values())) or "none",


if workflow.is_main_process:
    experiments.write_configs(ALL_RUNS.values(), folders=FOLDER_OF)
    ALIVE = take_over()
    announce_workflow()
