"""What people write is read as it looks, or refused in one line that names the file and the place."""

from __future__ import annotations

import ast
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddrl.bench.defaults import read_settings
from ddrl.errors import UserError
from ddrl.slurm.site import load_for
from ddrl.system.text_files import parse_yaml, read_json, read_text, read_yaml
from ddrl.training.config.overrides import parse_settings
from ddrl.training.config.run_config import load_run_config, parse_run_config
from tests.runs import BASE, merged

ROOT = Path(__file__).parents[2]
COMMITTED = sorted([*ROOT.glob("replications/**/*.yaml"), *ROOT.glob("workflows/**/*.yaml")])
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def refusal(text: str) -> str:
    with pytest.raises(UserError) as caught:
        parse_yaml(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_committed_file_has_the_values_that_it_had_for_the_loader_before(path: Path) -> None:
    old = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    assert repr(read_yaml(path)) == repr(old)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((word, word) for word in ("on", "off", "yes", "No", "y", "1:30:00", "12:30", "1_000", "0b1", "2026-01-01")),
        *((word, word) for word in ("=", "tRue", "e5", ".", "1e", "+.inf.")),
        *(("true", True), ("False", False), ("~", None), ("null", None), ("", None)),
        *(("12", 12), ("-7", -7), ("+5", 5), ("0", 0), ("0x1F", 31), ("0o17", 15)),
        *(("1e-5", 1e-5), ("1E3", 1000.0), (".5", 0.5), ("3.", 3.0), ("-.inf", float("-inf"))),
        *(("'010'", "010"), ('"on"', "on"), ("!!str 3", "3"), ("'3'", "3"), ("! 3", "3")),
    ],
)
def test_a_value_is_what_the_core_schema_of_yaml_1_2_says(text: str, value: object) -> None:
    found = parse_yaml(f"key: {text}")
    assert found == {"key": value} and type(found["key"]) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "seed: 010",
            "line 1: key 'seed': 010 is one number in YAML 1.1 and another in 1.2; allowed: a number with",
        ),
        ("a:\n- {b: [-07]}", "line 2: key 'b': -07 is one number"),
        ("a: 1\nb: 2\na: 3", "line 3: key 'a' is given twice"),
        ("a: {b: 1, 'b': 2}", "line 1: key 'b' is given twice"),
        ("a: &a [*a]", "line 1: alias '*a' stands in what it stands for"),
        ("a: *b", "line 1: alias '*b' stands for nothing before it"),
        ("a: !!int 3", "line 1: key 'a': tag 'tag:yaml.org,2002:int' is not allowed"),
        ("a: !!python/name:os.system x", "line 1: key 'a': tag 'tag:yaml.org,2002:python/name:os.system' is not"),
        ("a: 1\n---\nb: 1", "line 3: a second document begins here; allowed: one"),
        ("? [a]\n: 1", "line 1: a key must be a text, a number or a boolean"),
        ("<<: 3", "line 1: '<<' merges mappings, and this is none"),
        ("a: " + "9" * 5000, "line 1: key 'a': a number of more than 400 digits"),
        ("a: 'b", "not valid YAML: while scanning a quoted scalar"),
        ("a: \x00", "not valid YAML: "),
    ],
)
def test_what_is_refused_is_named_with_its_line(text: str, words: str) -> None:
    assert words in refusal(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, "line 6: aliases stand for more than 100,000 values"),
        ("[" * 100_000, "line 1: values stand more than 64 deep in each other"),
        ("a: " + "{a: " * 100_000, "line 1: values stand more than 64 deep in each other"),
    ],
    ids=["aliases", "lists", "mappings"],
)
def test_a_few_bytes_cannot_keep_the_reader_busy(text: str, words: str) -> None:
    start = time.process_time()
    assert refusal(text) == words
    assert time.process_time() - start < 2


def test_what_is_merged_comes_first_and_own_keys_win() -> None:
    text = "one: &one {a: 1, b: 1}\ntwo: &two {b: 2, c: 2}\nall: {b: 3, <<: [*one, *two], d: *two}"
    found = parse_yaml(text)["all"]
    assert found == {"a": 1, "b": 3, "c": 2, "d": {"b": 2, "c": 2}}
    old = yaml.load(text, Loader=yaml.CSafeLoader)["all"]
    assert found == old


