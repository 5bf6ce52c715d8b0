"""The rules that keep the library readable and safe, held by reading syntax trees; each rule is itself tested."""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

import pytest

from ddrl.papers.declared import declared
from ddrl.system.plugins import ALGORITHMS, ENVIRONMENTS
from tests import house

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

FLOORS: tuple[frozenset[str], ...] = tuple(
    frozenset(rooms.split())
    for rooms in (
        "errors types",
        "interfaces losses system",
        "actors coordinator environments learners networks papers replay",
        "algorithms analysis inference",
        "report training",
        "runtimes",
        "bench peers population slurm",
        "api regression",
        "cli ddrl",
    )
)
"""Folders of `ddrl/`, and files at its root, from the ground up: each imports what stands on lower floors alone."""
AT_THE_ROOT = {"__init__", "__main__", "errors", "interfaces", "types"}
NEVER = {
    "ddrl.losses": {"ddrl.types", "ddrl.interfaces", "ddrl.system"},
    "ddrl.algorithms": {"ddrl.coordinator", "ddrl.environments"},
    "ddrl.coordinator": {"ddrl.algorithms", "ddrl.environments"},
    "ddrl.papers": {"torch", "ddrl.environments"},
    "ddrl.analysis": {"torch", "ddrl.environments", "ddrl.algorithms"},
    "ddrl.report": {"torch", "ddrl.environments", "ddrl.algorithms"},
}
"""Folder -> what none of its files may reach, also through others and inside functions."""
LIGHT = (
    "ddrl",
    "ddrl.cli",
    "ddrl.environments.base.registry",
    "ddrl.environments.toy",
    "ddrl.inference.worker",
    "ddrl.inference.worker_pool",
    "ddrl.runtimes.ray.actor_process",
    "ddrl.runtimes.ray.learner_process",
    "ddrl.interfaces",
    "ddrl.regression",
    "ddrl.slurm.ray_cluster",
    "ddrl.training.config.run_config",
)
"""Whose import brings no torch, which takes two CPU seconds and 150 MB of each process."""

LOSSES_MAY_IMPORT = {"torch", "__future__", "collections", "dataclasses", "math", "typing"}
REPLICATIONS_MAY_IMPORT = {"errors", "analysis", "papers", "system"}
FIND_BY_FILE_NAME = {
    "ddrl/system/plugins.py",
    "ddrl/environments/gymnasium.py",  # modules of the user's own, which register environments
}

BASES = {
    "torch.nn.Module",
    "torch.optim.Optimizer",
    "torch.optim.optimizer.Optimizer",
    "torch.autograd.Function",
    "typing.Protocol",
    "typing.NamedTuple",
    "typing.Generic",
    "yaml.SafeLoader",
    "yaml.CSafeLoader",
}
MODULES_REFUSED = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "random"}
CALLS_REFUSED = re.compile(
    r"(eval|exec|compile|__import__|os\.system|os\.popen|yaml\.(load|full_load|unsafe_load)|.*\.(read_pickle|to_pickle)"
    r"|torch\.(random\.|cuda\.)?(manual_seed|manual_seed_all|seed|set_rng_state)"
    r"|numpy\.random\.(?!(Generator|PCG64|Philox|SeedSequence|BitGenerator)$).*)"
)
KEYWORDS_REFUSED = {("shell", True), ("weights_only", False), ("allow_pickle", True)}
READS = re.compile(r"(pandas\.read_\w+|pyarrow\.parquet\.read_\w+|numpy\.(load|loadtxt|genfromtxt))")
READ_BY_NAME = {"ddrl/system/files.py", "ddrl/system/processor.py"}
"""The one function that reads a file, and what the kernel writes."""
NEEDS_GENERATOR = re.compile(
    r"torch\.(rand|randn|randint|randperm|multinomial|bernoulli|normal)"
    r"|torch\.nn\.init\.(uniform_|normal_|trunc_normal_|orthogonal_|xavier_\w+|kaiming_\w+)"
    r"|.*\.(uniform_|normal_|exponential_|bernoulli_|random_|multinomial|geometric_|log_normal_|cauchy_)"
)


