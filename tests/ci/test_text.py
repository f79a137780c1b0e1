"""The text of a chapter: values in, faults out."""

import pytest

from ci import text
from ci.failure import BuildError

VALUES = {"rotation": 0.63662, "heads": 270, "head": "L16H0"}


def test_values_are_put_in_everywhere():
    source = "{{ head }}: $\\lambda = {{ rotation:.2f }}$ of {{ heads }}, and $x^{{2}}$, $\\frac{{{a}}}{b}$."
    done = "L16H0: $\\lambda = 0.64$ of 270, and $x^{{2}}$, $\\frac{{{a}}}{b}$."
    assert text.substitute(source, VALUES, "page") == done


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ unknown }}", "no cell recorded a value for {{ unknown }}"),
        ("{{ rotation }}", "needs a format"),
        ("{{ head:.2f }}", "does not fit"),
        ("{{ rotation :.2f }}", "not written as"),
        ("{{ Heads }}", "not written as"),
        ("lost }} braces", "not written as"),
    ],
)
def test_a_value_that_cannot_be_put_in_stops_the_build(source, reason):
    with pytest.raises(BuildError) as caught:
        text.substitute(source, VALUES, "page.md")
    assert reason in str(caught.value)
    assert "page.md" in str(caught.value)


def test_all_missing_values_are_named_at_once():
    with pytest.raises(BuildError) as caught:
        text.substitute("{{ one }} and {{ two }}", VALUES, "page")
    assert len(str(caught.value).splitlines()) == 2


FIGURE = "```{figure} figures/page-line.*\n:name: fig-line\n:alt: A line falls.\n\nA line.\n```\n"


@pytest.mark.parametrize(
    "allowed",
    [
        FIGURE,
        FIGURE.replace("```", ":::"),
        "The number {{ rotation:.2f }} comes from a cell.",
        "In a formula $2/\\pi \\approx 0.637$ or $$0.5$$ it may stand.",
        "```python\nx = 0.5\n```",
        "Written `0.5` in code, or in [a link](https://example.org/4.0/).",
        "```{math}\n:label: eq-a\n0.5\n```",
        "Version 2, and two layers.",
    ],
)
def test_prose_without_fault(allowed):
    assert text.prose_faults(allowed, "page") == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("It is 0.637 here.", "0.637 is typed by hand"),
        ("A drop of −0.25.", "0.25 is typed by hand"),
        (FIGURE.replace("A line.", "A line of 0.5."), "0.5 is typed by hand"),
        (FIGURE.replace("A line falls.", "A line of 0.5."), "0.5 is typed by hand"),
        (FIGURE.replace(":name: fig-line\n", ""), "has no :name:"),
        (FIGURE.replace("fig-line", "line"), "should look like 'fig-name'"),
        (FIGURE.replace(":alt: A line falls.\n", ""), "has no :alt:"),
        (FIGURE.replace(":alt: A line falls.", ":alt:"), "has no :alt:"),
        (FIGURE.replace("A line.\n", ""), "has no caption"),
        (FIGURE.replace("line.*", "line.svg"), "one name for both formats"),
    ],
)
def test_prose_with_a_fault(source, fault):
    faults = text.prose_faults(source, "page.md")
    assert len(faults) == 1
    assert fault in faults[0]
    assert faults[0].startswith("page.md: ")


def test_labels_that_are_defined_and_referred_to():
    assert text.labels(FIGURE + "See {numref}`fig-other` and {numref}`tab-heads`.") == (
        {"fig-line"},
        {"fig-other", "tab-heads"},
    )


def test_a_table_is_a_numbered_myst_table():
    table = {
        "name": "tab-heads",
        "caption": "Two.",
        "headings": ["Head", "Energy"],
        "align": ["left", "right"],
        "rows": [["L0|H1", "0.25"], ["words " * 9, "–"]],
    }
    lines = text.table_markdown(table).splitlines()
    assert lines[0] == "```{tabularcolumns} LR"
    assert ":::{table} Two." in lines
    assert ":name: tab-heads" in lines
    assert "|:---|---:|" in lines
    assert "| L0\\|H1 | 0.25 |" in lines


def test_tables_of_many_columns_are_set_smaller_in_the_pdf():
    def table(columns):
        content = {"headings": ["H"] * columns, "align": ["right"] * columns, "rows": [["1"] * columns]}
        return text.table_markdown({"name": "tab-a", "caption": "Many.", **content})

    assert "crowded" not in table(6)
    lines = table(7).splitlines()
    assert lines.index("\\crowded") < lines.index(":name: tab-a") < lines.index("\\endcrowded")
