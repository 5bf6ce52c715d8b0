"""Files that a command is to write, checked before its work begins, which may take minutes."""

from __future__ import annotations

from pathlib import Path

from ddrl.errors import UserError


def check_output(file: Path | None) -> None:
    """Raise UserError where a file cannot be written: its folder does not exist, or it is a folder itself."""
    if file and not file.absolute().parent.is_dir():
        raise UserError(f"{file.parent}: no such folder")
    if file and file.exists() and not file.is_file():
        raise UserError(f"{file}: is no file")