def imported_names(tree: ast.AST, path: str = "ddrl/module.py") -> dict[str, str]:
    """Local name -> full dotted name, for every import in the file, also those inside functions."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.split(".")[0]
                names[local] = alias.name if alias.asname else local
                names[f" {alias.name}"] = alias.name
        elif isinstance(node, ast.ImportFrom):
            package = list(Path(path).parent.parts)
            above = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [above, node.module]))
            names |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in node.names}
    return names


def dotted(node: ast.AST, names: dict[str, str]) -> str:
    """The full name of an expression such as `nn.Module`; a leading `?` stands for anything that is not a name."""
    if isinstance(node, ast.Subscript):
        return dotted(node.value, names)
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value, names)}.{node.attr}"
    return names.get(node.id, node.id) if isinstance(node, ast.Name) else "?"


def import_violations(path: str, tree: ast.AST) -> Iterator[str]:
    """Modules that are refused everywhere, imports that hide, and what replications may not see."""
    names = imported_names(tree, path)
    modules = set(names.values())
    roots = {name.split(".")[0] for name in modules} - {"ddrl"}
    if path.startswith("replications/"):
        rooms = {name.split(".")[1] for name in modules if name.startswith("ddrl.")}
        yield from (f"replications may not import ddrl.{room}" for room in sorted(rooms - REPLICATIONS_MAY_IMPORT))
        yield from ("replications may not import torch" for _ in roots & {"torch"})
    if path.startswith("ddrl/losses/"):
        yield from (f"losses may not import {root}" for root in sorted(roots - LOSSES_MAY_IMPORT))
    yield from (f"{root} is refused everywhere" for root in sorted(roots & MODULES_REFUSED))
    finds = any(dotted(node, names) == "importlib.import_module" for node in ast.walk(tree))
    if finds and path not in FIND_BY_FILE_NAME:
        yield "importlib.import_module hides an import from this test"
    if any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree)):
        yield "a relative import hides from this test"


def house_violations(texts: Mapping[str, str]) -> list[str]:
    """What is wrong with the plan of the house, given the sources of `ddrl/` by dotted name."""
    graph = {name: found.inside for name, found in house.read_imports(texts).items()}
    return [*_plan_violations(graph), *_never_violations(texts), *_light_violations(texts)]


def _plan_violations(graph: Mapping[str, set[str]]) -> Iterator[str]:
    floor = {room: height for height, rooms in enumerate(FLOORS, 1) for room in rooms}
    packages = {name for name in graph if any(other.startswith(f"{name}.") for other in graph)}
    at_the_root = {
        name.partition(".")[2] or "__init__"
        for name in graph
        if name.count(".") < 2 and name not in packages - {"ddrl"}
    }
    yield from (f"ddrl/{name}.py stands at the root" for name in sorted(at_the_root - AT_THE_ROOT))
    for name, imported in sorted(graph.items()):
        room = house.room_of(name, packages, 1)
        if room not in floor:
            yield f"{room} has no floor"
            continue
        for one in sorted(imported):
            other = house.room_of(one, packages, 1)
            if other != room and floor.get(other, 0) >= floor[room]:
                yield f"{name} (floor {floor[room]}) may not import {one} (floor {floor[other]})"
    for what, part in (("files", graph), ("folders", house.rooms(graph, 2))):
        yield from (f"a circle of {what}: {', '.join(group)}" for group in house.circles(part))


def _never_violations(texts: Mapping[str, str]) -> Iterator[str]:
    found = house.read_imports(texts)
    graph = {name: one.inside | {root for root in one.outside if root == "torch"} for name, one in found.items()}
    graph["torch"] = set()
    for folder, refused in NEVER.items():
        start = {name for name in graph if f"{name}.".startswith(f"{folder}.")}
        reached = house.reached(graph, start)
        for other in sorted(refused):
            for one in sorted(one for one in reached if f"{one}.".startswith(f"{other}.")):
                yield f"{folder} may not reach {one}"


def _light_violations(texts: Mapping[str, str]) -> Iterator[str]:
    found = house.read_imports(texts, at_import=True)
    graph = house.with_packages({name: one.inside for name, one in found.items()})
    for name in LIGHT:
        heavy = sorted(one for one in house.reached(graph, [name]) if "torch" in found[one].outside)
        if heavy:
            yield f"importing {name} brings torch, by {heavy[0]}"


def class_violations(tree: ast.AST) -> Iterator[str]:
    """Dataclasses that can change, and inheritance beyond what torch, typing, exceptions and YAML require.

    A protocol may join protocols of `ddrl.interfaces`: it inherits no behaviour.
    """
    names = imported_names(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        joins_protocols = "typing.Protocol" in [dotted(base, names) for base in node.bases]
        for base in node.bases:
            name = dotted(base, names)
            if joins_protocols and name.startswith("ddrl.interfaces."):
                continue
            builtin = getattr(builtins, name, None)
            if name not in BASES and not (isinstance(builtin, type) and issubclass(builtin, BaseException)):
                yield f"line {node.lineno}: class {node.name} inherits from {name}"
        for decorator in node.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            name = dotted(call.func if call else decorator, names)
            keywords = [ast.unparse(word) for word in call.keywords] if call else []
            if name.endswith("dataclass") and "frozen=True" not in keywords:
                yield f"line {node.lineno}: dataclass {node.name} is not frozen"


def reading_violations(path: str, tree: ast.AST) -> Iterator[str]:
    """Files that are opened by name to be read, where a pipe may stand that nobody writes to."""
    names = imported_names(tree)
    for node in ast.walk(tree) if path not in READ_BY_NAME else ():
        if not isinstance(node, ast.Call):
            continue
        name, first = dotted(node.func, names), node.args[0] if node.args else None
        in_memory = isinstance(first, ast.Call) and dotted(first.func, names) in ("io.BytesIO", "pyarrow.BufferReader")
        if re.fullmatch(r"(?!ddrl\.).*\.(read_text|read_bytes)", name) or (READS.fullmatch(name) and not in_memory):
            yield f"line {node.lineno}: {name}: read a file by ddrl.system.files.read_file"


def call_violations(tree: ast.AST) -> Iterator[str]:
    """Calls that run text, open a shell, load code with data, or draw from a global random generator."""
    names = imported_names(tree)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    safe = {one.name for one in classes if "yaml.SafeLoader" in [dotted(base, names) for base in one.bases]}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func, names)
        keywords = {word.arg: word.value for word in node.keywords}
        flags = {(key, word.value) for key, word in keywords.items() if isinstance(word, ast.Constant)}
        at = f"line {node.lineno}: {name}"
        seeded = name == "numpy.random.default_rng" and node.args
        safe_yaml = name == "yaml.load" and dotted(keywords.get("Loader", node), names) in safe
        if CALLS_REFUSED.fullmatch(name) and not (seeded or safe_yaml):
            yield at
        yield from (f"{at}({key}={flag!r})" for key, flag in flags & KEYWORDS_REFUSED)
        if name == "torch.load" and ("weights_only", True) not in flags:
            yield f"{at} without weights_only=True"
        if NEEDS_GENERATOR.fullmatch(name) and "generator" not in keywords:
            yield f"{at} without generator="
        if re.fullmatch(r"torch\.(rand|randn|randint)_like", name):
            yield f"{at} draws from the global generator"


def size_violations(source: str, tree: ast.AST) -> Iterator[str]:
    """Files and functions that are too long to read at once."""
    lines = len(source.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{lines} lines, at most {MAX_FILE_LINES}"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"line {node.lineno}: {node.name} has {length} lines, at most {MAX_FUNCTION_LINES}"


OWN = {f"ddrl/{kind.folder}/{name}.py": name for kind in (ALGORITHMS, ENVIRONMENTS) for name in kind.built_in()}
"""File of an algorithm or of an environment's adapter -> its name."""
TITLES = {
    str(title)
    for path in OWN
    if path.startswith("ddrl/algorithms/")
    for title in map(declared(ROOT / path, "SYSTEM").get, ("name", "central_name"))
    if title
}
NAMED = {*OWN.values(), *TITLES, *(path.parent.name for path in (ROOT / "replications").glob("*/paper.yaml"))}
"""Names of algorithms, as code and as papers write them, of environments' prefixes and of papers."""
ADAPTERS = {path.removesuffix(".py").replace("/", ".") for path in OWN}
MAY_NAME = ("ddrl/environments/worlds/",)
"""The games and simulators behind adapters."""
PROBED = {
    "__cause__", "__notes__", "errno", "filename", "kind", "name", "reason", "stderr", "strerror",  # of errors, dtypes
    "encoding", "rich_proxied_file",  # of a stream that may be closed
    "_color_index",  # of miniworld
}  # fmt: skip
"""Attributes that code may ask for where they may be missing. What differs between algorithms is declared."""
UNTYPED = {"params", "parameters", "queue", "store", "replay"}
"""Arguments whose type must not be `Any`, but for handles of Ray."""
NAMED_PACKAGES = {"ddrl/training/records/manifest.py"}
"""Files that name the Python package `mujoco`, which is not the prefix."""


