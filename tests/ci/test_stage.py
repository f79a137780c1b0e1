"""From an executed notebook to the page that readers get."""

from dataclasses import replace

import nbformat
import pandas as pd
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from ci import launch, stage
from ci.failure import BuildError
from ci.render import DOCUMENT
from ci.version import REHEARSAL, Build
from qkspectra.mime import FIGURE_MIME, HTML_MIME, TABLE_MIME, VALUES_MIME

BUILD = Build("1.2", "abc", 0, "smoke", "CPU")
ORIGIN = {
    "version": "1.2",
    "commit": "abc",
    "device": "CPU",
    "execution": "page-0",
    "library": "code",
    "profile": {},
    "versions": {"python": "3.11"},
    "models": [],
    "results": [],
}
TABLE = {"name": "tab-a", "caption": "Of {{ heads }}.", "headings": ["A"], "align": ["right"], "rows": [["1"]]}


def page(*cells, title="# Title\n\nText.\n"):
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return new_notebook(cells=[new_markdown_cell(title), *cells], metadata=metadata)


def code(*outputs, tags=()):
    return new_code_cell("pass", outputs=list(outputs), metadata={"tags": list(tags), "papermill": {"duration": 1}})


def shown(mime, data):
    return new_output("display_data", data={mime: data, "text/plain": "preview", "text/html": "<table>"})


def test_values_tables_and_the_stamp_are_put_in_place():
    cells = (
        new_markdown_cell("There are {{ heads }}, version {{ build_version }}."),
        code(shown(VALUES_MIME, {"heads": 270}), shown(TABLE_MIME, TABLE)),
        new_markdown_cell("After."),
    )
    done = stage.staged_notebook(page(*cells), BUILD, "page.md", origins={"tab-a": ORIGIN})
    nbformat.validate(done)
    assert [cell.cell_type for cell in done.cells] == ["markdown", "markdown", "code", "markdown", "markdown"]
    assert done.cells[0].source.startswith(f"# Title\n\n:::{{container}} buildstamp\n{BUILD.stamp}\n:::\n")
    assert done.cells[1].source == "There are 270, version 1.2."
    assert done.cells[2].outputs == []
    assert ":::{table} Of 270." in done.cells[3].source
    assert done.cells[3].source.endswith("</dl></details>\n```\n")


def test_every_page_of_a_rehearsal_warns():
    rehearsal = replace(BUILD, profile=REHEARSAL)
    first = stage.staged_notebook(page(), rehearsal, "page.md").cells[0].source
    assert f":::{{warning}}\n{stage.WARNING}\n:::" in first
    assert "profile rehearsal (stand-in models, no results)" in first
    assert "warning" not in stage.staged_notebook(page(), BUILD, "page.md").cells[0].source


def test_provenance_stands_below_each_figure():
    figure = "```{figure} figures/page-line.*\n:name: fig-line\n:alt: A line.\n\nA line.\n```"
    done = stage.staged_notebook(
        page(new_markdown_cell(f"{figure}\n\nText.")), BUILD, "page.md", origins={"fig-line": ORIGIN}
    )
    before, _, after = done.cells[1].source.partition(
        '\n\n```{raw} html\n<details class="provenance" data-of="fig-line">'
    )
    assert before == figure
    assert after.endswith("\n```\n\n\nText.")


def test_values_of_other_chapters_are_found_by_their_name():
    cells = (
        new_markdown_cell("{{ heads }} here, {{ static-audit/heads }} there."),
        code(shown(VALUES_MIME, {"heads": 2})),
    )
    done = stage.staged_notebook(page(*cells), BUILD, "page.md", {"static-audit/heads": 270})
    assert done.cells[1].source == "2 here, 270 there."
    with pytest.raises(BuildError, match=r"page\.md: no cell recorded a value for \{\{ static-audit/heads \}\}"):
        stage.staged_notebook(page(*cells), BUILD, "page.md", {"other/heads": 270})


def test_code_is_folded_and_the_cell_of_parameters_is_gone():
    cells = (code(tags=["parameters", "remove-cell"]), code(tags=["remove-input"]), code())
    done = stage.staged_notebook(page(*cells), BUILD, "page.md")
    assert [cell.metadata["tags"] for cell in done.cells[1:]] == [["remove-cell"], ["hide-input"], ["hide-input"]]


def test_a_removed_cell_prints_nothing():
    quiet = code(new_output("stream", name="stdout", text="fine"), tags=["remove-cell"])
    assert stage.staged_notebook(page(quiet), BUILD, "page.md").cells[1].outputs == []


def test_html_stays_as_it_is_and_previews_of_figures_give_way_to_the_figures():
    cells = (code(shown(HTML_MIME, "<p>{{ x }}</p>")), code(shown(FIGURE_MIME, "line")))
    done = stage.staged_notebook(page(*cells), BUILD, "page.md")
    assert done.cells[2].source == "```{raw} html\n<p>{{ x }}</p>\n```"
    assert done.cells[3].outputs == []


def test_a_page_links_to_what_it_can_be_had_as():
    figure = new_markdown_cell("```{figure} figures/page-line.*\n:name: fig-a\n:alt: A line falls.\n\nA line.\n```")
    links = {"PDF": "../book.pdf"}
    done = stage.staged_notebook(page(figure), BUILD, "page.md", links=links, data={"page-line"})
    assert '<p class="page-links"><a href="../book.pdf">PDF</a></p>' in done.cells[0].source
    assert '<a href="../data/page-line.csv" download="page-line-1.2.csv">' in done.cells[1].source
    assert 'href="../data/page-line.csv-metadata.json"' in done.cells[1].source
    table = page(code(shown(TABLE_MIME, TABLE)))
    below = stage.staged_notebook(table, BUILD, "page.md", data={"tab-a"}, shared={"heads": 1}).cells[2].source
    assert '<a href="../data/tab-a.parquet" download="tab-a-1.2.parquet">' in below
    assert "page-links" not in stage.staged_notebook(page(), BUILD, "page.md").cells[0].source