FILES = {
    "run configuration": load_run_config,
    "departures of a benchmark": read_settings,
    "site": lambda path: load_for(path, ROOT / "replications"),
    "schema or paper": read_yaml,
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"seed: 010", "line 1: key 'seed': 010 is one number"),
        (b"seed: 1\nseed: 2", "line 2: key 'seed' is given twice"),
        (BOMB.encode(), "line 6: aliases stand for more"),
        ("name: Café".encode("latin-1"), "is not text in UTF-8 (byte 0xe9 in line 1); allowed: UTF-8"),
        ("a: 1\n".encode("utf-16"), "is not text in UTF-8 (byte 0xff in line 1); allowed: UTF-8"),
    ],
    ids=["octal", "twice", "bomb", "latin-1", "utf-16"],
)
def test_every_file_of_settings_is_read_by_the_one_strict_reader(
    kind: str, content: bytes, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        FILES[kind](path)
    assert str(caught.value).startswith(f"{path}: {words}")


def test_no_other_module_reads_yaml() -> None:
    importing = {
        path.relative_to(ROOT).as_posix()
        for folder in ("ddrl", "replications", "workflows")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        and "yaml" in [getattr(node, "module", ""), *(alias.name for alias in node.names)]
    }
    assert importing == {"ddrl/system/text_files.py"}
    assert not [path for path in ROOT.rglob("workflows/*.smk") if "yaml." in path.read_text(encoding="utf-8")]


def test_a_setting_of_the_command_line_is_read_as_one_of_a_file() -> None:
    assert parse_settings(["a.b=1e-4", "a.c=on"]) == {"a": {"b": 1e-4, "c": "on"}}
    with pytest.raises(UserError, match=r"^--set seed=010: line 1: 010 is one number"):
        parse_settings(["seed=010"], "--set ")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"seed": 1, "seed": 2}', "key 'seed' is given twice"),
        (b"\x80\x03binary\x00", "is not text in UTF-8 (byte 0x80 in line 1); allowed: UTF-8"),
        (b"\x00\x01\x02", "not valid JSON: "),
        (b"[" * 100_000, "not valid JSON: "),
        (b"seed: 1", "not valid JSON: "),
    ],
    ids=["twice", "binary", "zeros", "deep", "yaml"],
)
def test_a_configuration_in_json_is_read_as_strictly(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_run_config(path)
    assert str(caught.value).startswith(f"{path}: {words}") and "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [read_text, read_json, read_yaml])
def test_a_file_that_is_none_is_named(tmp_path: Path, read: Any) -> None:
    (tmp_path / "file").touch()
    for path, words in (
        (tmp_path, "is a folder, not a file"),
        (tmp_path / "none", "no such file"),
        (tmp_path / "file" / "below", "a part of this path is a file, not a folder"),
    ):
        with pytest.raises(UserError) as caught:
            read(path)
        assert str(caught.value) == f"{path}: {words}"


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(BASE).encode())
    assert load_run_config(path) == parse_run_config(BASE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"env_frames": True}, "key 'env_frames' must be a number (got True)"),
        ({"seed": "1"}, "key 'seed' must be a number (got '1')"),
        ({"hyperparameters": {"discount": True}}, "key 'hyperparameters.discount' must be a number (got True)"),
        ({"recording": {"tensorboard": "on"}}, "key 'recording.tensorboard' must be true or false (got 'on')"),
        ({"recording": {"tensorboard": 1}}, "key 'recording.tensorboard' must be true or false (got 1)"),
        (
            {"hyperparameters": {"optimizer": {"learning_rate": "1e-3"}}},
            "key 'hyperparameters.optimizer.learning_rate' must be a number (got '1e-3')",
        ),
    ],
)
def test_no_value_is_taken_for_one_of_another_kind(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_run_config(merged(BASE, change), where="config.yaml")
    assert str(caught.value) == f"config.yaml: {words}"