def violations(path: str, source: str) -> list[str]:
    """Everything that is wrong with one file of `ddrl/` or `replications/`."""
    tree = ast.parse(source, path)
    found = [*import_violations(path, tree), *class_violations(tree), *call_violations(tree)]
    found += [*reading_violations(path, tree), *name_violations(path, tree), *probing_violations(path, tree)]
    return [*found, *size_violations(source, tree)]


def name_violations(path: str, tree: ast.AST) -> Iterator[str]:
    """Yield texts of shared files that are the name of an algorithm, a paper or an environment's prefix or task.

    What differs between them is declared in their own files. An example in a longer text names no case of the code.
    """
    if not path.startswith("ddrl/") or path in OWN or path.startswith(MAY_NAME):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            if any({module + alias.name, module.removesuffix(".")} & ADAPTERS for alias in node.names):
                yield f"line {node.lineno}: imports an algorithm or an adapter, which a shared file may not know"
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and path not in NAMED_PACKAGES:
            first = node.value.partition("/")[0]
            if node.value in NAMED or (" " not in node.value and first in NAMED):
                yield f"line {node.lineno}: {node.value!r} is a name that a shared file may not know"


def probing_violations(path: str, tree: ast.AST) -> Iterator[str]:
    """Yield attributes asked for by name that may be missing, and stores and parameters without a type."""
    for node in ast.walk(tree) if path.startswith("ddrl/") else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("hasattr", "getattr"):
            name = node.args[1]
            may_be_missing = node.func.id == "hasattr" or len(node.args) == 3
            if may_be_missing and isinstance(name, ast.Constant) and name.value not in PROBED:
                yield f"line {node.lineno}: asks for {name.value!r}, which should be declared"
        untyped = isinstance(node, ast.arg) and isinstance(node.annotation, ast.Name) and node.annotation.id == "Any"
        if untyped and node.arg in UNTYPED and not path.startswith("ddrl/runtimes/ray/"):
            yield f"line {node.lineno}: {node.arg} has no type"


