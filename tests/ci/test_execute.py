"""Chapters run once for everything that their result depends on, and leave nothing behind when they fail."""

import os

import nbformat
import pytest

from ci import depend
from ci.execute import KEPT, cache_key, data_files, execute, is_notebook, run_notebook, with_outputs
from ci.failure import BuildError

HEAD = """\
---
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# Title

```{code-cell}
:tags: [parameters]

profile = "none"
```

"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A tree with one chapter, a library, data and a lock."""
    for path, content in {
        "lib/qkspectra/__init__.py": "",
        "lib/qkspectra/errors.py": "x = 1\n",
        "lib/qkspectra/store.py": "x = 1\n",
        "lib/qkspectra/models/a.bin": "weights\n",
        "requirements.lock": "torch==2.13.0\n",
        "book/data/numbers.csv": "1\n",
        "book/page.md": HEAD
        + "```{code-cell}\nimport qkspectra.errors\nprint(profile, open('data/numbers.csv').read())\n```\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    monkeypatch.setattr(depend, "library", lambda: tmp_path / "lib" / "qkspectra")
    return tmp_path


def key(root, parameters=None, device="CPU"):
    return cache_key(root, root / "book" / "page.md", parameters or {"profile": "smoke"}, device)


def edit(path, old, new):
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new))


@pytest.mark.parametrize(
    ("changed", "old"),
    [
        ("book/page.md", "print(profile"),
        ("book/page.md", "[parameters"),
        ("book/data/numbers.csv", "1"),
        ("lib/qkspectra/errors.py", "x = 1"),
        ("lib/qkspectra/models/a.bin", "weights"),
        ("requirements.lock", "torch"),
    ],
)
def test_a_chapter_runs_again_when_what_it_depends_on_changes(root, changed, old):
    before = key(root)
    assert key(root) == before
    edit(root / changed, old, f"{old}, x")
    assert key(root) != before


def test_a_chapter_runs_again_for_other_parameters_devices_and_files(root):
    before = key(root)
    assert key(root, {"profile": "paper"}) != before
    assert key(root, device="GPU") != before
    (root / "book" / "data" / "more.csv").write_text("")
    assert key(root) != before


def test_prose_and_modules_out_of_reach_do_not_matter(root):
    before = key(root)
    edit(root / "book" / "page.md", "# Title", "# Another title\n\nProse.")
    edit(root / "lib" / "qkspectra" / "store.py", "x = 1", "x = 2")
    assert key(root) == before


def test_an_edit_of_the_prose_is_shown_beside_the_outputs_of_old(root):
    arguments = (root, root / "book" / "page.md", {"profile": "smoke"}, root / "cache", "CPU")
    folder = execute(*arguments)
    edit(root / "book" / "page.md", "# Title", "# Another title\n\nProse.")
    assert execute(*arguments) == folder
    first, _, last = with_outputs(root / "book" / "page.md", folder / "page.ipynb").cells
    assert first.source == "# Another title\n\nProse."
    assert last.outputs[0].text == "smoke 1\n\n"


def test_an_import_that_the_code_does_not_show_is_refused(root):
    edit(root / "book" / "page.md", "import qkspectra.errors", "__import__('qkspectra.errors')")
    with pytest.raises(BuildError, match=r"page\.md reaches qkspectra, qkspectra\.errors other than by an import"):
        execute(root, root / "book" / "page.md", {"profile": "smoke"}, root / "cache", "CPU")


def test_what_was_edited_while_cells_ran_is_not_remembered(root):
    edit(
        root / "book" / "page.md",
        "print(profile",
        f"open({str(root / 'requirements.lock')!r}, 'a').write('#')\nprint(0",
    )
    with pytest.raises(BuildError, match="edited while it ran"):
        execute(root, root / "book" / "page.md", {"profile": "smoke"}, root / "cache", "CPU")
    assert list((root / "cache").iterdir()) == []


def test_other_pages_and_what_chapters_write_do_not_matter(root):
    before = key(root)
    for path in ("book/other.md", "book/page.ipynb", "book/figures/page-line.svg", "book/results/a.parquet"):
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text("other")
    assert key(root) == before
    assert data_files(root / "book") == [root / "book" / "data" / "numbers.csv"]


def test_a_chapter_is_executed_once_with_its_parameters_taken_literally(root):
    arguments = (root, root / "book" / "page.md", {"profile": "a=b'\"\\ {{ x }}"}, root / "cache", "CPU")
    folder = execute(*arguments)
    notebook = nbformat.read(folder / "page.ipynb", as_version=4)
    assert notebook.cells[-1].source.startswith("import qkspectra.errors")
    assert notebook.cells[-1].outputs[0].text == "a=b'\"\\ {{ x }} 1\n\n"
    stamp = (folder / "page.ipynb").stat().st_mtime_ns
    assert execute(*arguments) == folder
    assert (folder / "page.ipynb").stat().st_mtime_ns == stamp
    assert [path.name for path in (root / "cache").iterdir()] == [folder.name]


def test_where_work_is_done_is_told_to_chapters_that_ask_and_is_no_part_of_the_key(root):
    page, where = root / "book" / "page.md", {"scheduler": "tcp://one:8786"}
    edit(page, 'profile = "none"', 'profile = "none"\nscheduler = ""')
    edit(page, "print(profile", "print(scheduler")
    folder = execute(root, page, {"profile": "smoke"}, root / "cache", "CPU", where)
    assert nbformat.read(folder / "page.ipynb", as_version=4).cells[-1].outputs[0].text == "tcp://one:8786 1\n\n"
    assert execute(root, page, {"profile": "smoke"}, root / "cache", "CPU") == folder
    edit(page, '\nscheduler = ""', "")
    edit(page, "print(scheduler", "print(profile")
    folder = execute(root, page, {"profile": "smoke"}, root / "cache", "CPU", where)
    assert nbformat.read(folder / "page.ipynb", as_version=4).cells[-1].outputs[0].text == "smoke 1\n\n"


def test_old_executions_are_forgotten(root):
    for age in range(KEPT + 3):
        folder = root / "cache" / f"page-{age:020x}"
        folder.mkdir(parents=True)
        os.utime(folder, (age, age))
    (root / "cache" / "other-0").mkdir()
    kept = execute(root, root / "book" / "page.md", {"profile": "smoke"}, root / "cache", "CPU")
    assert len(list((root / "cache").glob("page-*"))) == KEPT
    assert kept.is_dir()
    assert (root / "cache" / "other-0").is_dir()
    assert not (root / "cache" / f"page-{0:020x}").exists()


def test_a_failing_cell_leaves_nothing_behind(root):
    (root / "book" / "page.md").write_text(HEAD + "```{code-cell}\nraise ValueError('the reason')\n```\n")
    with pytest.raises(BuildError, match=r"page\.md: a cell fails with ValueError: the reason"):
        execute(root, root / "book" / "page.md", {"profile": "smoke"}, root / "cache", "CPU")
    assert list((root / "cache").iterdir()) == []


def test_an_unknown_parameter_is_refused_before_anything_runs(root):
    with pytest.raises(BuildError, match="declares no parameter profil: it would be ignored"):
        run_notebook(root / "book" / "page.md", root / "out.ipynb", {"profil": "smoke"}, root)
    assert not (root / "out.ipynb").exists()


def test_pages_without_a_kernel_are_not_run(root):
    (root / "book" / "plain.md").write_text("# Title\n\nkernelspec: none\n")
    assert is_notebook(root / "book" / "page.md")
    assert not is_notebook(root / "book" / "plain.md")
