"""The text of a chapter: values put in, and what authors must not leave in it."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from ci import downloads
from ci.failure import BuildError
from qkspectra.book import format_value
from qkspectra.errors import InputError

PLACE = re.compile(r"\{\{ ((?:[a-z][a-z0-9-]*/)?[a-z][a-z0-9_]*)(?::([^\s{}]+))? \}\}")
FENCE = re.compile(
    r"^(?P<ticks>`{3,}|:{3,})(?P<info>[^\n]*)\n(?P<body>.*?)^(?P=ticks)[ \t]*$", re.MULTILINE | re.DOTALL
)
INVISIBLE = re.compile(
    r"\$\$.*?\$\$|(?<![\\$])\$[^$\n]+\$|`+[^`]+`+|\]\([^)]*\)|<https?:[^>]*>|\{\{ .*? \}\}|^:(?!alt:)[a-z-]+:.*$",
    re.MULTILINE | re.DOTALL,
)
DECIMAL = re.compile(r"(?<![\w.,])[-−+]?\d+\.\d+")
NARROW = 20
"""Characters up to which a column of text is not wrapped in the PDF."""
CROWDED = 6
"""Columns up to which a table of the PDF is set in the size of the text."""
WORDY = 2
"""Columns of running text up to which the same holds."""
LABEL = re.compile(r"\b(?:fig|tab)-[a-z0-9-]+")


def substitute(text: str, values: dict, where: str) -> str:
    """`text` with every `{{ key }}` and `{{ key:format }}` replaced; `{{ chapter/key }}` is another chapter's value.

    Raises:
        BuildError: a key without a value, a format that does not fit, or double braces that are no place for a value.
    """
    faults = []

    def place(match: re.Match) -> str:
        key, spec = match.groups()
        if key not in values:
            faults.append(f"{where}: no cell recorded a value for {match[0]}")
            return match[0]
        try:
            return format_value(values[key], spec or "")
        except InputError as problem:
            faults.append(f"{where}: {match[0]}: {problem}")
            return match[0]

    done = PLACE.sub(place, text)
    if not faults and (stray := re.search(r"\{\{ .{0,40}|.{0,40} \}\}", done)):
        faults.append(f"{where}: {stray[0]!r} looks like a value but is not written as {{{{ key:format }}}}")
    BuildError.unless_empty(faults)
    return done


def prose_faults(text: str, where: str) -> list[str]:
    """What is wrong with the Markdown of a chapter, before values are put in: typed decimals and incomplete figures."""
    faults = []

    def read(match: re.Match) -> str:
        if not match["info"].startswith("{figure}"):
            return ""
        options = dict(re.findall(r"^:([a-z]+):[ \t]*(.+)$", match["body"], re.MULTILINE))
        caption = re.sub(r"^:[a-z]+:.*$", "", match["body"], flags=re.MULTILINE).strip()
        figure = match["info"].removeprefix("{figure}").strip()
        for option in ("name", "alt"):
            if not options.get(option, "").strip():
                faults.append(f"{where}: the figure {figure} has no :{option}:")
        if "name" in options and not re.fullmatch(r"fig-[a-z0-9-]+", options["name"]):
            faults.append(f"{where}: the label of the figure {figure} should look like 'fig-name'")
        if not caption:
            faults.append(f"{where}: the figure {figure} has no caption")
        if not re.fullmatch(r"figures/[a-z0-9-]+\.\*", figure):
            faults.append(
                f"{where}: the figure {figure} should be written 'figures/<name>.*', one name for both formats"
            )
        return f"{options.get('alt', '')}\n{caption}\n"

    for decimal in DECIMAL.findall(INVISIBLE.sub("", FENCE.sub(read, text))):
        faults.append(f"{where}: {decimal} is typed by hand; let a cell record it and write {{{{ key:format }}}}")
    return faults


def labels(text: str) -> tuple[set[str], set[str]]:
    """The labels of figures that `text` defines, and those of figures and tables that it refers to."""
    defined = set(re.findall(r"^:name:[ \t]*(fig-[a-z0-9-]+)[ \t]*$", text, re.MULTILINE))
    referred = set(LABEL.findall(re.sub(r"^:name:.*$", "", text, flags=re.MULTILINE)))
    return defined, referred


def with_data(text: str, figures: Collection[str], version: str) -> str:
    """`text` with links to the numbers behind each of `figures`, right under it; the PDF has no such line."""

    def append(match: re.Match) -> str:
        name = match["info"].removeprefix("{figure}").strip().removeprefix("figures/").removesuffix(".*")
        if not match["info"].startswith("{figure}") or name not in figures:
            return match[0]
        return f"{match[0]}\n\n{downloads.links(name, 'figure', version)}"

    return FENCE.sub(append, text)


def figures(text: str) -> list[tuple[str, str]]:
    """Label and file name, without folder and ending, of every figure that `text` shows."""
    return [(name, Path(match["info"]).stem) for match in FENCE.finditer(text) if (name := _figure_label(match))]


def after_figures(text: str, additions: Mapping[str, str]) -> str:
    """`text` with the addition of each figure's label below it."""

    def extended(match: re.Match) -> str:
        label = _figure_label(match)
        return f"{match[0]}\n\n{additions[label]}" if label in additions else match[0]

    return FENCE.sub(extended, text)


def _figure_label(match: re.Match) -> str | None:
    named = re.search(r"^:name:[ \t]*(\S+)", match["body"], re.MULTILINE)
    return named[1] if named and match["info"].startswith("{figure}") else None


def table_markdown(table: dict) -> str:
    """A numbered MyST table, from what `qkspectra.book.table` recorded; `tabularcolumns` aligns it in the PDF."""

    def row(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "|".join("---:" if side == "right" else ":---" for side in table["align"]) + "|"
    wide = [max(map(len, column)) > NARROW for column in zip(*table["rows"], strict=True)]
    letters = {
        ("left", False): "l",
        ("left", True): "L",
        ("right", False): "R",
        ("right", True): "R",
    }  # tabulary's wrap
    spec = "".join(letters[side, broad] for side, broad in zip(table["align"], wide, strict=True))
    body = "\n".join([row(table["headings"]), rule, *(row(cells) for cells in table["rows"])])
    markdown = (
        f"```{{tabularcolumns}} {spec}\n```\n\n"
        f":::{{table}} {table['caption']}\n:name: {table['name']}\n:align: center\n\n{body}\n:::\n"
    )
    if len(table["headings"]) > CROWDED or sum(wide) > WORDY:
        return f"```{{raw}} latex\n\\crowded\n```\n\n{markdown}\n```{{raw}} latex\n\\endcrowded\n```\n"
    return markdown
