"""Every check of the finished book can fail."""

from dataclasses import replace

import pytest
from bs4 import BeautifulSoup

from ci import gates, weight
from ci.version import Build

BUILD = Build("1.2", "abc", 0, "smoke", "CPU")
PAGE = (
    '<html><head><link rel="stylesheet" href="_static/a.css"><link rel="canonical" href="https://example.org/"></head>'
    f"<body><article><h1>1. Title</h1><p>{BUILD.stamp}</p>"
    '<img src="_images/line.svg" alt="A line falls from one to zero."><a href="https://example.org">link</a>'
    r'<p>Text <span class="math">\(\frac{a}{b}\)</span> <code>$HOME ??</code></p></article></body></html>'
)


def faults(page):
    return gates.page_faults(BeautifulSoup(page, "html.parser"), "intro", BUILD)


def test_a_good_page_has_no_fault():
    assert faults(PAGE) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (BUILD.stamp, "", "does not say which build"),
        ('alt="A line falls from one to zero."', "", "no alt text"),
        ("A line falls from one to zero.", "_images/line.svg", "no alt text"),
        ("A line falls from one to zero.", "figure", "no alt text"),
        ("<p>Text", "<script src='https://example.org/a.js'></script><p>", "<script> loads https://example.org/a.js"),
        ("<p>Text", "<script src='//example.org/a.js'></script><p>", "loads //example.org/a.js"),
        ('"_static/a.css"', '"https://example.org/a.css"', "<link> loads"),
        ("<p>Text", "<style>@import 'https://example.org/a.css';</style><p>", "<style> loads"),
        ("<p>Text", "<iframe src='https://example.org'></iframe><p>", "<iframe> loads"),
        ("<p>Text", "<p>see Figure ??", "placeholder '??'"),
        ("<p>Text", "<p>&lt;Figure size 4x3&gt;", "placeholder '<Figure'"),
        ("<p>Text", "<p>TODO", "placeholder 'TODO'"),
        ("<p>Text", "<p>{{ value }}", "placeholder '{{ '"),
        ("<p>Text", r"<p>\lambda", r"raw TeX '\\lambda'"),
        ("<p>Text", "<p>where $x_i$ is", "raw TeX '$x_i$'"),
    ],
)
def test_faults_of_a_page(old, new, fault):
    assert old in PAGE
    assert any(fault in found for found in faults(PAGE.replace(old, new)))


def test_a_page_of_a_rehearsal_warns():
    rehearsal = replace(BUILD, profile="rehearsal")
    page = PAGE.replace(BUILD.stamp, rehearsal.stamp)
    warning = '<div class="admonition warning"><p>This is a rehearsal.</p></div>'

    def found(page):
        return gates.page_faults(BeautifulSoup(page, "html.parser"), "intro", rehearsal)

    assert found(page.replace("<p>Text", f"{warning}<p>Text")) == []
    assert found(page) == ["HTML: intro does not warn that it is of a rehearsal"]


def test_style_sheets_load_nothing_from_elsewhere():
    assert gates.style_faults("@font-face { src: url(../fonts/a.woff2), url('data:x') }", "a.css") == []
    for sheet in ("@import url(https://example.org/b.css);", "body { background: url('//example.org/b.png') }"):
        assert "a.css loads" in gates.style_faults(sheet, "a.css")[0]


def test_provenance_stands_with_every_figure_and_table():
    told = '<details class="provenance" data-of="{0}"><dl><dt>Version</dt><dd>1.2</dd></dl></details>'
    numbered = '<figure id="fig-a"></figure><table id="tab-b"></table><figure id="id1"></figure>'

    def found(page):
        return gates.provenance_faults(BeautifulSoup(page, "html.parser"), "theory")

    assert found(numbered + told.format("fig-a") + told.format("tab-b")) == []
    assert found(numbered + told.format("fig-a")) == ["HTML: theory: tab-b has no provenance"]
    assert len(found(numbered + told.format("fig-a") + '<details class="provenance" data-of="tab-b"></details>')) == 1


FONTS = """\
name                                 type              encoding         emb sub uni object ID
------------------------------------ ----------------- ---------------- --- --- --- ---------
NMCWYZ+TeXGyreHeros-BoldItalic-Identity-H CID Type 0C       Identity-H       yes yes yes      5  0
UFAHSW+DejaVuSansMono-Bold           CID TrueType      Identity-H       yes yes yes     34  0
"""


def test_fonts_of_the_pdf_are_embedded_outlines():
    assert gates.font_faults(FONTS) == []
    assert gates.font_faults(FONTS.replace("CID TrueType", "Type 3      ")) == [
        "PDF: the font UFAHSW+DejaVuSansMono-Bold is a bitmap (Type 3)"
    ]
    assert gates.font_faults(FONTS.replace("yes yes yes     34", "no  no  yes     34")) == [
        "PDF: the font UFAHSW+DejaVuSansMono-Bold is not embedded"
    ]


