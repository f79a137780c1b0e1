"""What is declared in one place agrees with the other places, and the scripts answer plainly."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import pytest
import yaml

from ci import crate
from ci.execute import is_notebook
from ci.lock import pins
from ci.version import accelerator, device, identify

ROOT = Path(__file__).resolve().parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = dict(
    line.split("==") for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")
)


def canonical(requirement):
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", requirement)[0]).lower()


def test_the_lock_pins_everything_exactly_and_for_every_machine():
    for name, pin in LOCK.items():
        assert name == canonical(name)
        assert re.fullmatch(r"[0-9][0-9a-z.!]*", pin), f"{name}: no local label, no range, no address"
    assert LOCK["torch"] == "2.13.0"
    assert LOCK["jupyter-book"].startswith("1.")


def test_the_lock_covers_what_the_project_asks_for():
    for requirement in chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()):
        assert canonical(requirement) in LOCK
        if "==" in requirement:
            assert LOCK[canonical(requirement)] == requirement.partition("==")[2]


def test_the_environment_is_the_lock():
    installed = {name: version(name).partition("+")[0] for name in LOCK}
    assert installed == LOCK


def test_benchmark_peers_are_no_dependencies():
    assert not {"transformer-lens", "datasets", "wandb"} & LOCK.keys()


def test_the_conda_environment_agrees_with_the_lock():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, pip, wheels = environment["dependencies"]
    assert python == "python=3.11"
    assert PROJECT["requires-python"] == ">=3.11,<3.12"
    assert pip == "pip"
    assert wheels == {"pip": ["-r requirements.lock", "-e ."]}


def test_pins_of_a_resolution():
    entries = [("torch", "2.13.0+cpu"), ("qkspectra", "0.1.0"), ("Jinja2", "3.1.6"), ("ruamel.yaml", "1.0")]
    report = {"install": [{"metadata": {"name": name, "version": pin}} for name, pin in entries]}
    assert pins(report) == ["jinja2==3.1.6", "ruamel-yaml==1.0", "torch==2.13.0"]


def test_licences_and_citation():
    assert (ROOT / "LICENSE").read_text().split() > ["Apache", "License"]
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert "Attribution 4.0 International" in (ROOT / "LICENSE-TEXT").read_text()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["references"][0]["identifiers"][0]["value"] == "arXiv:2607.06621"


def test_every_command_of_the_readme_exists():
    makefile = (ROOT / "Makefile").read_text()
    readme = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"\bmake ([a-z]+)", readme))
    assert {"book", "test"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_python_of_the_readme_runs():
    """The blocks about clusters need one."""
    [block] = re.findall(r"## From Python\n+```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    finished = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith("tensor(")


def test_text_notebooks_survive_the_round_trip(tmp_path):
    shutil.copyfile(ROOT / "jupytext.toml", tmp_path / "jupytext.toml")
    sources = [path for path in sorted((ROOT / "book").glob("*.md")) if is_notebook(path)]
    assert sources
    for source in sources:
        shutil.copyfile(source, tmp_path / source.name)
    names = [source.name for source in sources]
    jupytext = [str(ROOT / ".venv" / "bin" / "jupytext")]
    subprocess.run([*jupytext, "--test-strict", "--to", "ipynb", *names], cwd=tmp_path, check=True, capture_output=True)
    subprocess.run([*jupytext, "--sync", *names], cwd=tmp_path, check=True, capture_output=True)
    for source in sources:
        assert (tmp_path / source.with_suffix(".ipynb").name).is_file()
        assert (tmp_path / source.name).read_text() == source.read_text()


def test_only_the_text_half_of_notebooks_is_tracked():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "book/intro.md" in tracked
    assert ".ipynb" not in tracked


@pytest.fixture
def programs(tmp_path):
    """Makes a folder with stand-ins for programs, to be the whole PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for tool in ("grep", "mkdir", "touch", "chmod"):
        (folder / tool).symlink_to(shutil.which(tool))

    def add(scripts):
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/bash\n{script}\n")
            (folder / name).chmod(0o755)
        return {"PATH": str(folder)}

    return add


