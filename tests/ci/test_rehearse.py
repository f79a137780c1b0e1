"""A rehearsal does what the workflow does, with models of our own, and nobody can take it for the real thing."""

import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml
from bs4 import BeautifulSoup

from ci import build, hub, publish, rehearse, stage, standins
from ci.failure import BuildError
from qkspectra import book, open_model
from qkspectra.weights import revisions
from qkspectra.weights.panels import PANELS

PYTHIA = "EleutherAI/pythia-160m"
STEPS = (0, 1, 2, 64, 512, 1000)
PAGE = """\
---
kernelspec:
  display_name: Python 3 (ipykernel)
  language: python
  name: python3
---

# A run of another name

```{code-cell} ipython3
:tags: [parameters, remove-cell]

profile = "none"
```

```{code-cell} ipython3
:tags: [remove-cell]

from pathlib import Path

from qkspectra import book
from qkspectra.store import Store
from qkspectra.studies import dynamics

sizes = dynamics.Sizes(batch=2, length=8, samples=20)
made = dynamics.measured(["EleutherAI/pythia-160m"], None, sizes, Store(Path("results")), download=True)
heads = made["heads"].table
book.values(points=heads["step"].nunique(), model=heads["model"].iloc[0])
book.table(heads.head(2), "tab-heads", "Heads.", {"head": ("Head", "d"), "eigen_rotation": ("Eigen-rotation", ".3f")})
```

{{ model }} has {{ points }} points ({numref}`tab-heads`).
"""


@pytest.fixture
def environment(monkeypatch):
    """This process's environment, and that of its children, for the time of the test."""
    with rehearse.standing_in([PYTHIA], STEPS) as environment:
        for name in set(os.environ) - set(environment):
            monkeypatch.delenv(name)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield environment


def asked(*words):
    """The programs of `ci` that make would run, each with its options."""
    printed = subprocess.run(["make", "-n", *words], cwd=build.ROOT, capture_output=True, text=True, check=True).stdout
    lines = [line.split(" -m ", 1)[1].split() for line in printed.splitlines() if " -m ci." in line]
    return [(program, dict(zip(rest[::2], rest[1::2], strict=False))) for program, *rest in lines]


def test_its_commands_are_those_of_the_workflow():
    workflow = (build.ROOT / ".github" / "workflows" / "paper.yml").read_text()
    assert "make executed PROFILE=paper" in workflow
    assert "make publish PROFILE=paper STEP=render && make look" in workflow
    theirs = [*asked("executed", "PROFILE=paper"), *asked("publish", "PROFILE=paper", "STEP=render"), *asked("look")]
    ours = rehearse.commands("paper", Path("out"))
    assert [program for program, _ in theirs] == [program for program, *_ in ours]
    for (_, options), (_, *words) in zip(theirs, ours, strict=True):
        mine = {name: words[words.index(name) + 1] for name in options if name in words}
        assert mine == {name: value for name, value in options.items() if name != "--scheduler"}


def test_it_names_what_the_profile_paper_names():
    paper, ours = (book.profile(name, build.ROOT / "book" / "profiles") for name in ("paper", "rehearsal"))
    assert ours.dynamics == paper.dynamics
    assert ours.panel.name == paper.panel.name
    assert ours.audit.models == paper.audit.models


def test_every_model_has_a_stand_in_of_its_scheme(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with hub.serving() as server:
        server.point_client(server.url, monkeypatch)
        standins.fill(server, [PYTHIA], STEPS)
        contents = set()
        for member in PANELS["paper"].members:
            opened = open_model(member.name, ranges=True)
            assert opened.layout.scheme == member.scheme
            contents.add(opened.source.content_hash)
        assert len(contents) == 7
        verdicts = Counter(point.verdict for point in revisions.audited(PYTHIA))
        assert verdicts == {"ok": 5, "equal to step0": 1}
        with pytest.raises(Exception, match="no revisions named by steps"):
            revisions.audited("EleutherAI/pythia-410m")


def test_a_rehearsed_page_says_so_and_is_not_published(tmp_path, environment):
    tree, output = tmp_path / "tree", tmp_path / "out"
    shutil.copytree(Path(__file__).parent / "sample" / "book", tree / "book")
    (tree / "book" / "page.md").write_text(PAGE)
    (tree / "_toc.yml").write_text("format: jb-book\nroot: book/page\nchapters:\n- file: book/bibliography\n")
    config = yaml.safe_load((build.ROOT / "_config.yml").read_text())
    (tree / "_config.yml").write_text(yaml.safe_dump(config | {"abstract": "Of {{ page/points }} points."}))
    shutil.copyfile(build.ROOT / "CITATION.cff", tree / "CITATION.cff")
    (tree / "requirements.lock").write_text("")
    build.build_book(tree, "rehearsal", output, pdf=False)
    text = " ".join(BeautifulSoup((output / "html" / "book" / "page.html").read_text(), "html.parser").text.split())
    assert "profile rehearsal (stand-in models, no results)" in text
    assert " ".join(stage.WARNING.split()) in text
    assert f"{PYTHIA} has 5 points" in text
    assert list((output / "results").glob("dynamics-*.parquet"))
    assert not (tree / "results").exists()
    with pytest.raises(BuildError, match="is a rehearsal"):
        publish.add(output, tmp_path / "site", build.ROOT / "CITATION.cff")


def test_the_profile_is_not_built_from_the_real_hub(tmp_path, monkeypatch, capsys):
    for endpoint in ("", "https://example.org"):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        assert build.main(["--profile", "rehearsal", "--output", str(tmp_path)]) == 1
        assert "say 'make rehearse'" in capsys.readouterr().err


@pytest.mark.parametrize(("profile", "status"), [("rehearsal", 1), ("paper", 0)])
def test_no_release_is_made_of_a_rehearsal(tmp_path, monkeypatch, profile, status):
    site, programs = tmp_path / "site", tmp_path / "bin"
    (site / "1.2").mkdir(parents=True)
    about = {"version": "1.2", "commit": "abc", "profile": profile, "device": "CPU", "epoch": 0}
    publish.crate.write(site / "1.2", about, build.ROOT / "CITATION.cff")
    programs.mkdir()
    (programs / "gh").write_text(f"#!/bin/sh\necho $* > {tmp_path}/asked\n")
    (programs / "gh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("SITE", str(site))
    finished = subprocess.run([build.ROOT / "ci" / "release.sh", "v1.2"], capture_output=True, text=True, check=False)
    assert finished.returncode == status, finished.stderr
    assert (tmp_path / "asked").exists() == (status == 0)
    assert ("is a rehearsal" in finished.stderr) == (status == 1)