def test_launch_buttons_need_a_public_repository_and_its_commit():
    shown = {page: stage.page_links("", page, BUILD, notebook=page == "first", pdf=True) for page in ("first", "plain")}
    assert shown["first"] == {"Notebook": "../notebooks/first.ipynb", "PDF": f"../{DOCUMENT}.pdf"}
    assert list(shown["plain"]) == ["PDF"]
    address = "https://github.com/some/book"
    links = stage.page_links(address, "first", BUILD, notebook=True, pdf=False)
    assert links["Binder"] == "https://mybinder.org/v2/gh/some/book/abc?labpath=book%2Ffirst.ipynb"
    assert links["Colab"].endswith("/github/some/book/blob/gh-pages/1.2/notebooks/first.ipynb")
    assert launch.links(address, "abc+changes", "1.2", "first") == {}
    assert launch.links("https://example.org/some/book", "abc", "1.2", "first") == {}


def test_the_notebook_to_keep_holds_values_figures_and_tables():
    outputs = (shown(VALUES_MIME, {"heads": 270}), shown(TABLE_MIME, TABLE), shown(FIGURE_MIME, "line"))
    kept = stage.download(page(new_markdown_cell("Of {{ heads }}."), code(*outputs)), {"heads": 270}, BUILD, "page.md")
    kept = launch.prepared(kept, "https://github.com/some/book", "abc")
    nbformat.validate(kept)
    assert "google.colab" in kept.cells[0].source
    assert kept.cells[2].source == "Of 270."
    assert [set(output.data) for output in kept.cells[3].outputs] == 3 * [{"text/plain", "text/html"}]


def test_bookkeeping_does_not_reach_the_reader():
    progress = new_output("stream", name="stderr", text="10%")
    notebook = page(code(progress, new_output("stream", name="stdout", text="fine")))
    notebook.metadata["papermill"] = {"start_time": "now"}
    done = stage.staged_notebook(notebook, BUILD, "page.md")
    assert len(done.cells) == 2
    assert [output.name for output in done.cells[1].outputs] == ["stdout"]
    assert "papermill" not in str(done)


@pytest.mark.parametrize(
    ("cell", "fault"),
    [
        (new_markdown_cell("{{ lost }}"), "no cell recorded a value"),
        (new_markdown_cell("It is 0.5."), "typed by hand"),
        (code(shown(VALUES_MIME, {"a": 1}), shown(VALUES_MIME, {"a": 1})), "'a' is recorded twice"),
        (code(shown(VALUES_MIME, {"build_version": "9"})), "'build_version' is recorded twice"),
        (code(new_output("execute_result", data={"text/plain": "<Figure size 4x3>"})), "a cell prints '<Figure"),
        (
            code(new_output("execute_result", data={"text/plain": "   a\n0  1", "text/html": "<table>"})),
            "a cell prints",
        ),
        (code(new_output("execute_result", data={"text/plain": "tensor([1.])"})), "a cell prints 'tensor("),
    ],
)
def test_faults_of_a_page_stop_the_build(cell, fault):
    with pytest.raises(BuildError, match=r"page\.md") as caught:
        stage.staged_notebook(page(cell), BUILD, "page.md")
    assert fault in str(caught.value)


def test_a_page_without_title_stops_the_build():
    with pytest.raises(BuildError, match="title"):
        stage.staged_notebook(page(title="Text."), BUILD, "page.md")


def test_figures_and_tables_that_nobody_refers_to():
    documents = {"a": "```{figure} figures/a.*\n:name: fig-a\n```", "b": ":::{table} B\n:name: tab-b\n:::"}
    assert [fault.split()[-1] for fault in stage.reference_faults(documents)] == ["fig-a", "tab-b"]
    documents["c"] = "See {numref}`fig-a` and {numref}`tab-b`."
    assert stage.reference_faults(documents) == []


def test_the_abstract_is_latex_with_its_values(tmp_path):
    (tmp_path / "_config.yml").write_text("abstract: Of {{ a/heads }} heads, 5% & more_less.\n")
    assert stage.abstract(tmp_path, {"a/heads": 270}) == "Of 270 heads, 5\\% \\& more\\_less.\n"
    with pytest.raises(BuildError, match=r"_config\.yml: no cell recorded"):
        stage.abstract(tmp_path, {})


def test_two_chapters_cannot_save_one_figure(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "line.svg").write_text("<svg/>")
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "one" / "line.parquet")
    arguments = tmp_path / "one", tmp_path / "figures", tmp_path / "data", BUILD.facts, str
    assert stage.copy_figures(*arguments) == {"line"}
    names = {path.name for folder in arguments[1:3] for path in folder.iterdir()}
    assert names == {"line.svg", "line.csv", "line.csv-metadata.json", "line.parquet"}
    with pytest.raises(BuildError, match=r"two chapters save a figure named line\.parquet"):
        stage.copy_figures(*arguments)


def test_a_page_that_the_contents_name_must_exist(tmp_path):
    (tmp_path / "_toc.yml").write_text("root: book/intro\nchapters:\n- file: book/lost\n")
    with pytest.raises(BuildError, match="lost"):
        stage.pages(tmp_path)


def test_the_version_of_the_build_goes_into_the_configuration(request):
    config = yaml.safe_load(stage.configuration(request.config.rootpath, BUILD))
    assert config["sphinx"]["config"]["version"] == config["sphinx"]["config"]["release"] == "1.2"
