"""Chapters hand the book exactly what they measured, or hear why not."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from qkspectra import book
from qkspectra.errors import InputError


@pytest.fixture
def displayed(monkeypatch, tmp_path):
    """What a notebook would display, as a list of MIME bundles; what it would write lies in a folder of the test."""
    monkeypatch.chdir(tmp_path)
    bundles = []
    monkeypatch.setattr(book, "display", lambda data, raw: bundles.append(data))
    return bundles


@pytest.mark.parametrize(
    ("value", "spec", "printed"),
    [
        (0.63662, ".3f", "0.637"),
        (-0.25, ".2f", "−0.25"),
        (3.24e-13, ".1e", "3.2 × 10⁻¹³"),
        (-3.24e13, ".1e", "−3.2 × 10¹³"),
        (-0.004, ".2f", "0.00"),
        (-0.0, ".0e", "0"),
        (270, "", "270"),
        (1234567, ",", "1,234,567"),
        (0.25, ".0%", "25%"),
        ("L16H0-x", "", "L16H0-x"),
        (float("nan"), ".3f", "–"),
        (None, "", "–"),
    ],
)
def test_values_are_printed_as_in_a_book(value, spec, printed):
    assert book.format_value(value, spec) == printed


@pytest.mark.parametrize(
    ("value", "spec", "reason"),
    [(0.5, "", "needs a format"), (float("inf"), ".2f", "infinite"), ("text", ".3f", "does not fit"), (3, "x?", "fit")],
)
def test_values_that_cannot_be_printed(value, spec, reason):
    with pytest.raises(InputError, match=reason):
        book.format_value(value, spec)


def test_values_of_every_library_become_json(displayed):
    book.values(a=np.float32(0.5), b=torch.tensor(0.25), c=np.int64(3), d="text", e=7)
    recorded = json.loads(json.dumps(displayed[0][book.VALUES_MIME]))
    assert recorded == {"a": 0.5, "b": 0.25, "c": 3, "d": "text", "e": 7}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, True, [1, 2], 1j])
def test_values_that_the_prose_cannot_say(displayed, value):
    with pytest.raises(InputError):
        book.values(key=value)
    assert not displayed


def test_a_table_shows_the_asked_columns_in_order(displayed):
    frame = pd.DataFrame({"head": ["L0H1", "L2H3"], "energy": [0.25, np.nan], "unused": [1, 2]})
    book.table(frame, "tab-heads", "Two heads.", {"energy": ("Energy", ".2f"), "head": ("Head", "s")})
    content = json.loads(json.dumps(displayed[0][book.TABLE_MIME]))
    assert content["headings"] == ["Energy", "Head"]
    assert content["align"] == ["right", "left"]
    assert content["rows"] == [["0.25", "L0H1"], ["–", "L2H3"]]


def test_the_frame_of_a_table_is_kept_whole_and_not_rounded(displayed):
    frame = pd.DataFrame({"head": ["L0H1", "L2H3"], "energy": [1 / 3, np.nan], "unused": [1, 2]})
    book.table(frame, "tab-heads", "Two heads.", {"head": ("Head", "s"), "energy": ("Energy", ".1f")})
    for read, suffix in ((pd.read_csv, "csv"), (pd.read_parquet, "parquet")):
        pd.testing.assert_frame_equal(read(f"figures/tab-heads.{suffix}"), frame)


@pytest.mark.parametrize(
    ("frame", "name", "columns", "reason"),
    [
        ({"a": [1]}, "heads", {"a": ("A", "d")}, "label"),
        ({"a": [1]}, "tab-a", {"b": ("B", "d")}, "lacks: b"),
        ({"a": []}, "tab-a", {"a": ("A", "d")}, "0 rows"),
        ({"a": range(31)}, "tab-a", {"a": ("A", "d")}, "31 rows"),
        ({"a": [0.5]}, "tab-a", {"a": ("A", "d")}, "does not fit"),
    ],
)
def test_tables_that_cannot_be_set(displayed, frame, name, columns, reason):
    with pytest.raises(InputError, match=reason):
        book.table(pd.DataFrame(frame), name, "Caption.", columns)
    assert not displayed
    assert not Path("figures").exists()


def test_in_a_notebook_values_and_tables_can_be_read(displayed):
    book.values(heads=270)
    book.table(pd.DataFrame({"a": [0.5]}), "tab-a", "Caption.", {"a": ("Heading", ".2f")})
    assert displayed[0]["text/plain"] == "heads = 270"
    assert "Heading" in displayed[1]["text/html"]
    assert "0.50" in displayed[1]["text/html"]


@pytest.mark.parametrize("name", ["smoke", "pocket", "paper", "rehearsal"])
def test_profiles_can_be_read(request, name):
    profile = book.profile(name, request.config.rootpath / "book" / "profiles")
    assert profile.name == name
    assert profile.audit.models == ("smollm2-135m", "minilm-l6")


def test_each_profile_computes_more_than_the_one_before(request):
    folder = request.config.rootpath / "book" / "profiles"
    smoke, pocket, paper = (book.profile(name, folder) for name in ("smoke", "pocket", "paper"))
    for small, large in ((smoke, pocket), (pocket, paper)):
        assert small.gaussian_null.samples < large.gaussian_null.samples
        assert small.audit.batch < large.audit.batch
        assert small.toy.seeds < large.toy.seeds


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "the profiles are: none here"), ("seed: 0", "Field required"), ("a: [", "cannot be read"), ("3", "cannot")],
)
def test_profiles_that_cannot_be_read(tmp_path, content, reason):
    if content is not None:
        (tmp_path / "odd.yml").write_text(content)
    with pytest.raises(InputError, match=reason):
        book.profile("odd", tmp_path)