def test_a_missing_page_is_named(tmp_path):
    for name, content in {
        "book/intro.html": PAGE,
        "book/_static/a.css": "",
        "book/_images/line.svg": "<svg/>",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    for expected, faults in ((["intro"], []), (["intro", "theory"], ["HTML: the page theory is missing"])):
        pages = gates.read_pages(tmp_path, expected)
        assert gates.html_faults(tmp_path, pages, expected, BUILD) == faults


def test_a_page_that_is_too_heavy_stops_the_build(tmp_path):
    page = tmp_path / "book" / "intro.html"
    for path in (page, tmp_path / "_static" / "a.css", tmp_path / "_images" / "line.svg"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("x" * 1000)
    page.write_text(PAGE.replace('"_static/', '"../_static/').replace('"_images/', '"../_images/'))
    pages = gates.read_pages(tmp_path, ["intro"])
    assert gates.html_faults(tmp_path, pages, ["intro"], BUILD) == []
    assert weight.of(page, pages["intro"]) == pytest.approx((page.stat().st_size + 2000) / 1e6)
    (tmp_path / "_images" / "line.svg").write_text("x" * 3_000_000)
    assert gates.html_faults(tmp_path, pages, ["intro"], BUILD) == ["HTML: intro weighs 3.00 MB, more than 3"]
    assert weight.told("explorer", 4.9) == []
    assert weight.told("explorer", 5.1) == ["explorer weighs 5.10 MB, more than 5"]


def test_what_latex_says_without_failing():
    good = "Overfull \\hbox (19.9pt too wide) in paragraph at lines 3--4\nLaTeX Warning: Label(s) may have changed.\n"
    assert gates.log_faults(good) == []
    bad = (
        "Missing character: There is no ⁻ (U+207B) in font Pagella!\n"
        "LaTeX Warning: Reference `fig-a' on page 2 undefined on input line 3.\n"
        "Overfull \\hbox (20.1pt too wide) in paragraph at lines 3--4\n"
    )
    found = "\n".join(gates.log_faults(bad))
    assert len(gates.log_faults(bad)) == 3
    assert "U+207B" in found
    assert "fig-a" in found
    assert "20.1 pt too wide" in found


TEXT = f"Title\n{BUILD.stamp}\nText of the chapter.\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (TEXT.replace("Title\n", ""), "the chapter 'Title' is missing"),
        (TEXT.replace(BUILD.stamp, ""), "0 of 1 chapters say which build"),
        (TEXT + "see Figure ??", "placeholder"),
        (TEXT + "<Figure size 4x3 with 1 Axes>", "placeholder"),
        (TEXT + "{{ value }}", "placeholder"),
        (TEXT + r"\frac{a}{b}", "raw TeX"),
        (TEXT + "3.2 × 10\ufffd¹³", "unmapped glyph"),
    ],
)
def test_faults_in_the_text_of_the_pdf(text, fault):
    assert gates.pdf_faults(TEXT, ["Title"], BUILD) == []
    assert any(fault in found for found in gates.pdf_faults(text, ["Title"], BUILD))


def test_code_in_the_pdf_is_no_fault():
    text = TEXT + r'label = r"$\lambda$"  # TODO'
    assert len(gates.pdf_faults(text, ["Title"], BUILD)) == 2
    assert gates.pdf_faults(text, ["Title"], BUILD, listings=r'label = r"$\lambda$"  # TODO') == []


def test_numbers_are_read_from_both_formats_and_compared():
    page = BeautifulSoup(
        '<figure id="fig-a"><p><span class="caption-number">Figure 1.2 </span></p></figure>'
        '<table id="tab-b"><caption><span class="caption-number">Table 2.1 </span></caption></table>'
        '<div class="math" id="equation-eq-c"><span class="eqno">(1.3)<a>#</a></span></div>',
        "html.parser",
    )
    aux = (
        r"\newlabel{book/first:fig-a}{{1.2}{3}{Caption with \DUrole {x}{y}}{figure.1.2}{}}" + "\n"
        r"\newlabel{book/first:tab-b}{{2.1}{3}{}{table.2.1}{}}" + "\n"
        r"\newlabel{equation:book/first:eq-c}{{1.3}{3}{}{equation.1.3}{}}" + "\n"
        r"\newlabel{book/first:a-section}{{1.1}{3}{}{section.1.1}{}}"
    )
    html, latex = gates.html_numbers(page), gates.latex_numbers(aux)
    assert html == latex == {"fig-a": "1.2", "tab-b": "2.1", "eq-c": "1.3"}
    assert gates.number_faults(html, latex) == []
    assert gates.number_faults(html, latex | {"eq-c": "1.4"}) == ["eq-c is 1.3 in the HTML and 1.4 in the PDF"]
    assert gates.number_faults(html, {}) == [
        "eq-c is 1.3 in the HTML and absent in the PDF",
        "fig-a is 1.2 in the HTML and absent in the PDF",
        "tab-b is 2.1 in the HTML and absent in the PDF",
    ]
