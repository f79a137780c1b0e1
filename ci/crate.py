"""A published version as an RO-Crate 1.1 (https://w3id.org/ro/crate/1.1): what it is, who made it, its files."""

import hashlib
import json
import mimetypes
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

NAME = "ro-crate-metadata.json"
LICENCES = {
    "Apache-2.0": ("https://www.apache.org/licenses/LICENSE-2.0", "Apache License 2.0, for the code"),
    "CC-BY-4.0": ("https://creativecommons.org/licenses/by/4.0/", "CC BY 4.0, for text, figures and tables"),
}


def write(folder: Path, about: Mapping[str, Any], citation: Path) -> None:
    """Write the metadata of the version in `folder`.

    Args:
        about: `version`, `commit`, `profile`, `device` and `epoch`, the time of the commit in seconds.
        citation: `CITATION.cff`, for title, authors, licences and the paper that the book tests.
    """
    entities = _entities(folder, about, yaml.safe_load(citation.read_text(encoding="utf-8")))
    text = json.dumps({"@context": "https://w3id.org/ro/crate/1.1/context", "@graph": entities}, indent=1)
    (folder / NAME).write_text(f"{text}\n", encoding="utf-8")


def faults(folder: Path) -> list[str]:
    """Files of a version that are missing, changed, or not in its metadata, one a line."""
    graph = json.loads((folder / NAME).read_text(encoding="utf-8"))["@graph"]
    named = {entity["@id"]: entity["sha256"] for entity in graph if "sha256" in entity}
    there = {path.relative_to(folder).as_posix(): _sha256(path) for path in _files(folder)}
    return [
        f"{name} {'is missing' if name not in there else 'has changed' if name in named else 'is not in the metadata'}"
        for name in sorted(named.keys() | there.keys())
        if named.get(name) != there.get(name)
    ]


def _entities(folder: Path, about: Mapping[str, Any], citation: Mapping[str, Any]) -> list[dict[str, Any]]:
    published = datetime.fromtimestamp(about["epoch"], UTC).isoformat()
    licences = [LICENCES[name] for name in citation["license"]]
    authors = [
        {"@id": f"#author-{number}", "@type": "Organization", "name": author["name"]}
        for number, author in enumerate(citation["authors"], 1)
    ]
    [paper] = citation["references"]
    files = [_file(path, folder) for path in _files(folder)]
    book = {
        "@id": "./",
        "@type": "Dataset",
        "name": citation["title"],
        "description": f"Version {about['version']}: executed book, PDF, LaTeX source, data and provenance.",
        "version": about["version"],
        "datePublished": published,
        "license": _ids(address for address, _ in licences),
        "author": _ids(author["@id"] for author in authors),
        "keywords": citation["keywords"],
        "citation": {"@id": paper["url"]},
        "mainEntity": {"@id": "index.html"},
        "hasPart": _ids(file["@id"] for file in files),
        "mentions": {"@id": "#build"},
    }
    return [
        {
            "@id": NAME,
            "@type": "CreativeWork",
            "about": {"@id": "./"},
            "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
        },
        book,
        {
            "@id": "#build",
            "@type": "CreateAction",
            "name": f"Build of profile {about['profile']} on {about['device']}",
            "endTime": published,
            "instrument": {"@id": "#qkspectra"},
            "result": {"@id": "./"},
        },
        {
            "@id": "#qkspectra",
            "@type": "SoftwareApplication",
            "name": "qkspectra",
            "version": about["version"],
            "softwareVersion": f"commit {about['commit']}",
            "license": {"@id": LICENCES["Apache-2.0"][0]},
        },
        {"@id": paper["url"], "@type": "ScholarlyArticle", "name": paper["title"]},
        *authors,
        *({"@id": address, "@type": "CreativeWork", "name": name} for address, name in licences),
        *files,
    ]


def _ids(names: Iterable[str]) -> list[dict[str, str]]:
    return [{"@id": name} for name in names]


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path != folder / NAME]


def _file(path: Path, folder: Path) -> dict[str, Any]:
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    name = path.relative_to(folder).as_posix()
    size = str(path.stat().st_size)
    return {"@id": name, "@type": "File", "encodingFormat": kind, "contentSize": size, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
