"""Write `requirements.lock`: every package that the project, the book and the tests need, exactly pinned.

`python -m ci.lock` resolves `pyproject.toml` for the running interpreter without installing anything. Local version
labels (`+cpu`) are dropped, so that each machine gets the build of torch that its index offers.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Exact pins of everything, written by `make lock`.\n"


def pins(report: dict) -> list[str]:
    """`name==version` for each package of a pip installation report, but the project itself."""
    found = []
    for entry in report["install"]:
        name = re.sub(r"[-_.]+", "-", entry["metadata"]["name"]).lower()
        if name != "qkspectra":
            found.append(f"{name}=={entry['metadata']['version'].partition('+')[0]}")
    return sorted(found)


def main() -> None:
    """Resolve and replace the lock."""
    lock = ROOT / "requirements.lock"
    with tempfile.TemporaryDirectory() as folder:
        report, part = Path(folder) / "report.json", lock.with_suffix(".part")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), f"{ROOT}[book,dev]", *sys.argv[1:]]
        subprocess.run(command, check=True)
        lines = pins(json.loads(report.read_text(encoding="utf-8")))
    part.write_text(HEADER + "".join(f"{line}\n" for line in lines), encoding="utf-8")
    os.replace(part, lock)


if __name__ == "__main__":
    main()
