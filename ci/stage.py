"""From executed notebooks to the folder that Jupyter Book reads."""

import copy
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import nbformat
import yaml
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from ci import downloads, launch, provenance, text
from ci.failure import BuildError
from ci.render import DOCUMENT
from ci.version import Build
from qkspectra.mime import FIGURE_MIME, HTML_MIME, TABLE_MIME, VALUES_MIME

TITLE = re.compile(r"^# .+$", re.MULTILINE)
PICTURES = (".svg", ".pdf")
WARNING = (
    "This is a rehearsal of the publication. Behind the names of models on the Hub stand small models of our own: no "
    "number told of such a model on this page was measured on it."
)
"""On every page of a rehearsal."""
UNPRINTABLE = re.compile(r"<(Figure|Axes|matplotlib|pandas|IPython|qkspectra|[\w.]+ object at)|tensor\(")


def pages(root: Path) -> list[Path]:
    """The pages of `_toc.yml`, in reading order."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    names = [toc["root"], *(entry["file"] for entry in toc["chapters"])]
    found = [root / f"{name}.md" for name in names]
    BuildError.unless_empty(
        [f"_toc.yml names {path.name}, which does not exist" for path in found if not path.is_file()]
    )
    return found


def title(markdown: str) -> str:
    """The text of the page's title."""
    return TITLE.search(markdown)[0].removeprefix("# ")


def stamped(markdown: str, build: Build, where: str, links: Mapping[str, str]) -> str:
    """The page with two lines right under its title: which build it is, and in HTML what it can be had as.

    Args:
        links: text to address.
    """
    found = TITLE.search(markdown)
    if not found:
        raise BuildError(f"{where}: the page does not begin with a title ('# …')")
    lines = f"\n\n:::{{container}} buildstamp\n{build.stamp}\n:::\n"
    lines += f"\n:::{{warning}}\n{WARNING}\n:::\n" if build.rehearsal else ""
    if links:
        anchors = " · ".join(f'<a href="{address}">{label}</a>' for label, address in links.items())
        lines += f'\n```{{raw}} html\n<p class="page-links">{anchors}</p>\n```\n'
    return markdown[: found.end()] + lines + markdown[found.end() :]


def page_links(repository: str, page: str, build: Build, *, notebook: bool, pdf: bool) -> dict[str, str]:
    """What a page links to under its title: the executed notebook, the PDF, and where it can be run."""
    links = {"Notebook": f"../notebooks/{page}.ipynb"} if notebook else {}
    if pdf:
        links["PDF"] = f"../{DOCUMENT}.pdf"
    if notebook:
        links |= launch.links(repository, build.commit, build.version, page)
    return links


def repository(root: Path) -> str:
    """The address of the public repository that `_config.yml` names; empty if it names none."""
    return yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))["repository"]["url"]


def recorded(notebook: NotebookNode, where: str) -> tuple[dict, list[str]]:
    """The values that the cells of an executed chapter recorded, and those recorded more than once as faults."""
    values: dict = {}
    faults = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            for key, value in output.get("data", {}).get(VALUES_MIME, {}).items():
                if key in values:
                    faults.append(f"{where}: the value {key!r} is recorded twice")
                values[key] = value
    return values, faults


