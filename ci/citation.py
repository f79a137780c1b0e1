"""How to cite what was built, from `CITATION.cff`."""

import time
from pathlib import Path

import yaml

from ci.version import Build


def bibtex(cff: Path, build: Build) -> str:
    """The BibTeX entry of this version."""
    about = yaml.safe_load(cff.read_text(encoding="utf-8"))
    authors = [a.get("name") or f"{a['family-names']}, {a['given-names']}" for a in about["authors"]]
    fields = {
        "title": f"{{{about['title']}}}",
        "author": " and ".join(f"{{{name}}}" for name in authors),
        "year": time.strftime("%Y", time.gmtime(build.epoch)),
        "version": build.version,
        "note": f"commit {build.commit}",
    }
    body = "".join(f"  {name:8}= {{{value}}},\n" for name, value in fields.items())
    return f"@software{{qkspectra,\n{body}}}"