PEERS_MAY_CALL = re.compile(r"torch\.manual_seed|numpy\.random\..*")
"""What drivers may call beside the rules: their libraries draw from global generators."""


def driver_violations(source: str) -> list[str]:
    """Modules and calls of a driver of a peer that run text, open a shell, or load code with data."""
    tree = ast.parse(source)
    modules = sorted({name.split(".")[0] for name in imported_names(tree).values()} & MODULES_REFUSED - {"random"})
    refused = re.compile(
        r"line \d+: (" + CALLS_REFUSED.pattern + r"|torch\.load.*|.*\((shell|weights_only|allow_pickle)=.*)"
    )
    found = [one for one in call_violations(tree) if refused.match(one)]
    return [*modules, *(one for one in found if not PEERS_MAY_CALL.match(one.partition(": ")[2]))]


DRIVERS = sorted((ROOT / "workflows").rglob("*.py"))


@pytest.mark.parametrize("path", DRIVERS, ids=lambda path: path.name)
def test_drivers_of_peers_run_no_text_and_load_no_code(path: Path) -> None:
    assert driver_violations(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "exec(compile(text, name, 'exec'), space)",
        "import torch\ntorch.load(f)",
        "import torch\ntorch.load(f, weights_only=False)",
        "import subprocess\nsubprocess.run(x, shell=True)",
        "import numpy\nnumpy.load(f, allow_pickle=True)",
    ],
)
def test_a_driver_that_would_is_refused(source: str) -> None:
    assert driver_violations(source)


