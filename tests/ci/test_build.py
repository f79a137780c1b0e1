"""The book in HTML and PDF: a small one with everything that has broken a book before, and the smoke profile."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from bs4 import BeautifulSoup

from ci import browse, build, depend, gates, publish, render, weight
from ci.failure import BuildError

SAMPLE = Path(__file__).parent / "sample"
PDF = f"{render.DOCUMENT}.pdf"
pytestmark = [pytest.mark.xdist_group("book"), pytest.mark.timeout(1500)]


def sample_tree(folder, rootpath):
    """A tree that holds the sample book, configured as the real one is."""
    tree = folder / "tree"
    shutil.copytree(SAMPLE, tree)
    shutil.copyfile(rootpath / "CITATION.cff", tree / "CITATION.cff")
    config = yaml.safe_load((rootpath / "_config.yml").read_text())
    config["abstract"] = "Of {{ first/count }} heads."
    (tree / "_config.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    (tree / "lib").mkdir()
    (tree / "requirements.lock").write_text("")
    return tree


@pytest.fixture(scope="module")
def sample(request, tmp_path_factory):
    """The sample tree and where it was built."""
    folder = tmp_path_factory.mktemp("book")
    tree = sample_tree(folder, request.config.rootpath)
    build.build_book(tree, "smoke", folder / "out", pdf=True)
    return tree, folder / "out"


@pytest.fixture(scope="module")
def pdf_text(sample):
    return " ".join(gates.pdf_text(sample[1] / PDF).split())


def page(output, name):
    return BeautifulSoup((output / "html" / "book" / f"{name}.html").read_text(encoding="utf-8"), "html.parser")


def test_values_read_the_same_in_both_formats(sample, pdf_text):
    article = page(sample[1], "first").select_one("article").get_text()
    for text in ("The drop is −0.25 and the error 3.2 × 10", "Two heads of 64, after Ginibre [1965]"):
        assert text in article
        assert text in pdf_text
    assert "Profile smoke of version" in page(sample[1], "intro").get_text()
    assert "Profile smoke of version" in pdf_text


def test_figures_have_a_picture_in_both_formats(sample):
    picture = page(sample[1], "first").select_one("#fig-line img")
    assert picture["alt"] == "A line of 64 points falls from one to zero."
    assert (sample[1] / "html" / "book" / picture["src"]).resolve().suffix == ".svg"
    latex = (sample[1] / "work-pdf" / "_build" / "latex" / f"{render.DOCUMENT}.log").read_text(errors="replace")
    assert re.search(r"first-line\.pdf", latex)


def test_a_citation_in_a_caption_and_cross_references_arrive_in_the_pdf(pdf_text):
    assert "as in [Ginibre, 1965], by (1.2)." in pdf_text
    assert "Equation (2.1) and (1.2) are in different chapters." in pdf_text
    assert "see Figure 1.1, Figure 2.1 and Table 1.1" in pdf_text


def test_provenance_is_a_click_away_and_in_the_appendix_of_the_pdf(sample, pdf_text):
    told = page(sample[1], "first").select_one("#fig-line").find_next_sibling("details")
    assert told["data-of"] == "fig-line"
    assert "execution first-" in told.get_text()
    assert page(sample[1], "provenance").select_one('a[href="first.html#fig-line"]')
    appendix = pdf_text[pdf_text.rindex("3 Provenance Version") :]
    assert "Table 1.1, Figure 1.1: • no model" in appendix
    assert json.loads((sample[1] / "html" / "provenance.json").read_text()).keys() == {
        "tab-heads",
        "fig-line",
        "fig-other-line",
    }


def test_headings_of_the_root_page_are_sections_of_the_pdf(sample):
    latex = (sample[1] / "work-pdf" / "_build" / "latex" / f"{render.DOCUMENT}.tex").read_text()
    assert latex.count("\\section*{") == 2


def test_parameters_and_bookkeeping_are_not_shown(sample, pdf_text):
    for text in (page(sample[1], "first").get_text(), pdf_text):
        assert 'profile = "' not in text
        assert "# Parameters" not in text


def test_code_is_folded_in_html_and_left_out_of_the_pdf(sample, pdf_text):
    [folded] = [block for block in page(sample[1], "first").select("details") if "pyplot" in block.get_text()]
    assert "open" not in folded.attrs
    assert "pyplot" not in pdf_text


def test_the_pdf_opens_with_an_abstract_and_has_bookmarks(sample, pdf_text):
    assert "Abstract. Of 64 heads." in pdf_text
    outline = (sample[1] / "work-pdf" / "_build" / "latex" / f"{render.DOCUMENT}.out").read_text()
    assert outline.count("\\BOOKMARK") >= 3


def test_the_latex_source_is_kept(sample):
    with tarfile.open(sample[1] / f"{render.DOCUMENT}-latex.tar.gz") as archive:
        names = {Path(name).name for name in archive.getnames()}
        assert {member.mtime for member in archive.getmembers()} == {archive.getmembers()[0].mtime}
    assert {f"{render.DOCUMENT}.tex", "qkbook.sty", "abstract.txt", "first-line.pdf"} <= names
    assert not {f"{render.DOCUMENT}.pdf", f"{render.DOCUMENT}.log"} & names


def test_pages_link_to_notebook_pdf_and_numbers_that_exist(sample):
    html = sample[1] / "html" / "book"
    for name in ("intro", "first", "second", "bibliography"):
        links = [link["href"] for link in page(sample[1], name).select(".page-links a, .figure-data a")]
        assert all((html / link).resolve().is_file() for link in links)
        assert any(link.endswith(".pdf") for link in links)
        assert any(link.endswith(".ipynb") for link in links) == (name != "bibliography")
    assert "line.csv" in str(page(sample[1], "second").select(".figure-data a"))


def test_formulae_load_mathjax_from_the_book(sample):
    [script] = [tag["src"] for tag in page(sample[1], "first").select("script[src]") if "mathjax" in tag["src"]]
    assert script.partition("?")[0].endswith(weight.MATHJAX)
    path = sample[1] / "html" / "book" / script.partition("?")[0]
    assert path.is_file()
    assert list((path.parent / "output" / "chtml" / "fonts").rglob("*.woff"))


def test_what_is_built_can_be_published_and_is_marked_where_it_cannot(sample, tmp_path):
    state = json.loads((sample[1] / "built.json").read_text())
    assert (state["commit"], state["profile"], state["pdf"]) == ("unknown", "smoke", True)
    with pytest.raises(BuildError, match="not of a commit"):
        publish.add(sample[1], tmp_path, publish.ROOT / "CITATION.cff")
    with tarfile.open(sample[1] / render.SOURCES) as archive:
        names = {Path(name).name for name in archive.getnames()}
    assert {f"{render.DOCUMENT}.tex", "first-line.pdf", "qkbook.sty"} <= names
    assert not {f"{render.DOCUMENT}.pdf", f"{render.DOCUMENT}.log"} & names


def test_the_same_book_executed_and_built_again_elsewhere_is_the_same_bit_for_bit(sample, tmp_path, monkeypatch):
    tree, first = sample
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(json.loads((first / "built.json").read_text())["epoch"]))
    output = tmp_path / "out"
    build.build_book(tree, "smoke", output, pdf=True)
    for folder in (first, output):
        assert (folder / "html").is_symlink()
    digests = [depend.digest(everything(folder)) for folder in (first, output)]
    differing = [name for name, path in everything(first).items() if path.read_bytes() != (output / name).read_bytes()]
    assert differing == []
    assert digests[0] == digests[1]


def everything(output):
    """What readers get of a build, by name."""
    files = [output / PDF, output / render.SOURCES, *(output / "html").rglob("*")]
    return {path.relative_to(output).as_posix(): path for path in files if path.is_file()}


def test_an_unchanged_book_is_not_built_again(sample, capsys):
    tree, output = sample
    before = (output / PDF).stat().st_mtime_ns
    build.build_book(tree, "smoke", output, pdf=True)
    assert "nothing has changed" in capsys.readouterr().err
    assert (output / PDF).stat().st_mtime_ns == before


def test_chapters_executed_elsewhere_are_rendered_and_never_run_here(sample, tmp_path, monkeypatch):
    tree, first = sample
    monkeypatch.setattr(build, "render", None)  # nothing below gets that far
    output = tmp_path / "out"
    output.mkdir()
    with pytest.raises(BuildError, match="nothing executed"):
        build.build_book(tree, "smoke", output, pdf=False, only_render=True)
    shutil.copytree(first / "executed", output / "executed")
    here = build.identify(tree, "smoke")
    assert [folder.parent for folder in build.execute_book(tree, here, output).values()] == [output / "executed"] * 3
    build.note_machine(here, output)
    made = json.loads((output / "executed" / build.MACHINE).read_text())
    assert build.executed_elsewhere(here, output) == here
    with pytest.raises(BuildError, match="holds the profile smoke, not paper"):
        build.build_book(tree, "paper", output, pdf=False, only_render=True)
    (output / "executed" / build.MACHINE).write_text(json.dumps(made | {"device": "another GPU"}))
    assert build.executed_elsewhere(here, output).stamp.endswith("computed on another GPU")
    with pytest.raises(BuildError, match=r"intro\.md was not executed .* on another GPU"):
        build.build_book(tree, "smoke", output, pdf=False, only_render=True)


def test_a_chapter_that_fails_beside_another_stops_the_build_and_the_other_is_remembered(request, tmp_path):
    tree = sample_tree(tmp_path, request.config.rootpath)
    page = tree / "book" / "first.md"
    page.write_text(page.read_text() + "\n```{code-cell} ipython3\n1 / 0\n```\n")
    here = build.identify(tree, "smoke")
    with pytest.raises(BuildError, match=r"first\.md: a cell fails with ZeroDivisionError"):
        build.execute_book(tree, here, tmp_path / "out")
    names = sorted(path.name.partition("-")[0] for path in (tmp_path / "out" / "executed").iterdir())
    assert "intro" in names
    assert "first" not in names


BREAKAGES = {
    "{eq}`eq-fraction`; see": "{eq}`eq-lost`; see",
    "{cite:t}`ginibre1965statistical`.": "{cite:t}`nobody`.",
}


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({"drop=-0.25, ": ""}, ["no cell recorded a value for {{ drop:.2f }}"]),
        ({'"first-line")': '"first-gone")'}, ["the figure first-line has no provenance"]),
        (BREAKAGES, ["eq-lost", "nobody"]),
    ],
)
def test_a_broken_book_is_not_published(sample, tmp_path, request, changes, faults):
    tree = sample_tree(tmp_path, request.config.rootpath)
    chapter = tree / "book" / "first.md"
    content = chapter.read_text()
    for old, new in changes.items():
        assert old in content
        content = content.replace(old, new)
    chapter.write_text(content)
    output = tmp_path / "out"
    shutil.copytree(sample[1] / "executed", output / "executed")  # the other chapters are known
    (output / "html").mkdir()
    (output / "html" / "index.html").write_text("the previous book")
    with pytest.raises(BuildError) as caught:
        build.build_book(tree, "smoke", output, pdf=False)
    for fault in faults:
        assert fault in str(caught.value)
    assert (output / "html" / "index.html").read_text() == "the previous book"


def test_without_latex_the_html_is_built_and_one_line_says_how(sample, monkeypatch, capsys):
    tree, output = sample
    monkeypatch.setattr(build, "ROOT", tree)
    monkeypatch.setattr(render.shutil, "which", lambda tool: None)
    assert build.main(["--profile", "smoke", "--output", str(output)]) == 0
    assert (
        capsys.readouterr()
        .out.splitlines()[1]
        .startswith("no PDF: latexmk, xelatex, pdftotext, pdffonts not found; on Debian")
    )
    assert (output / "html" / "index.html").is_file()
    assert build.main(["--profile", "smoke", "--output", str(output), "--pdf", "required"]) == 1
    assert "no PDF" in capsys.readouterr().err


def test_an_unknown_profile_is_refused(capsys):
    assert build.main(["--profile", "huge"]) == 1
    assert "there is no profile 'huge'" in capsys.readouterr().err


def test_the_smoke_book_is_built_in_html_and_pdf(request):
    root = request.config.rootpath
    output = root / "_build" / "smoke"
    command = [sys.executable, "-m", "ci.build", "--profile", "smoke", "--pdf", "required", "--output", str(output)]
    finished = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    for source in sorted((root / "book").glob("*.md")):
        assert (output / "html" / "book" / f"{source.stem}.html").is_file(), source
    assert "%PDF" in (output / PDF).read_bytes()[:8].decode(errors="replace")


@pytest.mark.skipif(browse.chromium() is None, reason="no Chromium here: on Debian, apt-get install chromium")
def test_a_browser_finds_nothing_wrong_with_the_smoke_book(request):
    html = request.config.rootpath / "_build" / "smoke" / "html"
    assert browse.faults(browse.visits(html.resolve(), browse.chromium())) == []
