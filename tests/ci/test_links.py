"""No page of the book leads into the void."""

import pytest

from ci import links

GOOD = """\
<a href="#here" id="here">here</a> <a href="../index.html">up</a> <a href="..">up</a> <a href="b.html#caf%C3%A9">b</a>
<img src="../a%20b.svg"> <a href="https://example.org/nowhere">away</a> <a href="mailto:a@example.org">post</a>
<script src="../_static/a.js?v=1"></script> <a href="../data.csv#row=1">data</a>
"""


def faults(folder, page=GOOD):
    for name, content in {
        "index.html": "<p>",
        "book/b.html": "<p id='café'>",
        "a b.svg": "",
        "data.csv": "",
        "_static/a.js": "",
        "_static/template.html": "<a href='{{ x }}'>",
        "book/a.html": page,
    }.items():
        (folder / "html" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "html" / name).write_text(content)
    (folder / "outside.html").write_text("")
    return links.faults(folder / "html")


def test_good_links(tmp_path):
    assert faults(tmp_path) == []


def test_a_file_that_is_still_to_come(tmp_path):
    assert len(faults(tmp_path, GOOD + "<a href='../book.pdf'>PDF</a>")) == 1
    assert links.faults(tmp_path / "html", ["book.pdf"]) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('href="#here"', 'href="#gone"', "leads to '#gone', which has no such anchor"),
        ("b.html#caf%C3%A9", "b.html#cafe", "which has no such anchor"),
        ("b.html", "c.html", "which does not exist"),
        ("a%20b.svg", "c.svg", "which does not exist"),
        ("_static/a.js", "_static/b.js", "which does not exist"),
        ('"../index.html"', '"../../outside.html"', "which lies outside the book"),
    ],
)
def test_broken_links(tmp_path, old, new, fault):
    assert old in GOOD
    [found] = faults(tmp_path, GOOD.replace(old, new))
    assert found.startswith("HTML: book/a.html leads to")
    assert fault in found