def source_files() -> list[str]:
    """Paths relative to the project, with forward slashes."""
    files = [file for folder in ("ddrl", "replications") for file in (ROOT / folder).rglob("*.py")]
    return sorted(file.relative_to(ROOT).as_posix() for file in files)


@pytest.mark.parametrize("path", source_files())
def test_every_source_file_keeps_the_rules(path: str) -> None:
    assert violations(path, (ROOT / path).read_text(encoding="utf-8")) == []


def test_the_rules_are_applied_to_the_library() -> None:
    files = source_files()
    assert "ddrl/training/run.py" in files
    assert {Path(path).parts[1] for path in files} >= {"losses", "algorithms", "coordinator", "environments"}


def test_imports_go_down_the_floors_and_in_no_circle() -> None:
    assert house_violations(house.sources()) == []


def test_the_house_has_at_most_nine_floors_and_six_files_at_its_root() -> None:
    graph = {name: found.inside for name, found in house.read_imports(house.sources()).items()}
    assert max(house.floors(house.rooms(graph)).values()) <= 9
    assert len(list((ROOT / "ddrl").glob("*.py"))) <= 6


def test_the_documents_picture_is_that_of_the_imports() -> None:
    graph = {name: found.inside for name, found in house.read_imports(house.sources()).items()}
    drawn = "```mermaid\n" + "\n".join(house.picture(graph)) + "\n```\n"
    assert drawn in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


PLANTED = [
    (
        "ddrl.actors.policy",
        "import ddrl.environments.atari",
        "ddrl.actors.policy (floor 3) may not import ddrl.environ",
    ),
    (
        "ddrl.learners.core",
        "def f():\n    from ddrl.networks.torsos import Torso",
        "may not import ddrl.networks.torsos",
    ),
    ("ddrl.training.run", "from ddrl.api import launch", "may not import ddrl.api.launch (floor 8)"),
    ("ddrl.algorithms.impala", "from ddrl.coordinator import schedule", "may not reach ddrl.coordinator.schedule"),
    (
        "ddrl.learners.core",
        "from ddrl.coordinator import schedule",
        "may not reach ddrl.coordinator.schedule",
    ),
    ("ddrl.coordinator.traffic", "def f():\n    import ddrl.algorithms.ppo", "may not reach ddrl.algorithms.ppo"),
    ("ddrl.losses.actor_critic", "from ddrl.types import Unroll", "ddrl.losses may not reach ddrl.types"),
    ("ddrl.papers.schema", "import torch.nn", "ddrl.papers may not reach torch"),
    ("ddrl.papers.schema", "def f():\n    import torch", "ddrl.report may not reach torch"),
    ("ddrl.system.files", "from torch import nn", "importing ddrl.cli brings torch, by ddrl.system.files"),
    ("ddrl.environments.tools.named", "import torch", "importing ddrl.inference.worker brings torch"),
    ("ddrl.runtimes", "import torch", "importing ddrl.runtimes.ray.actor_process brings torch, by ddrl.runtimes"),
    ("ddrl.newfolder.x", "import os", "newfolder has no floor"),
    ("ddrl.extra", "import os", "ddrl/extra.py stands at the root"),
    ("ddrl.training.builder", "from ddrl.training import run", "a circle of files: ddrl.training.builder, "),
    (
        "ddrl.training.records.progress",
        "from ddrl.training import device",
        "a circle of folders: training, training/rec",
    ),
]


