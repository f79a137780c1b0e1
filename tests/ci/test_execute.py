"""Chapters run once for everything that their result depends on, and leave nothing behind when they fail."""

import os

import nbformat
import pytest

from ci.execute import KEPT, cache_key, data_files, execute, is_notebook, run_notebook
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
def root(tmp_path):
    """A tree with one chapter, a library, data and a lock."""
    for path, content in {
        "lib/qkspectra/a.py": "x = 1\n",
        "requirements.lock": "torch==2.13.0\n",
        "book/data/numbers.csv": "1\n",
        "book/page.md": HEAD + "```{code-cell}\nprint(profile, open('data/numbers.csv').read())\n```\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    return tmp_path


def key(root, parameters=None, device="CPU"):
    return cache_key(root, root / "book" / "page.md", parameters or {"profile": "smoke"}, device)


@pytest.mark.parametrize(
    "changed", ["book/page.md", "book/data/numbers.csv", "lib/qkspectra/a.py", "requirements.lock"]
)
def test_a_chapter_runs_again_when_what_it_depends_on_changes(root, changed):
    before = key(root)
    assert key(root) == before
    (root / changed).write_text((root / changed).read_text() + "#\n")
    assert key(root) != before


def test_a_chapter_runs_again_for_other_parameters_devices_and_files(root):
    before = key(root)
    assert key(root, {"profile": "paper"}) != before
    assert key(root, device="GPU") != before
    (root / "lib" / "qkspectra" / "b.py").write_text("")
    assert key(root) != before


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
    assert notebook.cells[-1].outputs[0].text == "a=b'\"\\ {{ x }} 1\n\n"
    stamp = (folder / "page.ipynb").stat().st_mtime_ns
    assert execute(*arguments) == folder
    assert (folder / "page.ipynb").stat().st_mtime_ns == stamp
    assert [path.name for path in (root / "cache").iterdir()] == [folder.name]


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
