"""The report of a model: the audit's numbers, on one page that needs no other file."""

import base64
import re

import pandas as pd
import pytest
from bs4 import BeautifulSoup
from tests.weights import tiny
from typer.testing import CliRunner

from qkspectra import open_model
from qkspectra.cli import app
from qkspectra.errors import InputError
from qkspectra.report import check_path, report, write
from qkspectra.studies.audit import COLUMNS, ablations, audit

SIZES = {"seed": 3, "batch": 1, "length": 12, "samples": 12}
VOID = {"meta", "link", "img", "input", "br"}


def number(text):
    return float(text.replace("−", "-"))


@pytest.fixture(scope="module")
def rope(tmp_path_factory):
    weights = open_model(str(tiny.save(tmp_path_factory.mktemp("llama"), "llama-grouped")))
    return weights, report(weights, **SIZES)


def parsed(made):
    return BeautifulSoup(made.html, "html.parser")


def test_tables_hold_the_numbers_of_the_audit(rope):
    weights, made = rope
    expected = audit(weights, **SIZES)
    pd.testing.assert_frame_equal(made.heads, expected)
    tables = {
        table.caption.get_text().partition(";")[0]: table for table in parsed(made).select("main > .scroll table")
    }
    listed = tables["Strongest previous-token heads"].select("tbody tr")
    ordered = expected.nlargest(8, "previous_token")
    assert len(listed) == 8
    for row, (_, head) in zip(listed, ordered.iterrows(), strict=True):
        cells = [cell.get_text() for cell in row.select("th, td")]
        assert cells[0] == f"L{head['layer']}H{head['head']}"
        assert number(cells[1]) == pytest.approx(head["previous_token"], abs=5e-4)
        assert number(cells[4]) == pytest.approx(head["eigen_rotation"], abs=5e-4)
    population = next(table for caption, table in tables.items() if caption.startswith("Medians of all heads"))
    median = population.find("th", string="eigen-rotation").parent
    assert number(median.td.get_text()) == pytest.approx(
        expected["eigen_rotation"].quantile(interpolation="lower"), abs=5e-4
    )


def test_the_ablation_is_that_of_the_strongest_previous_token_head(rope):
    weights, made = rope
    strongest = made.heads.nlargest(1, "previous_token").iloc[0]
    head = (int(strongest["layer"]), int(strongest["head"]))
    effects = ablations(weights, [head], ["phase"], **{k: v for k, v in SIZES.items() if k != "samples"}).iloc[0]
    text = " ".join(parsed(made).select_one("#phase ~ p").get_text().split())
    assert f"Without its phase channel, L{head[0]}H{head[1]}" in text
    numbers = [number(n) for n in re.findall(r"[−\d]\d*\.\d+", text)]
    assert numbers[0] == pytest.approx(effects["previous_token_after"], abs=5e-4)
    assert numbers[4] == pytest.approx(effects["loss_second_before"], abs=5e-3)
    assert "random heads the largest changes" in text


def test_the_page_is_whole_and_loads_nothing(rope):
    page = parsed(rope[1])
    assert page.html["lang"] == "en"
    for tag in page.select("[src], link, [data]"):
        assert tag.name == "img", tag.name
        kind, _, content = tag["src"].partition(",")
        assert kind == "data:image/svg+xml;base64"
        assert base64.b64decode(content).startswith(b"<?xml")
        assert len(tag["alt"]) > 30
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest", rope[1].html)
    assert {a["href"][0] for a in page.select("[href]")} == {"#"}
    for anchor in page.select("a"):
        assert page.select_one(anchor["href"])
    for header in page.select("th"):
        assert header.get("scope") in {"row", "col"}
    identifiers = [tag["id"] for tag in page.select("[id]")]
    assert len(identifiers) == len(set(identifiers))


def test_every_element_is_closed_in_order(rope):
    stack = []
    html = re.sub(r"<(script|style).*?</\1>", "", rope[1].html, flags=re.DOTALL)
    for closing, name, empty in re.findall(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)[^>]*?(/?)>", html):
        if closing:
            assert stack.pop() == name
        elif not empty and name.lower() not in VOID:
            stack.append(name)
    assert stack == []


def test_provenance_says_what_was_read_and_by_what(rope):
    weights, made = rope
    rows = parsed(made).select("#provenance ~ table tr")
    said = {row.th.get_text(): row.td.get_text() for row in rows}
    assert said["SHA-256 of its files"] == weights.source.content_hash
    assert said["Seed"] == "3"
    assert "torch" in said["Versions"]


@pytest.mark.parametrize(("family", "static_only"), [("gpt2", False), ("llama-grouped", True)])
def test_what_a_model_does_not_have_is_left_out(family, static_only, tmp_path):
    weights = open_model(str(tiny.save(tmp_path, family)))
    made = report(weights, static_only=static_only, **SIZES)
    page = parsed(made)
    assert not page.select("#phase")
    assert len(page.select("figure img")) == (2 if static_only else 3)
    assert ("The most rotational heads" in made.html) == static_only
    assert made.heads["previous_token"].isna().all() == static_only


def test_the_command_writes_page_and_table_and_says_where(tmp_path, monkeypatch):
    folder = tiny.save(tmp_path / "my-model", "gpt2")
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(app, ["report", str(folder), "--static-only"])
    assert run.exit_code == 0, run.output
    assert run.stdout.splitlines() == [f"{folder.name}.html", f"{folder.name}.csv"]
    assert list(pd.read_csv(tmp_path / f"{folder.name}.csv").columns) == list(COLUMNS)
    assert "from the\nweights alone" in (tmp_path / f"{folder.name}.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("page.txt", "a report is a .html file"),
        ("lost/page.html", "there is no folder"),
        ("folder.html", "is a folder"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_first(tmp_path, name, message):
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(InputError, match=message):
        check_path(tmp_path / name)
    run = CliRunner().invoke(app, ["report", "no-such-model-anywhere", "--out", str(tmp_path / name)])
    assert run.exit_code != 0


def test_a_report_that_fails_leaves_the_old_one(rope, tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    path.write_text("the previous page")
    (tmp_path / "page.csv").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        write(rope[1], path)
    assert path.read_text() == "the previous page"
