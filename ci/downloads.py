"""The numbers behind figures and tables as files that say which build they are of.

Of each there are three. `data/NAME.csv` holds the numbers and nothing else, so that any reader of CSV reads it.
`data/NAME.csv-metadata.json` tells version, commit, profile, device and the types of the columns; this is where the
W3C's "Metadata Vocabulary for Tabular Data" has a reader look for them. `data/NAME.parquet` holds the same numbers, and
the same facts in the metadata of its schema; `pandas.read_parquet` gives them as the `attrs` of the frame.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

METADATA = "-metadata.json"
LICENCE = "https://creativecommons.org/licenses/by/4.0/"


def copy(numbers: Path, folder: Path, about: Mapping[str, str], fill: Callable[[str], str]) -> None:
    """Write the three files of the Parquet file `numbers`.

    Args:
        folder: where to.
        about: `version`, `commit`, `profile` and `device`.
        fill: puts values into the text of a cell that has places for them.
    """
    frame = pd.read_parquet(numbers)
    for name in frame.select_dtypes(include=["object", "string"]):
        frame[name] = [fill(cell) if isinstance(cell, str) and "{{ " in cell else cell for cell in frame[name]]
    frame.to_csv(folder / f"{numbers.stem}.csv", index=False)
    table = pa.Table.from_pandas(frame, schema=pq.read_schema(numbers), preserve_index=False)
    facts = {**about, "PANDAS_ATTRS": json.dumps(dict(about))}
    stamped = (table.schema.metadata or {}) | {name.encode(): value.encode() for name, value in facts.items()}
    pq.write_table(table.replace_schema_metadata(stamped), folder / numbers.name, compression="zstd")
    described = json.dumps(_described(f"{numbers.stem}.csv", table.schema, about), indent=1)
    (folder / f"{numbers.stem}.csv{METADATA}").write_text(described + "\n", encoding="utf-8")


def links(name: str, what: str, version: str) -> str:
    """A line of HTML that offers the numbers, to be kept under names that say the version; nothing in the PDF.

    Args:
        name: of the files, without ending.
        what: `figure` or `table`.
    """
    offered = {".csv": "CSV", f".csv{METADATA}": "its metadata", ".parquet": "Parquet"}
    anchors = " · ".join(
        f'<a href="../data/{name}{ending}" download="{name}-{version}{ending}">{label}</a>'
        for ending, label in offered.items()
    )
    return f'```{{raw}} html\n<p class="figure-data">Numbers of this {what}: {anchors}</p>\n```'


def _described(name: str, schema: pa.Schema, about: Mapping[str, str]) -> dict[str, Any]:
    return {
        "@context": "http://www.w3.org/ns/csvw",
        "url": name,
        "dc:license": {"@id": LICENCE},
        "schema:version": about["version"],
        "schema:identifier": f"commit {about['commit']}",
        "schema:description": f"profile {about['profile']}, computed on {about['device']}",
        "tableSchema": {"columns": [{"titles": field.name, "datatype": _datatype(field.type)} for field in schema]},
    }


def _datatype(kind: pa.DataType) -> str:
    names = {pa.types.is_boolean: "boolean", pa.types.is_integer: "integer", pa.types.is_floating: "double"}
    return next((name for is_kind, name in names.items() if is_kind(kind)), "string")
