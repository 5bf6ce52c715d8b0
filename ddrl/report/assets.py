"""What the HTML pages of a folder of reports share: DataTables, out of the wheel of itables, and the script of a page.

One copy lies beside the reports: DataTables is 0.7 MB, and each page would hold it again. It is a classic script, since
browsers load no module from the file system. A page without these files is whole, but its tables do not sort.
"""

from __future__ import annotations

import re
from importlib.resources import as_file, files
from pathlib import Path

from ddrl.errors import UserError
from ddrl.system.files import read_file, write_whole

FOLDER = "assets"
SCRIPT = "report.js"
"""The script of a page, in `reports/` of the project."""
_EXPORTS = re.compile(r"export\{([^{}]*)\};")


def write_assets(reports: Path, root: Path) -> list[Path]:
    """Write `assets/` into the folder `reports`; return the files. Raise `UserError` for an unknown itables."""
    with as_file(files("itables").joinpath("html")) as bundle:
        script, sheet = (read_file(bundle / f"dt_bundle.{kind}") for kind in ("js", "css"))
    content = {
        "datatables.js": classic(script.decode()).encode(),
        "datatables.css": sheet,
        SCRIPT: read_file(root / "reports" / SCRIPT),
    }
    (reports / FOLDER).mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in content.items():
        written.append(reports / FOLDER / name)
        write_whole(written[-1], text)
    return written


def classic(module: str) -> str:
    """Return a JavaScript module as a script that puts what it exports into `window.dataTables`."""
    found = _EXPORTS.search(module)
    if found is None:
        raise UserError("itables: its DataTables exports nothing; allowed: a version of itables as in constraints.txt")
    pairs = (item.split(" as ") for item in found[1].split(","))
    exported = ",".join(f'"{name}":{own}' for own, name in pairs)
    return f"(()=>{{{module[: found.start()]}window.dataTables={{{exported}}};{module[found.end() :]}}})();\n"
