"""Tables as programs read them: a file in one of three formats."""

import json
from pathlib import Path

import pandas as pd

from qkspectra.errors import InputError
from qkspectra.store import replacing

FORMATS = (".csv", ".parquet", ".json")


def check_path(path: Path) -> None:
    """Refuses a file that `write` could not write, before anything is computed for it.

    Raises:
        InputError: a suffix that names none of the formats, or a folder that does not exist.
    """
    if path.suffix not in FORMATS:
        raise InputError(f"{path}: the suffix says the format: use one of {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}: make it first")
    if path.is_dir():
        raise InputError(f"{path}: is a folder: name a file")


def write(frame: pd.DataFrame, path: Path) -> None:
    """Writes a table, whole or not at all; a missing value is an empty CSV field, a JSON or Parquet null.

    Raises:
        InputError: see `check_path`.
    """
    check_path(path)
    with replacing(path) as temporary:
        if path.suffix == ".csv":
            frame.to_csv(temporary, index=False)
        elif path.suffix == ".json":
            temporary.write_text(as_json(frame) + "\n", encoding="utf-8")
        else:
            frame.to_parquet(temporary, index=False)


def as_json(frame: pd.DataFrame) -> str:
    """A JSON list with one object per row; missing values are null."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict(orient="records")
    return json.dumps(rows, indent=1, allow_nan=False)