@pytest.mark.parametrize(("name", "statement", "message"), PLANTED)
def test_an_import_that_breaks_the_plan_is_found(name: str, statement: str, message: str) -> None:
    texts = house.sources()
    texts[name] = f"{texts.get(name, '')}\n{statement}\n"
    assert any(message in violation for violation in house_violations(texts)), house_violations(texts)


BAD = {
    "ddrl/algorithms/x.py": {
        "from ..coordinator import gate": "a relative import hides",
        "import importlib\nimportlib.import_module('ddrl.coordinator')": "hides an import",
    },
    "ddrl/losses/x.py": {"import numpy": "losses may not import numpy"},
    "ddrl/training/x.py": {
        "COPIED = {'impact': ('optimizer',)}": "'impact' is a name that a shared file may not know",
        "if prefix == 'atari': pass": "'atari' is a name",
        "GAME = 'atari/pong'": "'atari/pong' is a name",
        "PAPER = 'impala_2018'": "'impala_2018' is a name",
        "from ddrl.algorithms import impala": "imports an algorithm",
        "from ddrl.algorithms.impala import Config": "imports an algorithm",
        "import ddrl.algorithms.impala": "imports an algorithm",
        "from ddrl.environments import atari": "imports an algorithm or an adapter",
        "if system.name == 'IMPALA': pass": "'IMPALA' is a name",
        "if system.name == 'SEED RL (V-trace)': pass": "'SEED RL (V-trace)' is a name",
        "if hasattr(learner, 'replay'): pass": "asks for 'replay'",
        "columns = getattr(config, 'stored_columns', 0)": "asks for 'stored_columns'",
        "def f(queue: Any) -> None: pass": "queue has no type",
    },
    "replications/paper_2018/tables.py": {"import torch.nn": "replications may not import torch"},
    "replications/paper_2018/figures.py": {"from ddrl.api.launch import train": "replications may not import ddrl.api"},
    "ddrl/x.py": {
        "class A: pass\nclass B(A): pass": "class B inherits from A",
        "from threading import Thread\nclass B(Thread): pass": "class B inherits from threading.Thread",
        "from ddrl.networks import Net\nclass B(Net): pass": "class B inherits from ddrl.networks.Net",
        "import pickle": "pickle is refused",
        "from pickle import loads as safe": "pickle is refused",
        "import random": "random is refused",
        "eval('1')": "eval",
        "exec('1')": "exec",
        "import os as o\no.system('ls')": "os.system",
        "import subprocess\nsubprocess.run('ls', shell=True)": "shell=True",
        "import torch\ntorch.load('f', weights_only=False)": "weights_only=False",
        "import torch\ntorch.load('f')": "without weights_only=True",
        "import torch\ntorch.manual_seed(1)": "torch.manual_seed",
        "import torch\ntorch.cuda.manual_seed_all(1)": "torch.cuda.manual_seed_all",
        "from torch import manual_seed\nmanual_seed(1)": "torch.manual_seed",
        "import torch\ntorch.randn(3)": "without generator",
        "import torch\ntorch.randn_like(x)": "global generator",
        "def f(p):\n    p.multinomial(1)": "without generator",
        "from torch import nn\nnn.init.orthogonal_(w)": "without generator",
        "import numpy as np\nnp.random.seed(1)": "numpy.random.seed",
        "import numpy as np\nnp.random.rand()": "numpy.random.rand",
        "import numpy as np\nnp.random.default_rng()": "numpy.random.default_rng",
        "from numpy import random as r\nr.shuffle(x)": "numpy.random.shuffle",
        "import numpy as np\nnp.load('f', allow_pickle=True)": "allow_pickle=True",
        "import yaml\nyaml.load(f)": "yaml.load",
        "import yaml\nyaml.load(f, Loader=yaml.Loader)": "yaml.load",
        "from dataclasses import dataclass\n@dataclass\nclass A: pass": "dataclass A is not frozen",
        "import dataclasses as d\n@d.dataclass(slots=True)\nclass A: pass": "dataclass A is not frozen",
        "import pandas as pd\npd.read_pickle('f')": "read_pickle",
        "import pandas as pd\npd.read_parquet(path)": "read a file by ddrl.system.files.read_file",
        "import pyarrow.parquet as pq\npq.read_table(path)": "read a file by ddrl.system.files.read_file",
        "path.read_text()": "read a file by ddrl.system.files.read_file",
        "(run / 'run.json').read_bytes()": "read a file by ddrl.system.files.read_file",
        "pass\n" * (MAX_FILE_LINES + 1): "401 lines",
        "def f():\n" + "    pass\n" * MAX_FUNCTION_LINES: "f has 61 lines",
    },
}


