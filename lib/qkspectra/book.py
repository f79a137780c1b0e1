"""What a chapter says to the book: values for its prose, tables, and the sizes of the chosen profile.

How to write a chapter
----------------------
A chapter is a text notebook `book/<hyphenated-name>.md` (jupytext, `md:myst`). Its skeleton, complete:

    ---
    jupytext:
      text_representation:
        extension: .md
        format_name: myst
    kernelspec:
      display_name: Python 3 (ipykernel)
      language: python
      name: python3
    ---

    # The title of the chapter

    Prose first. An equation has one number, so a multi-line one is `aligned` inside a single block:

    ```{math}
    :label: eq-score
    \\begin{aligned} s(i, j) &= x_i M x_j^\\top \\\\ M &= W_q^\\top W_k \\end{aligned}
    ```

    ```{code-cell} ipython3
    :tags: [parameters, remove-cell]

    profile = "smoke"
    ```

    ```{code-cell} ipython3
    from qkspectra import book, figures

    sizes = book.profile(profile)
    ```

    ```{code-cell} ipython3
    :tags: [remove-input]

    book.values(strongest=0.637, heads=270, name="L16H0")
    figures.save(figures.portraits(...), "theory-portrait", numbers)
    book.table(frame, "tab-strongest", "The strongest heads.", {"head": ("Head", "s"), "rotation": ("Rotation", ".3f")})
    ```

    Head {{ name }} of {{ heads }} has eigen-rotation {{ strongest:.3f }} ({numref}`fig-portrait`,
    {numref}`tab-strongest`, {eq}`eq-score`, {cite:t}`li2026fingerprint`).

    ```{figure} figures/theory-portrait.*
    :name: fig-portrait
    :alt: One or two sentences for a reader who cannot see the picture; {{ strongest:.3f }} works here too.

    The caption, with {{ heads }} where a number is needed.
    ```

Rules, each checked by the build:

- `{{ key }}` or `{{ key:format }}` (the spaces matter) is replaced in all Markdown of the chapter: prose, captions, alt
  text, formulae. HTML and PDF get the same characters. A key that no cell recorded, or one recorded twice, stops the
  build. A float needs a format. In a formula use plain formats (`.3f`, `d`), not exponents. `{{ chapter/key }}` is a
  value of another chapter, `{{ static-audit/carrier }}` for example; a key unknown there stops the build as well.
- The table of claims on the first page is `claims.yml`. Its verdicts are values that chapters record by the rules of
  `studies.verdicts`.
- The build provides `build_version`, `build_commit`, `build_profile` and `build_device` to every chapter, and puts a
  line made of them under each title.
- Results are never typed: a decimal number in prose, outside formulae, code and links, stops the build.
- A table stands where its cell stands; refer to it by name; its frame, all columns and not rounded, is offered for
  download under it. Do not end a cell with a data frame, a figure or any other
  object whose representation would be printed.
- Figures are saved twice, as `figures/<name>.svg` and `figures/<name>.pdf`; start the name with the chapter's, and give
  every one a `:name:`, an `:alt:`, a caption and a reference in the text. `numbers`, a tidy data frame of what the
  figure shows, is offered for download under it.
- Code is folded in HTML and left out of the PDF; what a cell tagged `remove-cell` prints is dropped as well.
- `html` puts a piece of HTML into the page; the PDF has nothing in its place.
- Words of `glossary.md` are written {term}`eigen-rotation` where a chapter first uses them.
- Cells run in a folder of their own beside copies of the data files of `book/` (`profiles/`, `*.yml`, …): read those by
  relative path and nothing else from the source tree. `results/` there is the store that lasts from build to build:
  `Store(Path("results"))`.
- Each figure and table carries its provenance: every model that was opened and every result that was read or stored
  before it in the chapter. `figures.save` and `table` see to that; any other way to make one stops the build.
- Labels begin with `eq-`, `fig-`, `tab-` or `sec-`. Cite from `book/references.bib`.
"""

