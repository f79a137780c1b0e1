"""A published site is never broken: not by a dirty tree, another version, or a kill at any moment."""

import json
import random
import subprocess
import sys
import time

import pytest

from ci import crate, publish
from ci.failure import BuildError

STATE = {"version": "0.1.0", "commit": "abc", "profile": "smoke", "device": "CPU", "epoch": 10**9, "pdf": True}
CITATION = publish.ROOT / "CITATION.cff"


def built(folder, text="one", **changes):
    """A finished build."""
    (folder / "html" / "book").mkdir(parents=True, exist_ok=True)
    for name in ("html/index.html", "html/book/intro.html", publish.DOCUMENT + ".pdf", publish.SOURCES):
        (folder / name).write_text(f"{text} {name}")
    (folder / "built.json").write_text(json.dumps({**STATE, **changes}))
    return folder


def add(tmp_path, text="one", **changes):
    return publish.add(built(tmp_path / "built", text, **changes), tmp_path / "site", CITATION)


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def entries(site):
    return [(entry["version"], entry["preferred"]) for entry in json.loads((site / "switcher.json").read_text())]


def test_a_version_has_pages_pdf_sources_and_metadata(tmp_path):
    folder = add(tmp_path)
    names = {path.name for path in folder.iterdir()}
    assert names == {"index.html", "book", publish.DOCUMENT + ".pdf", publish.SOURCES, crate.NAME}
    assert (tmp_path / "site" / "latest").readlink().name == "0.1.0"
    assert (tmp_path / "site" / "latest" / "index.html").read_text() == "one html/index.html"
    assert 'href="latest/index.html"' in (tmp_path / "site" / "index.html").read_text()


def test_versions_do_not_touch_one_another_and_the_newest_release_is_latest(tmp_path):
    first = contents(add(tmp_path))
    add(tmp_path, "two", version="0.10.0")
    add(tmp_path, "three", version="0.9.0")
    add(tmp_path, "four", version="0.11.0.dev3")
    site = tmp_path / "site"
    assert contents(site / "0.1.0") == first
    assert entries(site) == [("0.11.0.dev3", False), ("0.10.0", True), ("0.9.0", False), ("0.1.0", False)]
    assert (site / "latest").readlink().name == "0.10.0"


def test_the_same_again_is_nothing_new_and_other_content_is_refused(tmp_path):
    before = contents(add(tmp_path))
    assert contents(add(tmp_path)) == before
    with pytest.raises(BuildError, match=r"version 0\.1\.0 is published with other content"):
        add(tmp_path, "two")
    assert contents(tmp_path / "site" / "0.1.0") == before
    assert not list((tmp_path / "site").glob(".part-*"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"commit": "abc+changes"}, "not of a commit"),
        ({"commit": "unknown"}, "not of a commit"),
        ({"pdf": False}, "has no PDF"),
        ({"profile": "rehearsal"}, "is a rehearsal"),
    ],
)
def test_what_is_not_released(tmp_path, changes, reason, capsys):
    folder = built(tmp_path / "built", **changes)
    assert publish.main(["--built", str(folder), "--site", str(tmp_path / "site")]) == 1
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "site").exists()


def test_an_unfinished_build_is_not_published(tmp_path):
    folder = built(tmp_path / "built")
    (folder / "built.json").unlink()
    with pytest.raises(BuildError, match="no finished book"):
        publish.add(folder, tmp_path / "site", CITATION)


def test_the_list_is_made_anew_from_the_folders(tmp_path):
    add(tmp_path)
    add(tmp_path, version="0.2.0")
    site = tmp_path / "site"
    for name in ("switcher.json", "latest", "index.html"):
        (site / name).unlink()
    assert publish.main(["--index", "--site", str(site)]) == 0
    assert entries(site) == [("0.2.0", True), ("0.1.0", False)]
    assert (site / "latest" / "index.html").is_file()


def test_swapping_folders_leaves_a_link_and_nothing_else(tmp_path):
    (tmp_path / "html").mkdir()  # as earlier builds left it
    for text in ("one", "two"):
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "index.html").write_text(text)
        publish.swap(tmp_path / "made", tmp_path / "html")
        assert (tmp_path / "html" / "index.html").read_text() == text
    assert sorted(path.name.partition("-")[0] for path in tmp_path.iterdir()) == ["html", "html"]


LOOP = """
import json, pathlib, sys
from ci import publish
folder, site, first = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
for number in range(first, first + 1000):
    state = json.loads((folder / "built.json").read_text()) | {"version": f"0.{number}.0"}
    (folder / "built.json").write_text(json.dumps(state))
    publish.add(folder, site, publish.ROOT / "CITATION.cff")
    print(number, flush=True)
"""


def broken(site):
    """What a visitor of the site could find wrong."""
    latest = (site / "latest").readlink().name  # read first: what is listed later only grows
    listed = [version for version, _ in entries(site)]
    found = [f"{version}: {fault}" for version in listed for fault in crate.faults(site / version)]
    return found + ([] if latest in listed else ["latest is not listed"])


def test_a_kill_at_any_moment_leaves_the_site_whole(tmp_path):
    site, chance = tmp_path / "site", random.Random(0)
    folder = built(tmp_path / "built")
    publish.add(folder, site, CITATION)
    for run in range(4):
        command = [sys.executable, "-c", LOOP, str(folder), str(site), str(1000 * (run + 1))]
        writer = subprocess.Popen(command, cwd=publish.ROOT, stdout=subprocess.PIPE)
        assert writer.stdout.readline()  # one version is out, others are under way
        end = time.monotonic() + chance.uniform(0.0, 0.2)
        while time.monotonic() < end:
            assert broken(site) == []
        writer.kill()
        writer.communicate()
        assert broken(site) == []
        built(folder, version=f"0.{1000 * run + 999}.5")
        publish.add(folder, site, CITATION)
        assert not list(site.glob(".part-*"))
    assert len(entries(site)) > 5


def test_metadata_of_a_version(tmp_path):
    folder = add(tmp_path)
    document = json.loads((folder / crate.NAME).read_text())
    graph = {entity["@id"]: entity for entity in document["@graph"]}
    assert document["@context"] == "https://w3id.org/ro/crate/1.1/context"
    assert graph[crate.NAME]["about"] == {"@id": "./"}
    root = graph["./"]
    assert root["@type"] == "Dataset"
    assert root["datePublished"] == "2001-09-09T01:46:40+00:00"
    assert root["version"] == "0.1.0"
    linked = [link["@id"] for value in root.values() if isinstance(value, list) for link in value if "@id" in link]
    assert set(linked) <= graph.keys()
    assert {part["@id"] for part in root["hasPart"]} == {str(path) for path in contents(folder)} - {crate.NAME}
    assert graph["book/intro.html"]["encodingFormat"] == "text/html"
    assert graph["#qkspectra"]["softwareVersion"] == "commit abc"


def test_changed_lost_and_added_files_are_noticed(tmp_path):
    folder = add(tmp_path)
    assert crate.faults(folder) == []
    (folder / "index.html").write_text("other")
    (folder / publish.SOURCES).unlink()
    (folder / "new.html").write_text("")
    assert crate.faults(folder) == [
        f"{publish.SOURCES} is missing",
        "index.html has changed",
        "new.html is not in the metadata",
    ]
