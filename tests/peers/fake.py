"""A peer made of a small script, which this test suite's own Python runs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

DRIVERS = Path(__file__).parents[2] / "workflows/peers/drivers"
DRIVER = """
import json, os, signal, sys, time
from protocol import Refused, Versions, run

def train(request, settings, reporter):
    how = open(os.environ["FAKE"]).read().strip()
    with open(os.environ["FAKE"] + ".request", "w") as file:
        json.dump(request, file)
    if how == "refuses":
        raise Refused("has no such network")
    rate = settings.take("optimizer.learning_rate")
    settings.same("clip_epsilon", 0.3, "it is fixed")
    for key in list(settings._values):
        if key != "gae_lambda":
            settings.take(key)
    versions = Versions(request, lambda: reporter.steps)
    reporter.progress(0)
    if how == "silent":
        print("a traceback on standard output")
        raise SystemExit(4)
    while reporter.steps < request["agent_steps"]:
        reporter.steps += 100
        reporter.gradient_steps += 2
        reporter.trained_samples += 200
        reporter.episode(reporter.steps, reporter.steps / 10, 50)
        reporter.metric("entropy", 0.5)
        time.sleep(0.11)
        reporter.updated()
        versions.keep(reporter)
        if reporter.steps == 300 and how in HOW:
            HOW[how](reporter)
    reporter.progress(force=True)
    counts = reporter.counts()
    versions.play(reporter, lambda state, share, count: [[float(state), 7]] * count)
    places = {"folder": "/home/me/run", "words": "--to=/home/me/run"}
    return {**counts, "effective": {"lr": rate} | places, "parameters": 12}

HOW = {
    "killed": lambda reporter: os.kill(os.getpid(), signal.SIGKILL),
    "raises": lambda reporter: 1 / 0,
    "garbage": lambda reporter: reporter._write("Hello!\\n"),
    "incomplete": lambda reporter: reporter._write('{"kind": "progress", "steps": 3}\\n'),
    "nan": lambda reporter: reporter.line("progress", **(reporter.counts() | {"seconds": float("nan")})),
    "hangs": lambda reporter: time.sleep(1000),
}

run(train, lambda: {"fake": "1.0"}, {})
"""


def install(root: Path, *, ready: bool = True) -> Path:
    """Make a project in `root` whose only peer is `fake`; return the file that says how it behaves."""
    drivers = root / "workflows/peers/drivers"
    drivers.mkdir(parents=True)
    (root / "workflows/peers/peers.yaml").write_text(
        "fake: {title: A Fake, algorithms: [ppo], variables: {FAKE: " + str(root / "how") + "}}\n"
    )
    shutil.copy(DRIVERS / "protocol.py", drivers)
    (drivers / "fake_driver.py").write_text(DRIVER)
    python = root / ".peers/fake/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    if ready:
        (root / ".peers/fake/.ready").touch()
    (root / "how").write_text("works")
    return root / "how"
