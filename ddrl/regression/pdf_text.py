"""Text of a PDF that Typst wrote: no reader of PDFs is among the required packages."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

from ddrl.errors import UserError
from ddrl.system.files import read_file

OBJECT = re.compile(rb"(?:^|\n)(\d+) 0 obj\s(.*?)\nendobj", re.DOTALL)
SHOWN = re.compile(rb"/(\w+) [-\d.]+ Tf|\((\\[0-7]{3}.*?)\)(?=[-\d\](T])|(\bET\b)", re.DOTALL)
"""A font, a string of glyphs (two bytes each, the first one escaped) or the end of a text, in a content stream."""
ESCAPED = re.compile(rb"\\([0-7]{1,3}|.)", re.DOTALL)
CONTROLS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}
Codes = dict[int, str]


def text_of(path: Path) -> list[str]:
    """Return the text of each page, in the order of its content stream: a line for each text object.

    Raise `UserError` for a file that Typst did not write.
    """
    objects = {int(number): body for number, body in OBJECT.findall(read_file(path))}
    pages = re.search(rb"/Type/Pages.*?/Kids\[(.*?)\]", b"\n".join(objects.values()), re.DOTALL)
    if pages is None:
        raise UserError(f"{path}: is no PDF of Typst")
    return [_page(objects, int(number)) for number in re.findall(rb"(\d+) 0 R", pages.group(1))]


def _page(objects: dict[int, bytes], number: int) -> str:
    fonts = _fonts(objects, _reference(objects[number], b"Resources"))
    shown, font = [], Codes()
    for name, string, ended in SHOWN.findall(_stream(objects[_reference(objects[number], b"Contents")])):
        if name:
            font = fonts[name]
        elif ended:
            shown.append("\n")
        else:
            codes = ESCAPED.sub(_unescaped, string)
            pairs = zip(codes[::2], codes[1::2], strict=True)
            shown.append("".join(font.get(256 * high + low, "?") for high, low in pairs))
    return "".join(shown)


def _unescaped(found: re.Match[bytes]) -> bytes:
    code = found.group(1)
    return bytes([int(code, 8)]) if code[:1].isdigit() else CONTROLS.get(code, code)


def _fonts(objects: dict[int, bytes], resources: int) -> dict[bytes, Codes]:
    """Return the texts of the codes of each font of a page, by the name that its content stream gives it."""
    listed = re.search(rb"/Font<<(.*?)>>", objects[resources], re.DOTALL)
    found = re.findall(rb"/(\w+) (\d+) 0 R", listed.group(1)) if listed else []
    return {name: _codes(_stream(objects[_reference(objects[int(number)], b"ToUnicode")])) for name, number in found}


def _codes(table: bytes) -> Codes:
    codes = Codes()
    for block in re.findall(rb"beginbfchar(.*?)endbfchar", table, re.DOTALL):
        for code, text in re.findall(rb"<([0-9A-Fa-f]+)>\s*<([0-9A-Fa-f]+)>", block):
            codes[int(code, 16)] = bytes.fromhex(text.decode()).decode("utf-16-be")
    return codes


def _reference(body: bytes, key: bytes) -> int:
    found = re.search(rb"/" + key + rb" (\d+) 0 R", body)
    if found is None:
        raise UserError(f"a page of a PDF has no {key.decode()}: is no PDF of Typst")
    return int(found.group(1))


def _stream(body: bytes) -> bytes:
    return zlib.decompress(body.partition(b"stream")[2].lstrip(b"\r\n"))