def run_script(name, environment, folder=ROOT, arguments=()):
    command = ["/bin/bash", str(ROOT / "ci" / name), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_another_python_is_refused_in_one_line(programs):
    finished = run_script("make-env.sh", programs({"python3.11": "exit 1", "python3": "exit 1"}))
    assert finished.returncode == 1
    assert len(finished.stderr.splitlines()) == 1
    assert "Python 3.11 is needed" in finished.stderr


INTERPRETER = """
[ "$2" = venv ] || exit 0
mkdir -p .venv/bin
echo '#!/bin/bash' > .venv/bin/python
echo 'echo "$@" >> calls; [ "$3" != install ] || [ ! -e broken ]' >> .venv/bin/python
chmod +x .venv/bin/python
"""


def test_a_killed_installation_is_taken_up_again(programs, tmp_path):
    environment = programs({"python3.11": INTERPRETER})
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").write_text("cut short")
    (tmp_path / "broken").touch()
    assert run_script("make-env.sh", environment, tmp_path).returncode != 0
    assert not (tmp_path / ".venv" / ".stamp").exists()
    (tmp_path / "broken").unlink()
    assert run_script("make-env.sh", environment, tmp_path).returncode == 0
    assert (tmp_path / ".venv" / ".stamp").exists()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert sum("install" in call and "-r requirements.lock" in call for call in calls) == 2
    assert "--editable ." in calls[-1]


@pytest.mark.parametrize(
    ("scripts", "line"),
    [
        ({}, "no PDF: install TeX Live"),
        (
            {"apt-get": "exit 0", "dpkg-query": "exit 1", "id": "echo 1000"},
            "no PDF unless these are installed: sudo apt-get",
        ),
        ({"apt-get": "exit 1", "dpkg-query": "exit 1", "id": "echo 0"}, "LaTeX could not be installed"),
    ],
)
def test_where_latex_cannot_be_installed_one_line_says_so(programs, scripts, line):
    finished = run_script("install-latex.sh", programs(scripts))
    assert finished.returncode == 0
    assert line in finished.stderr.splitlines()[-1]


GH = """
case "$1 $2" in
"release list") ls "$RELEASES" ;;
"release download") cp "$RELEASES/$3"/* "$7" ;;
"release create") mkdir "$RELEASES/$3" && cp "${@: -2}" "$RELEASES/$3" ;;
esac
"""


def test_releases_become_a_site_again(programs, tmp_path):
    environment = {
        **os.environ,
        "PATH": f"{programs({'gh': GH})['PATH']}:{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    environment |= {"RELEASES": str(tmp_path / "releases"), "SITE": str(tmp_path / "site")}
    (tmp_path / "releases").mkdir()
    for number in ("0.9.0", "0.10.0"):
        folder = tmp_path / "site" / number
        folder.mkdir(parents=True)
        for name in ("index.html", crate.NAME, "fingerprint-not-blueprint.pdf"):
            (folder / name).write_text(number)
        assert run_script("release.sh", environment, arguments=[f"v{number}"]).returncode == 0
    assert run_script("release.sh", environment, arguments=["v0.11.0"]).stderr.startswith("there is no version 0.11.0")
    shutil.rmtree(tmp_path / "site")
    finished = run_script("collect-site.sh", environment)
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "site" / "latest" / "index.html").read_text() == "0.10.0"
    assert (tmp_path / "site" / "0.9.0" / "index.html").read_text() == "0.9.0"
    assert not list((tmp_path / "site").glob(".part-*"))


def test_the_archive_agrees_with_the_citation():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    archive = json.loads((ROOT / ".zenodo.json").read_text())
    assert archive["title"] == citation["title"]
    assert [creator["name"] for creator in archive["creators"]] == [author["name"] for author in citation["authors"]]
    assert archive["keywords"] == citation["keywords"]
    assert archive["license"] in {name.lower() for name in citation["license"]}
    assert archive["upload_type"] == citation["type"]
    assert archive["related_identifiers"][0]["identifier"] == citation["references"][0]["identifiers"][0]["value"]
    assert set(citation["license"]) == set(crate.LICENCES)


def test_the_version_comes_from_the_tag_and_the_commit(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, env=environment)

    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
    assert identify(tmp_path, "smoke").commit == "unknown"
    git("init", "--initial-branch=main")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "one")
    assert identify(tmp_path, "smoke").version == "0.1.0.dev1"
    git("tag", "v0.2.0")
    clean = identify(tmp_path, "smoke")
    assert clean.version == "0.2.0"
    assert re.fullmatch(r"[0-9a-f]{12}", clean.commit)
    assert clean.epoch > 1
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    assert identify(tmp_path, "smoke").epoch == 1
    (tmp_path / "b").write_text("new")
    assert identify(tmp_path, "smoke").commit == clean.commit + "+changes"
    (tmp_path / "b").unlink()
    (tmp_path / "a").write_text("2")
    assert identify(tmp_path, "smoke").commit == clean.commit + "+changes"
    git("commit", "-am", "two")
    assert identify(tmp_path, "smoke").version == "0.2.0.post1"


def test_a_build_names_the_gpu_that_it_is_told_to_use(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\n[ "$3" = --id=1 ] && echo "Maker X1"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name in ("", "cpu"):
        monkeypatch.setenv("QKSPECTRA_DEVICE", name)
        assert accelerator() == ""
        assert device().startswith("CPU (")
    monkeypatch.setenv("QKSPECTRA_DEVICE", "cuda:1")
    assert accelerator() == "cuda:1"
    assert device().startswith("GPU (Maker X1) and CPU (")
