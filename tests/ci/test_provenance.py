"""Every figure and table of the book says where it comes from, or the build stops."""

import json

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from ci import provenance
from ci.failure import BuildError
from qkspectra.book import TABLE_MIME

ABOUT = {"version": "1.2", "commit": "abc", "device": "CPU", "execution": "theory-0", "library": "code"}
MODEL = {"name": "tiny", "revision": "step3", "commit": None, "content": "ab" * 32}
RESULT = {
    "study": "audit",
    "count": 2,
    "parameters": {"model": "tiny", "content": ["9" * 64], "note": "`{{ <x> }}`" * 20},
    "seeds": [3, 4],
    "sources": "5" * 20,
    "content": "cd" * 32,
    "device": "cpu",
    "versions": {"torch": "2.12"},
    "commit": "e" * 40,
}
ENTERED = {
    "profile": {"name": "smoke", "sizes": {"seed": 7}},
    "versions": {"python": "3.11"},
    "models": [],
    "results": [],
}
FIGURE = "```{figure} figures/theory-line.*\n:name: fig-line\n:alt: A line.\n\nA line.\n```\n"


def chapter(figures, entered=ENTERED):
    figures.mkdir(exist_ok=True)
    (figures / "theory-line.json").write_text(json.dumps(entered))
    table = {"name": "tab-heads", "provenance": {**entered, "models": [MODEL], "results": [RESULT]}}
    shown = new_output("display_data", data={TABLE_MIME: table})
    return new_notebook(cells=[new_markdown_cell(FIGURE), new_code_cell("pass", outputs=[shown])])


def test_records_of_a_chapter(tmp_path):
    found = provenance.records(chapter(tmp_path), tmp_path, ABOUT, "theory.md")
    assert list(found) == ["fig-line", "tab-heads"]
    assert found["fig-line"] == {**ABOUT, **ENTERED}
    assert found["tab-heads"]["models"] == [MODEL]


def test_a_figure_or_table_without_provenance_stops_the_build(tmp_path):
    notebook = chapter(tmp_path)
    (tmp_path / "theory-line.json").unlink()
    del notebook.cells[1].outputs[0].data[TABLE_MIME]["provenance"]
    with pytest.raises(BuildError) as caught:
        provenance.records(notebook, tmp_path, ABOUT, "theory.md")
    assert str(caught.value).splitlines() == [
        "theory.md: the figure theory-line has no provenance; save it by qkspectra.figures.save",
        "theory.md: the table tab-heads has no provenance",
    ]


def test_the_page_tells_everything(tmp_path):
    found = provenance.records(chapter(tmp_path), tmp_path, ABOUT, "theory.md")
    block = BeautifulSoup(provenance.details("tab-heads", found["tab-heads"]), "html.parser").details
    assert block["data-of"] == "tab-heads"
    text = block.get_text(" ")
    for fact in ("1.2, commit abc", "theory-0", "seed=7", "step3", "ab" * 32, "2 tables", "seeds 3 to 4", "cd" * 32):
        assert fact in text
    assert "torch 2.12" in text
    assert "<x>" in text


def test_a_commit_is_told_whole_on_the_page_and_cut_in_the_appendix(tmp_path):
    found = provenance.records(chapter(tmp_path), tmp_path, ABOUT, "theory.md")
    record = {**found["tab-heads"], "models": [{**MODEL, "commit": "f" * 40}]}
    assert "f" * 40 in provenance.details("tab-heads", record)
    assert "commit ffffffffffff, SHA-256" in provenance.appendix({"Theory": {"tab-heads": record}})


def test_the_revisions_of_a_training_run_are_told_together(tmp_path):
    found = provenance.records(chapter(tmp_path), tmp_path, ABOUT, "theory.md")
    run = [{**MODEL, "name": "run", "revision": f"step{n}", "content": f"{n:064}"} for n in range(154)]
    record = {**found["tab-heads"], "models": [*run, MODEL]}
    told = [line for term, line in provenance.told_fully(record) if term == "Model"]
    assert len(told) == 2
    assert told[0].startswith("run at 154 revisions (see provenance.json), SHA-256 over theirs ")
    assert told[1].startswith("tiny, revision step3")
    other = {**record, "models": [*run[:-1], {**run[-1], "content": "0" * 64}, MODEL]}
    assert next(line for term, line in provenance.told_fully(other) if term == "Model") != told[0]
    assert "run at 154 revisions" in provenance.appendix({"Runs": {"tab-heads": record}})


def test_the_appendix_tells_each_thing_once_and_briefly(tmp_path):
    found = provenance.records(chapter(tmp_path), tmp_path, ABOUT, "theory.md")
    found["fig-again"] = found["tab-heads"]
    found["fig-third"] = {**found["tab-heads"], "models": []}
    text = provenance.appendix({"Theory": found, "Bibliography": {}})
    assert text.count("## ") == 1
    assert "{numref}`fig-line`:\n\n- no model" in text
    assert "{numref}`tab-heads`, {numref}`fig-again`:\n\n- Model: `tiny" in text
    assert "{numref}`fig-third`:\n\n- nothing more" in text
    assert text.count("SHA-256 " + "ab" * 6) == 1
    assert "ab" * 7 not in text
    assert f'content=["{"9" * 12}"]' in text
    assert "{{" not in text
    assert "…" in text
    nbformat.validate(new_notebook(cells=[new_markdown_cell(text)]))
