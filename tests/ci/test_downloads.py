"""Numbers that are downloaded say which build they are of, and stay easy to read."""

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from ci import downloads
from qkspectra import files

ABOUT = {"version": "1.2", "commit": "abc", "profile": "smoke", "device": "CPU"}
FRAME = pd.DataFrame(
    {"head": ["L0H1", None], "z": [1 / 3, np.nan], "step": [0, 2**40], "odd": [True, False], "note": ["{{ n }}", "x"]}
)


def fill(text):
    return text.replace("{{ n }}", "three, 3")


@pytest.fixture
def folder(tmp_path):
    """The three files of `FRAME`, whose text has a place for a value."""
    files.write(FRAME, tmp_path / "line.parquet")
    (tmp_path / "data").mkdir()
    downloads.copy(
        tmp_path / "line.parquet", tmp_path / "data", ABOUT, lambda text: text.replace("{{ n }}", "three, 3")
    )
    return tmp_path / "data"


def test_the_numbers_are_those_of_the_chapter_and_values_are_put_in(folder):
    expected = FRAME.assign(note=["three, 3", "x"])
    for read, name in ((pd.read_csv, "line.csv"), (pd.read_parquet, "line.parquet")):
        pd.testing.assert_frame_equal(read(folder / name), expected)


def test_parquet_says_its_version_to_pandas_and_to_others(folder):
    assert pd.read_parquet(folder / "line.parquet").attrs == ABOUT
    metadata = pq.read_schema(folder / "line.parquet").metadata
    assert {name: metadata[name.encode()].decode() for name in ABOUT} == ABOUT


def test_the_metadata_of_a_csv_file_lie_beside_it(folder):
    described = json.loads((folder / "line.csv-metadata.json").read_text())
    assert described["@context"] == "http://www.w3.org/ns/csvw"
    assert (folder / described["url"]).is_file()
    assert described["schema:version"] == "1.2"
    assert described["schema:identifier"] == "commit abc"
    assert described["schema:description"] == "profile smoke, computed on CPU"
    columns = {column["titles"]: column["datatype"] for column in described["tableSchema"]["columns"]}
    assert columns == {"head": "string", "z": "double", "step": "integer", "odd": "boolean", "note": "string"}


def test_equal_numbers_of_one_build_are_equal_files(folder, tmp_path):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    downloads.copy(tmp_path / "line.parquet", folder, ABOUT, fill)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    downloads.copy(tmp_path / "line.parquet", folder, ABOUT | {"version": "1.3"}, str)
    assert all(path.read_bytes() != before[path.name] for path in folder.iterdir())
