"""What only a browser sees, seen by one."""

import pytest

from ci import browse

PROGRAM = browse.chromium()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: on Debian, apt-get install chromium")
PAGE = """\
<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>A page</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body {{ color: #000; background: #fff; }}</style></head><body><main><h1>Title</h1>{body}</main></body></html>
"""
GOOD = (
    '<p><span class="math">x<mjx-container></mjx-container></span> <img src="data:image/svg+xml,x" alt="A line."></p>'
)
BAD = {
    "contrast": ("<p style='color: #ccc'>pale</p>", "axe-core: color-contrast (serious) at p"),
    "image": ("<img src='data:image/svg+xml,x'>", "axe-core: image-alt (critical) at img"),
    "script": ("<script src='https://example.org/a.js'></script>", "it asks for https://example.org/a.js"),
    "late": ("<script>fetch('https://example.org/b').catch(() => 0)</script>", "it asks for https://example.org/b"),
    "formula": ("<p class='math'>\\\\(x\\\\)</p>", "1 formulae are not set"),
    "wrong": ("<mjx-merror>Undefined</mjx-merror>", "a formula is wrong: Undefined"),
    "heavy": (f"<p hidden>{'x' * 3_100_000}</p>", "heavy weighs 3.10 MB, more than 3"),
    "wide": ("<div style='width: 1500px'>wide</div>", "px wider than the screen"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The faults of one good page and of every bad one, by name, from one run of the browser."""
    html = tmp_path_factory.mktemp("html")
    for name, body in {"good": GOOD, **{name: body for name, (body, _) in BAD.items()}}.items():
        (html / f"{name}.html").write_text(PAGE.format(body=body))
    (html / "front.html").write_text('<meta http-equiv="refresh" content="0; url=good.html">')
    seen = browse.visits(html, PROGRAM)
    assert seen.keys() == {f"{name}.html" for name in ("good", *BAD)}
    return {name.removesuffix(".html"): pages for name, pages in seen.items()}


def test_a_good_page_has_no_fault(found):
    for visit in found["good"]:
        assert visit.faults == []
        assert visit.bytes > 100
        assert 0 < visit.paint < 60_000


@pytest.mark.parametrize("name", BAD)
def test_faults_are_seen(found, name):
    fault = BAD[name][1]
    assert any(fault in seen for visit in found[name] for seen in visit.faults), found[name]


def test_without_a_browser_or_a_book_one_line_says_so(tmp_path, monkeypatch, capsys):
    assert browse.main([str(tmp_path)]) == 1
    assert "there is no book" in capsys.readouterr().err
    monkeypatch.setattr(browse.shutil, "which", lambda name: None)
    assert browse.main([str(tmp_path)]) == 1
    assert "no browser found" in capsys.readouterr().err
