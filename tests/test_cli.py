"""The command line itself; what its commands compute is tested where it is computed."""

import json
import subprocess
import sys
from importlib.metadata import version

import pytest
import typer
from typer.testing import CliRunner

import qkspectra
from qkspectra.cli import app
from qkspectra.pocket.recipe import ZOO
from qkspectra.weights import wheels
from qkspectra.weights.catalogue import CATALOGUE

COMMANDS = typer.main.get_command(app).commands


def invoke(*arguments):
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code == 0, run.output
    return run.stdout


def test_models_lists_what_is_known_and_what_is_here(tmp_path, monkeypatch):
    monkeypatch.setenv("QKSPECTRA_CACHE", str(tmp_path))
    wheels.folder_of(CATALOGUE["minilm-l6"]).mkdir(parents=True)
    listed = json.loads(invoke("models", "--json"))
    assert [entry["name"] for entry in listed] == list(CATALOGUE)
    here = {"smollm2-135m": False, "minilm-l6": True} | dict.fromkeys(ZOO, True)
    assert {entry["name"]: entry["cached"] for entry in listed} == here
    assert all(entry["licence"] == "Apache-2.0" and entry["size"] > 1e6 for entry in listed)
    lines = invoke("models").splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(CATALOGUE)
    assert [line.split()[-1] for line in lines[1:]] == ["no"] + 8 * ["yes"]
    assert max(map(len, lines)) <= 80


def test_version_is_the_installed_one():
    assert invoke("--version") == f"qkspectra {version('qkspectra')}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_each_command_and_option_does(command):
    assert invoke(command, "--help").startswith("Usage: ")
    assert COMMANDS[command].help
    for parameter in COMMANDS[command].params:
        assert parameter.help, f"{command}: {parameter.name} has no help"


def test_help_and_the_catalogue_do_not_wait_for_torch():
    """Importing torch and Transformers takes seconds."""
    for arguments in (["--help"], ["models"]):
        code = (
            f"import sys\nfrom qkspectra.cli import app\ntry: app({arguments})\nfinally: print('torch' in sys.modules)"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert run.stdout.splitlines()[-1] == "False"


def test_every_public_name_is_there():
    for name in qkspectra.__all__:
        assert getattr(qkspectra, name) is not None
    assert not hasattr(qkspectra, "no_such_name")
