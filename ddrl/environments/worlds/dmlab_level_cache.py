"""Compiled maps of DeepMind Lab as files, so that a level that was seen before starts without seconds of compiling."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from pathlib import Path

from ddrl.system.files import replacing

VARIABLE = "DDRL_DMLAB_CACHE"
"""Environment variable: the cache's folder. Else `ddrl/dmlab` in the user's folder of caches."""
_LOGGER = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Return the folder in which maps are kept."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddrl" / "dmlab"


class LevelCache:
    """The cache that `deepmind_lab.Lab` reads before it compiles a map and writes afterwards; processes may share it.

    Interface: google-deepmind/lab, docs/users/python_api.md. A map's key holds the checksum of its source.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copy the map `key` to `pk3_path` and return True; return False where it is not in the cache."""
        try:
            kept = self._file(key).open("rb")
        except FileNotFoundError:
            return False
        with kept, open(pk3_path, "wb") as target:
            shutil.copyfileobj(kept, target)
        return True

    def write(self, key: str, pk3_path: str) -> None:
        """Keep the map at `pk3_path`; only warn where the disk is full, since nothing depends on it."""
        file = self._file(key)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(file) as temporary:
                shutil.copyfile(pk3_path, temporary)
        except OSError as error:
            _LOGGER.warning("the level cache of DeepMind Lab could not keep a map: %s", error)

    def _file(self, key: str) -> Path:
        # Hashed, since a key is text from outside; in 256 folders, since there may be very many.
        digest = hashlib.sha256(key.encode()).hexdigest()
        return self._folder / digest[:2] / f"{digest}.pk3"
