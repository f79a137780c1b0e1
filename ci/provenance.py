"""Where every figure and table comes from: collected from the executed chapters, told under each and in an appendix.

A record is what `qkspectra.record.entered` gave when the figure was saved or the table shown, and what the build knows:
its version and commit, the chapter's execution and library code, the device.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from ci import text
from ci.failure import BuildError
from qkspectra.mime import TABLE_MIME

LONG = 60
"""Characters of one parameter that the appendix prints; the JSON file has all of them."""
FEW = 4
"""Revisions of one model that are told one by one."""
DIGITS = 12
"""Hexadecimal digits of a hash that the appendix prints."""

Record = Mapping[str, Any]


def records(notebook: NotebookNode, figures: Path, about: Mapping[str, str], where: str) -> dict[str, Record]:
    """The record of every figure and table of one executed chapter, by label, in the order of the page.

    Args:
        notebook: prose and outputs.
        figures: the folder that its cells saved figures into.
        about: what the build knows.
        where: the page, for messages.

    Raises:
        BuildError: a figure or a table without provenance.
    """
    found: dict[str, Record] = {}
    faults = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for label, name in text.figures(cell.source):
                path = figures / f"{name}.json"
                if path.is_file():
                    found[label] = {**about, **json.loads(path.read_text(encoding="utf-8"))}
                else:
                    faults.append(f"{where}: the figure {name} has no provenance; save it by qkspectra.figures.save")
        for output in cell.get("outputs", []):
            if table := output.get("data", {}).get(TABLE_MIME):
                if table.get("provenance"):
                    found[table["name"]] = {**about, **table["provenance"]}
                else:
                    faults.append(f"{where}: the table {table['name']} has no provenance")
    BuildError.unless_empty(faults)
    return found


def details(label: str, record: Record) -> str:
    """The record as a block of HTML that a click opens; nothing in the PDF."""
    rows = "".join(f"<dt>{escape(term)}</dt><dd>{escape(told)}</dd>" for term, told in told_fully(record))
    return (
        f'```{{raw}} html\n<details class="provenance" data-of="{label}"><summary>Provenance</summary>'
        f"<dl>{rows}</dl></details>\n```\n"
    )


def told_fully(record: Record) -> Iterator[tuple[str, str]]:
    """The record in words, as pairs of a term and what is to say of it."""
    yield "Version", f"{record['version']}, commit {record['commit']}"
    yield "Computed on", f"{record['device']}; {_pairs(record['versions'], ' ')}"
    yield "Chapter", f"execution {record['execution']}, library code {record['library']}"
    if record["profile"]:
        yield "Profile", f"{record['profile']['name']}: {_pairs(record['profile']['sizes'])}"
    yield from (("Model", told) for told in _models(record["models"], 64))
    for result in record["results"]:
        yield "Result", _result(result, 64, 10**6)


def appendix(chapters: Mapping[str, Mapping[str, Record]]) -> str:
    """All records as Markdown: a heading a chapter, then groups of figures and tables, each adding to the one before.

    Args:
        chapters: title to label to record.
    """
    parts = []
    for title, labelled in chapters.items():
        if not labelled:
            continue
        first = next(iter(labelled.values()))
        about = [f"- {term}: `{line}`" for term, line in told_fully({**first, "models": [], "results": []})]
        parts.append(f"## {title}\n\n" + "\n".join(about[1:]))  # the page says the version
        told: set[str] = set()
        for labels, record in _grouped(labelled):
            items = [f"- {term}: `{line}`" for term, line in _briefly(record) if line not in told]
            told |= {line for _, line in _briefly(record)}
            links = ", ".join(f"{{numref}}`{label}`" for label in labels)
            nothing = "- nothing more" if told else "- no model, no result of a study"
            parts.append(f"{links}:\n\n" + "\n".join(items or [nothing]))
    return "\n\n".join(parts)


def _grouped(labelled: Mapping[str, Record]) -> list[tuple[list[str], Record]]:
    """Consecutive labels of equal records together."""
    groups: list[tuple[list[str], Record]] = []
    for label, record in labelled.items():
        if groups and groups[-1][1] == record:
            groups[-1][0].append(label)
        else:
            groups.append(([label], record))
    return groups


def _briefly(record: Record) -> Iterator[tuple[str, str]]:
    yield from (("Model", told) for told in _models(record["models"], DIGITS))
    yield from (("Result", _result(result, DIGITS, LONG)) for result in record["results"])


def _models(models: Sequence[Mapping[str, Any]], digits: int) -> Iterator[str]:
    """A line for each model; one for all revisions of one name, which a training run has by the hundred."""
    for name, same in groupby(models, key=lambda model: model["name"]):
        revisions = list(same)
        if len(revisions) <= FEW:
            yield from (_model(model, digits) for model in revisions)
        else:
            hashes = hashlib.sha256("".join(model["content"] for model in revisions).encode()).hexdigest()
            yield f"{name} at {len(revisions)} revisions (see provenance.json), SHA-256 over theirs {hashes[:digits]}"


def _model(model: Mapping[str, Any], digits: int) -> str:
    at = f", revision {model['revision']}" if model["revision"] else ""
    at += f", commit {model['commit'][:digits]}" if model["commit"] else ""
    return f"{model['name']}{at}, SHA-256 {model['content'][:digits]}"


def _result(result: Mapping[str, Any], digits: int, long: int) -> str:
    seeds = result["seeds"]
    told = [f"{result['study']}" + (f" ({result['count']} tables)" if result["count"] > 1 else "")]
    told += [_pairs(result["parameters"], "=", long)] if result["parameters"] else []
    told += [f"seeds {seeds[0]}" + (f" to {seeds[-1]} ({len(seeds)})" if len(seeds) > 1 else "")] if seeds else []
    told += [f"on {result['device']}", f"code {result['sources'][:digits]}"]
    told += [f"computed at commit {result['commit'][:DIGITS]}"] if result["commit"] else []
    told += [f"then {_pairs(result['versions'], ' ')}"] if result["versions"] else []
    return ", ".join([*told, f"SHA-256 {result['content'][:digits]}"])


def _pairs(values: Mapping[str, Any], between: str = "=", long: int = 10**6) -> str:
    def short(value: Any) -> str:
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        written = re.sub(r"[`{}]", "", written)  # they would end a code span or begin a value
        if long == LONG:
            written = re.sub(rf"\b([0-9a-f]{{{DIGITS}}})[0-9a-f]{{8,}}\b", r"\1", written)  # no line could break there
        return written if len(written) <= long else f"{written[: long - 1]}…"

    return ", ".join(f"{name}{between}{short(value)}" for name, value in values.items())