def staged_notebook(
    notebook: NotebookNode,
    build: Build,
    where: str,
    shared: Mapping[str, Any] = MappingProxyType({}),
    links: Mapping[str, str] = MappingProxyType({}),
    data: Collection[str] = (),
    origins: Mapping[str, provenance.Record] = MappingProxyType({}),
) -> NotebookNode:
    """The page that readers get: values in place, tables as tables, code folded, timings and bookkeeping gone.

    Args:
        shared: `chapter/key` to value, what the other chapters recorded.
        links: of the line under the title, see `stamped`.
        data: figures and tables whose numbers can be downloaded.
        origins: provenance by label; it goes below each figure and table.

    Raises:
        BuildError: every fault of the page at once.
    """
    own, faults = recorded(notebook, where)
    faults += [f"{where}: the value {key!r} is recorded twice" for key in own.keys() & build.values.keys()]
    values = {**shared, **build.values, **own}
    faults += text.prose_faults("\n\n".join(c.source for c in notebook.cells if c.cell_type == "markdown"), where)
    told = {label: provenance.details(label, record) for label, record in origins.items()}
    cells: list[NotebookNode] = []

    def prose(markdown: str, **how: str) -> None:
        try:
            cells.append(new_markdown_cell(text.substitute(markdown, values, where), **how))
        except BuildError as problem:
            faults.append(str(problem))

    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type != "code":
            prose(text.with_data(text.after_figures(cell.source, told), data, build.version), id=cell.id)
            continue
        cells.append(cell := copy.deepcopy(cell))
        # Folded in HTML, and for that reason left out of the PDF.
        cell.metadata = {"tags": ["remove-cell" if "parameters" in tags else "hide-input"]}
        kept = []
        for output in cell.outputs:
            shown = output.get("data", {})
            if TABLE_MIME in shown:
                name = shown[TABLE_MIME]["name"]
                offer = downloads.links(name, "table", build.version) if name in data else ""
                below = "\n\n".join(part for part in (offer, told.get(name, "")) if part)
                prose(f"{text.table_markdown(shown[TABLE_MIME])}\n{below}", id=name[:64])
            elif HTML_MIME in shown:
                raw = f"```{{raw}} html\n{shown[HTML_MIME]}\n```"
                cells.append(new_markdown_cell(raw, id=f"{cell.id}-html"))
            elif VALUES_MIME in shown or FIGURE_MIME in shown or "remove-cell" in tags:
                continue  # the prose says where these stand
            elif output.output_type == "stream" and output.name == "stderr":
                continue  # progress
            else:
                printed = output.get("text", "") or shown.get("text/plain", "")
                if "text/html" in shown or UNPRINTABLE.search(printed):
                    faults.append(f"{where}: a cell prints {printed[:60]!r}; show a figure or a table instead")
                kept.append(output)
        cell.outputs = kept

    if not cells or cells[0].cell_type != "markdown":
        raise BuildError("\n".join([*faults, f"{where}: the page does not begin with a title ('# …')"]))
    BuildError.unless_empty(faults)
    cells[0].source = stamped(cells[0].source, build, where, links)
    return _notebook(cells, notebook)


def download(notebook: NotebookNode, values: Mapping[str, Any], build: Build, where: str) -> NotebookNode:
    """The executed chapter as a notebook to keep: values in its prose, figures and tables under their cells."""
    cells = []
    for cell in notebook.cells:
        cell = copy.deepcopy(cell)
        cell.metadata = {"tags": cell.metadata.get("tags", [])}
        if cell.cell_type == "markdown":
            cell.source = text.substitute(cell.source, values, where)
        elif "parameters" in cell.metadata["tags"]:
            cell.source = re.sub(r"^profile = .*$", f'profile = "{build.profile}"', cell.source, flags=re.MULTILINE)
        else:
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                for mime in (FIGURE_MIME, HTML_MIME, TABLE_MIME, VALUES_MIME):
                    output.get("data", {}).pop(mime, None)
        cells.append(cell)
    return _notebook(cells, notebook)


def _notebook(cells: list[NotebookNode], source: NotebookNode) -> NotebookNode:
    metadata = {"kernelspec": source.metadata.kernelspec, "language_info": {"name": "python"}}
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


def reference_faults(documents: Mapping[str, str]) -> list[str]:
    """Figures and tables that no sentence refers to."""
    referred = set().union(*(text.labels(markdown)[1] for markdown in documents.values()))
    return [
        f"{where}: nothing in the text refers to {label}"
        for where, markdown in documents.items()
        for label in sorted(text.labels(markdown)[0] | set(re.findall(r"^:name: (tab-\S+)$", markdown, re.MULTILINE)))
        if label not in referred
    ]


def abstract(root: Path, values: Mapping[str, Any]) -> str:
    """The abstract of `_config.yml` as LaTeX, values in place."""
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    plain = text.substitute(config["abstract"], dict(values), "_config.yml")
    return re.sub(r"[&%$#_{}]", lambda found: f"\\{found[0]}", plain) + "\n"


def copy_figures(
    source: Path, pictures: Path, data: Path, about: Mapping[str, str], fill: Callable[[str], str]
) -> set[str]:
    """Copy the figures of one chapter, and the numbers behind figures and tables; no two chapters may use one name.

    Args:
        about: what the numbers are to say of themselves.
        fill: what puts values into text, see `downloads.copy`.

    Returns:
        The names of the figures and tables whose numbers there are.
    """
    for folder in (pictures, data):
        folder.mkdir(parents=True, exist_ok=True)
    files = [file for file in sorted(source.glob("*")) if file.suffix in (*PICTURES, ".parquet")]
    for file in files:
        target = (pictures if file.suffix in PICTURES else data) / file.name
        if target.exists():
            raise BuildError(f"two chapters save a figure named {file.name}; begin each name with its chapter's")
        if file.suffix in PICTURES:
            shutil.copyfile(file, target)
        else:
            downloads.copy(file, data, about, fill)
    return {file.stem for file in files if file.suffix == ".parquet"}


def configuration(root: Path, build: Build) -> str:
    """`_config.yml` with the version of this build."""
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    config["sphinx"]["config"] |= {"version": build.version, "release": build.version}
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