import math
import numbers
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from IPython.display import display
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from qkspectra import files, record
from qkspectra.errors import InputError
from qkspectra.mime import HTML_MIME, TABLE_MIME, VALUES_MIME

EMPTY = "–"
TABLE_ROWS = 30
"""More fill a page of the PDF, and LaTeX sets them in another kind of table."""

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def format_value(value: str | int | float | None, spec: str = "") -> str:
    """One value as the book prints it, in HTML and PDF alike.

    Numbers get a true minus sign, exponents become powers of ten (`3.2 × 10⁻¹³`), what rounds to zero has no sign; a
    missing value is an en dash.

    Raises:
        InputError: a float without a format, an infinite value, or a format that does not fit the value.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return EMPTY
    if isinstance(value, float):
        if not spec:
            raise InputError(f"the value {value!r} needs a format, for example ':.3f'")
        if math.isinf(value):
            raise InputError("an infinite value cannot be printed: say in words what happened")
    try:
        text = format(value, spec)
    except ValueError as problem:
        raise InputError(f"the format {spec!r} does not fit the value {value!r}: {problem}") from problem
    if isinstance(value, str):
        return text
    if not re.search("[1-9]", text):
        text = text.removeprefix("-")
    if power := re.fullmatch(r"(.+)e([+-]\d+)", text):
        exponent = str(int(power[2])).translate(_SUPERSCRIPTS)
        text = f"{power[1]} × 10{exponent}" if value else power[1]
    return text.replace("-", "−")


def _plain(value: Any) -> str | int | float | None:
    """A JSON scalar, from Python, numpy, pandas or a tensor of one element."""
    if value is None or value is pd.NA or isinstance(value, str):
        return None if value is pd.NA else value
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, str | numbers.Real):
        raise InputError(f"{value!r} is neither a number nor text, so the book cannot print it")
    return value if isinstance(value, str | int) else float(value)


def values(**items: Any) -> None:
    """Record values for the prose of this chapter, to be written there as `{{ key }}` or `{{ key:.3f }}`.

    Raises:
        InputError: a value that is neither text nor one real finite number.
    """
    recorded = {key: _plain(value) for key, value in items.items()}
    for key, value in recorded.items():
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            raise InputError(f"the value {key!r} is {value}: the prose cannot say it")
    plain = "\n".join(f"{key} = {value}" for key, value in recorded.items())
    display({VALUES_MIME: recorded, "text/plain": plain}, raw=True)


def table(
    frame: pd.DataFrame,
    name: str,
    caption: str,
    columns: Mapping[str, tuple[str, str]],
    folder: Path = Path("figures"),
) -> None:
    """Put a numbered table here, one row per row of `frame`.

    Beside the figures lie `<name>.csv` and `<name>.parquet` with all columns of `frame`, not rounded, for download.

    Args:
        frame: tidy results, at most `TABLE_ROWS` rows; missing values are printed as an en dash, text is MyST.
        name: label for `{numref}`, beginning with `tab-`.
        caption: one or two sentences; MyST, `{{ key }}` included.
        columns: for each column to show, in order, its heading and its format (`".3f"`, `"d"`, or `"s"` for text, which
            stands left; numbers stand right).
        folder: of the chapter's figures.

    Raises:
        InputError: a column that the frame lacks, no rows or too many, a bad label, a value its format does not fit.
    """
    if not re.fullmatch(r"tab-[a-z0-9-]+", name):
        raise InputError(f"the table label {name!r} should look like 'tab-strongest-heads'")
    if missing := [column for column in columns if column not in frame.columns]:
        raise InputError(f"the table {name} asks for columns that its frame lacks: {', '.join(missing)}")
    if not 0 < len(frame) <= TABLE_ROWS:
        raise InputError(f"the table {name} has {len(frame)} rows: show 1 to {TABLE_ROWS} of them")
    rows = [
        [format_value(_plain(value), spec) for value, (_, spec) in zip(row, columns.values(), strict=True)]
        for row in frame[list(columns)].itertuples(index=False, name=None)
    ]
    content = {
        "name": name,
        "caption": caption,
        "headings": [heading for heading, _ in columns.values()],
        "align": ["left" if spec == "s" else "right" for _, spec in columns.values()],
        "rows": rows,
        "provenance": record.entered(),
    }
    folder.mkdir(exist_ok=True)
    for suffix in (".csv", ".parquet"):
        files.write(frame, folder / f"{name}{suffix}")
    preview = pd.DataFrame(rows, columns=content["headings"])
    display(
        {TABLE_MIME: content, "text/plain": preview.to_string(), "text/html": preview.to_html(index=False)}, raw=True
    )


def html(markup: str) -> None:
    """Put HTML here, as it is; the PDF has nothing in its place."""
    display({HTML_MIME: markup, "text/plain": "(only in HTML)"}, raw=True)


class _Sizes(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NullSizes(_Sizes):
    """The factored Gaussian null."""

    samples: PositiveInt = Field(description="null heads per shape")


class AuditSizes(_Sizes):
    """The static audit of public models."""

    models: tuple[str, ...] = Field(description="catalogue names, in the order of the tables")
    batch: PositiveInt = Field(description="sequences of repeated random tokens")
    length: PositiveInt = Field(description="tokens in each of the two copies of a sequence")
    heads: PositiveInt = Field(description="strongest heads of a role that are singled out and ablated")
    controls: PositiveInt = Field(description="random heads ablated for comparison")


class DynamicsSizes(_Sizes):
    """Training runs, checkpoint by checkpoint."""

    models: tuple[str, ...] = Field(description="Hub ids to measure; none: the shipped tables of the pocket models")
    schedule: str | None = Field(description="of the checkpoints of a Hub id")
    download: bool = Field(description="whether checkpoints of a Hub id are fetched whole, and run")
    portraits: PositiveInt = Field(description="checkpoints of each run whose eigenvalues are kept")
    checked: int = Field(ge=0, description="shipped models whose final weights are measured again")


class PanelSizes(_Sizes):
    """The panel of seven models."""

    name: str = Field(description="of the panel, see `weights.panels.PANELS`")
    batch: PositiveInt = Field(description="sequences of repeated random tokens, an even number, and of held-out text")
    length: PositiveInt = Field(description="tokens in each of the two copies of a sequence")
    top: PositiveInt = Field(description="numbers of strongest heads, from 1, that the verdict is about")
    controls: PositiveInt = Field(description="random heads whose phase is zeroed for comparison")


class ToySizes(_Sizes):
    """The toy laboratory."""

    seeds: PositiveInt = Field(description="paired seeds per cell")
    cap: PositiveInt = Field(description="steps after which a run that has not formed counts as censored")


class MatchedSizes(_Sizes):
    """The matched experiment."""

    seeds: PositiveInt = Field(description="seeds under each scheme, where it is run")
    interventions: int = Field(ge=0, description="how many of them are also run under bans and transplanted")
    checked: PositiveInt = Field(description="shipped models whose final weights are measured again")
    bootstrap: PositiveInt = Field(description="draws for the intervals of areas under ROC curves")


class Profile(_Sizes):
    """How much a build computes. The prose is the same for all profiles; the numbers in it are not."""

    name: str
    purpose: str
    seed: int
    gaussian_null: NullSizes
    audit: AuditSizes
    panel: PanelSizes
    dynamics: DynamicsSizes
    toy: ToySizes
    matched: MatchedSizes


def profile(name: str, folder: Path = Path("profiles")) -> Profile:
    """The profile `name`, read from `profiles/<name>.yml`.

    Raises:
        InputError: no such profile, or a file that does not say exactly what is asked.
    """
    path = folder / f"{name}.yml"
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in folder.glob("*.yml"))) or "none here"
        raise InputError(f"there is no profile {name!r}; the profiles are: {known}")
    try:
        sizes = yaml.safe_load(path.read_text(encoding="utf-8"))
        found = Profile(name=name, **sizes)
    except (ValidationError, yaml.YAMLError, TypeError) as problem:
        raise InputError(f"the profile {path} cannot be read: {problem}") from problem
    record.profile(name, sizes)
    return found
