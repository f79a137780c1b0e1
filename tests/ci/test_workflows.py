"""The workflows pass a linter, and keep forks away from secrets and from the GPU."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
WORKFLOWS = {path.stem: path for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}


def jobs(name):
    return yaml.safe_load(WORKFLOWS[name].read_text())["jobs"]


def lint(*paths):
    command = [ROOT / ".venv" / "bin" / "zizmor", "--offline", "--no-progress", "--persona", "auditor", *paths]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_linter_finds_nothing():
    assert set(WORKFLOWS) == {"push", "paper", "release"}
    finished = lint(*WORKFLOWS.values())
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "No findings to report" in finished.stdout


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("@11bd71901bbe5b1630ceea73d27597364c9af683", "@v4", "unpinned-uses"),
        ("persist-credentials: false", "persist-credentials: true", "artipacked"),
        ("permissions:\n  contents: read", "permissions: write-all", "excessive-permissions"),
        ("  pull_request:", "  pull_request_target:", "dangerous-triggers"),
        ("run: .ci/run", "run: echo ${{ github.head_ref }}", "template-injection"),
    ],
)
def test_the_linter_finds_what_it_is_for(tmp_path, old, new, finding):
    content = WORKFLOWS["push"].read_text()
    assert old in content
    changed = tmp_path / ".github" / "workflows" / "push.yml"
    changed.parent.mkdir(parents=True)
    changed.write_text(content.replace(old, new))
    assert f"[{finding}]" in lint(changed).stdout


def test_own_runners_and_secrets_are_out_of_reach_of_forks():
    for name, path in WORKFLOWS.items():
        content = path.read_text()
        triggers = yaml.safe_load(content)[True]  # YAML reads `on` as a truth value
        own = [job for job in jobs(name).values() if "self-hosted" in job.get("runs-on", "")]
        if "pull_request" in triggers:
            assert not own
            assert "{{ secrets" not in content
            assert "github.token" not in content
        for job in own:
            assert "event.repository.fork" in job["if"]
            assert "pull_request" in job["if"]
            assert job["environment"] == "gpu"


def test_one_job_may_write_and_it_runs_after_the_checks():
    writing = [
        (name, key)
        for name in WORKFLOWS
        for key, job in jobs(name).items()
        if "write" in job.get("permissions", {}).get("contents", "")
    ]
    assert writing == [("release", "release")]
    assert jobs("release")["release"]["needs"] == "paper"


def test_every_step_is_an_action_or_a_script_of_the_project():
    makefile = (ROOT / "Makefile").read_text()
    for name in WORKFLOWS:
        for job in jobs(name).values():
            for step in job.get("steps", []):
                assert ("uses" in step) != ("run" in step)
                for script in re.findall(r"(?:\.ci|ci)/[\w./-]+", step.get("run", "")):
                    assert (ROOT / script).stat().st_mode & 0o100, script
                for target in re.findall(r"\bmake (\w+)", step.get("run", "")):
                    assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
                assert re.search(r"ci/|make ", step.get("run", "make "))


def test_the_container_is_pinned_and_its_scripts_are_whole():
    [base] = re.findall(r"^FROM (\S+)", (ROOT / "ci" / "container" / "Dockerfile").read_text(), re.MULTILINE)
    assert re.fullmatch(r"nvidia/cuda:\d+\.\d+\.\d+-base-ubuntu\d\d\.\d\d@sha256:[0-9a-f]{64}", base)
    for script in (*(ROOT / "ci").glob("*.sh"), ROOT / "ci" / "container" / "run.sh"):
        subprocess.run(["bash", "-n", script], check=True)
        assert script.stat().st_mode & 0o100
