"""From executed notebooks to the folder that Jupyter Book reads."""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import nbformat
import yaml
from nbformat import NotebookNode

from ci import text
from ci.failure import BuildError
from ci.version import Build
from qkspectra.book import TABLE_MIME, VALUES_MIME

TITLE = re.compile(r"^# .+$", re.MULTILINE)
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


def stamped(markdown: str, build: Build, where: str) -> str:
    """The page with the line that says which build it is, right under its title."""
    title = TITLE.search(markdown)
    if not title:
        raise BuildError(f"{where}: the page does not begin with a title ('# …')")
    line = f"\n\n:::{{container}} buildstamp\n{build.stamp}\n:::\n"
    return markdown[: title.end()] + line + markdown[title.end() :]


def staged_notebook(notebook: NotebookNode, build: Build, where: str) -> NotebookNode:
    """The page that readers get: values in place, tables as tables, timings and bookkeeping gone.

    Raises:
        BuildError: every fault of the page at once.
    """
    values: dict = dict(build.values)
    faults: list[str] = []
    cells: list[NotebookNode] = []
    markdown = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    faults += text.prose_faults("\n\n".join(markdown), where)

    for cell in notebook.cells:
        cell.metadata = {"tags": list(cell.metadata.get("tags", []))}
        cells.append(cell)
        if cell.cell_type != "code":
            continue
        kept = []
        for output in cell.outputs:
            data = output.get("data", {})
            if VALUES_MIME in data:
                for key, value in data[VALUES_MIME].items():
                    if key in values:
                        faults.append(f"{where}: the value {key!r} is recorded twice")
                    values[key] = value
            elif TABLE_MIME in data:
                table = data[TABLE_MIME]
                cells.append(nbformat.v4.new_markdown_cell(text.table_markdown(table), id=f"{table['name']}"[:64]))
            elif output.output_type == "stream" and output.name == "stderr":
                continue  # progress
            else:
                printed = output.get("text", "") or data.get("text/plain", "")
                if "text/html" in data or UNPRINTABLE.search(printed):
                    faults.append(f"{where}: a cell prints {printed[:60]!r}; show a figure or a table instead")
                kept.append(output)
        cell.outputs = kept

    if not cells or cells[0].cell_type != "markdown":
        raise BuildError(f"{where}: the page does not begin with a title ('# …')")
    for cell in cells:
        if cell.cell_type == "markdown":
            try:
                cell.source = text.substitute(cell.source, values, where)
            except BuildError as problem:
                faults.append(str(problem))
    BuildError.unless_empty(faults)
    cells[0].source = stamped(cells[0].source, build, where)
    notebook.cells = cells
    kernel = notebook.metadata.kernelspec
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return notebook


def reference_faults(documents: Mapping[str, str]) -> list[str]:
    """Figures and tables that no sentence refers to."""
    referred = set().union(*(text.labels(markdown)[1] for markdown in documents.values()))
    return [
        f"{where}: nothing in the text refers to {label}"
        for where, markdown in documents.items()
        for label in sorted(text.labels(markdown)[0] | set(re.findall(r"^:name: (tab-\S+)$", markdown, re.MULTILINE)))
        if label not in referred
    ]


def copy_figures(source: Path, target: Path) -> None:
    """Copy the figures of one chapter; no two chapters may use one name."""
    target.mkdir(exist_ok=True)
    for figure in sorted(source.iterdir()) if source.is_dir() else []:
        if (target / figure.name).exists():
            raise BuildError(f"two chapters save a figure named {figure.name}; begin each name with its chapter's")
        shutil.copyfile(figure, target / figure.name)


def configuration(root: Path, build: Build) -> str:
    """`_config.yml` with the version of this build."""
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    config["sphinx"]["config"] |= {"version": build.version, "release": build.version}
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
