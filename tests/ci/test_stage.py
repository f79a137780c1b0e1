"""From an executed notebook to the page that readers get."""

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from ci import stage
from ci.failure import BuildError
from ci.version import Build
from qkspectra.book import TABLE_MIME, VALUES_MIME

BUILD = Build("1.2", "abc", 0, "smoke", "CPU")
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
    done = stage.staged_notebook(page(*cells), BUILD, "page.md")
    nbformat.validate(done)
    assert [cell.cell_type for cell in done.cells] == ["markdown", "markdown", "code", "markdown", "markdown"]
    assert done.cells[0].source.startswith(f"# Title\n\n:::{{container}} buildstamp\n{BUILD.stamp}\n:::\n")
    assert done.cells[1].source == "There are 270, version 1.2."
    assert done.cells[2].outputs == []
    assert ":::{table} Of 270." in done.cells[3].source


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


def test_two_chapters_cannot_save_one_figure(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "line.svg").write_text("<svg/>")
    stage.copy_figures(tmp_path / "one", tmp_path / "figures")
    with pytest.raises(BuildError, match=r"two chapters save a figure named line\.svg"):
        stage.copy_figures(tmp_path / "one", tmp_path / "figures")


def test_a_page_that_the_contents_name_must_exist(tmp_path):
    (tmp_path / "_toc.yml").write_text("root: book/intro\nchapters:\n- file: book/lost\n")
    with pytest.raises(BuildError, match="lost"):
        stage.pages(tmp_path)


def test_the_version_of_the_build_goes_into_the_configuration(request):
    config = yaml.safe_load(stage.configuration(request.config.rootpath, BUILD))
    assert config["sphinx"]["config"]["version"] == config["sphinx"]["config"]["release"] == "1.2"
