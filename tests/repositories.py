"""A repository of git whose commits have the dates that a test gives them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


class Repository:
    """A new repository in a folder, whose files its commits take in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._git("init", "--quiet")

    def commit(self, date: str) -> str:
        """Commit all files at a date (ISO 8601); returns the commit."""
        self._git("add", "--all")
        dates = {"GIT_COMMITTER_DATE": date, "GIT_AUTHOR_DATE": date}
        self._git("commit", "--quiet", "--allow-empty", "--message", date, **dates)
        return self._git("rev-parse", "HEAD").strip()

    def _git(self, *arguments: str, **variables: str) -> str:
        names = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        known = {**os.environ, **names, **variables}
        done = subprocess.run(
            ["git", *arguments], cwd=self._folder, env=known, check=True, capture_output=True, text=True
        )
        return done.stdout