@pytest.mark.parametrize(
    ("path", "source", "message"), [(path, *case) for path, cases in BAD.items() for case in cases.items()]
)
def test_a_broken_rule_is_found(path: str, source: str, message: str) -> None:
    assert any(message in violation for violation in violations(path, source))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("ddrl/training/run.py", "from ddrl import algorithms, coordinator, environments"),
        ("ddrl/training/config/run_config.py", "from ddrl import algorithms, environments"),
        ("ddrl/algorithms/x.py", "from ddrl.losses.vtrace import vtrace\nfrom ddrl.types import Unroll\nimport torch"),
        ("ddrl/analysis/x.py", "import numpy as np\nrng = np.random.Generator(np.random.PCG64(1))\nrng.normal()"),
        ("ddrl/x.py", "import numpy as np\nnp.random.default_rng(3)"),
        ("ddrl/x.py", "import torch\ntorch.randn(3, generator=g)\ntorch.Generator().manual_seed(1)"),
        ("ddrl/x.py", "import torch\ntorch.load('f', weights_only=True)"),
        ("ddrl/x.py", "from torch import nn\nclass A(nn.Module): pass\nclass E(ValueError): pass"),
        ("ddrl/x.py", "from typing import Protocol\nclass P(Protocol[T]): pass"),
        ("ddrl/x.py", "import yaml\nclass L(yaml.SafeLoader): pass\nyaml.load(f, Loader=L)"),
        ("ddrl/x.py", "from dataclasses import dataclass\n@dataclass(frozen=True, slots=True)\nclass A: pass"),
        ("ddrl/x.py", "import re\nre.compile('a')\nmodel.eval()"),
        ("ddrl/x.py", "from io import BytesIO\nimport pandas as pd\npd.read_parquet(BytesIO(read_file(path)))"),
        ("ddrl/x.py", "def f():\n" + "    pass\n" * (MAX_FUNCTION_LINES - 1)),
    ],
)
def test_good_code_breaks_no_rule(path: str, source: str) -> None:
    assert violations(path, source) == []


def pinned() -> dict[str, str]:
    """Normalised name -> version, from constraints.txt."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9a-z.]+", line) for line in lines), "only name==version, no local suffix"
    return dict(line.split("==") for line in lines)


def test_every_direct_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[<>=\[ ]", item)[0]).lower() for item in required}
    assert names - set(pinned()) == set()


def test_the_installed_packages_fit_together() -> None:
    check = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stdout


def test_the_pins_that_must_not_move_are_exact() -> None:
    assert {name: pinned()[name] for name in ("torch", "mujoco")} == {"torch": "2.13.0", "mujoco": "3.17.0"}


DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "DECISIONS.md",
    *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]


@pytest.mark.parametrize(
    "name", [*DOCUMENTS, *(f"docs/guide/{path.name}" for path in (ROOT / "docs/guide").glob("*.md"))]
)
def test_every_file_that_a_document_names_exists(name: str) -> None:
    named = re.findall(r"[`(]((?:ddrl|workflows|tests)/[\w./-]+|[A-Z]+\.(?:md|cff))[`)]", (ROOT / name).read_text())
    assert [path for path in set(named) - {"DEVIATIONS.md"} if not (ROOT / path).exists()] == []


def test_the_plan_is_described_also_where_rooms_go_in_a_circle() -> None:
    lines = list(house.describe({"ddrl.a.x": {"ddrl.b.y"}, "ddrl.b.y": {"ddrl.a.x"}}))
    assert lines[0] == "rooms: 2, 2 arrows, 1 circles"
    assert lines[1] == "  circle: a, b"
