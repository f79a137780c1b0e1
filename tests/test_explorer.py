"""The head explorer says what the audit says, and needs nothing from elsewhere."""

import base64
import json
import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
import torch
from bs4 import BeautifulSoup
from tests.weights import tiny

from qkspectra import explorer, open_model
from qkspectra.operators import operator_of
from qkspectra.spectrum import measure
from qkspectra.studies import static
from qkspectra.studies.audit import audit, offsets

SEQUENCES = {"seed": 0, "batch": 1, "length": 12}


def unpacked(packed):
    whole = np.frombuffer(base64.b64decode(packed["data"]), "<i2").reshape(-1, packed["columns"])
    return np.where(whole == -32768, np.nan, whole * packed["scale"])


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    made = []
    for family in ("llama-grouped", "gpt2"):
        weights = open_model(str(tiny.save(tmp_path_factory.mktemp(family), family)))
        heads = audit(weights, samples=12, **SEQUENCES)
        back = offsets(weights, static.all_heads(heads), **SEQUENCES)
        made.append(explorer.state(weights, heads, back, samples=12, seed=0, model=family))
    return made


def test_the_data_are_those_of_the_audit(states):
    [rope, plain] = explorer.payload(states)["models"]
    for of, state in ((rope, states[0]), (plain, states[1])):
        [shown] = of["states"]
        assert [len(shown["rows"]), of["layers"] * of["heads"]] == 2 * [len(state.audit)]
        for name, column in zip(explorer.MEASURES, zip(*shown["rows"], strict=True), strict=True):
            found = pd.Series(column, dtype=float)
            np.testing.assert_allclose(found, state.audit[name].astype(float), rtol=1e-3, atol=1e-9)
        values = torch.view_as_complex(torch.from_numpy(unpacked(shown["eigenvalues"])).unflatten(-1, (-1, 2)))
        assert (values - state.eigenvalues).abs().max() < 1e-3 * state.eigenvalues.abs().max()
        np.testing.assert_allclose(
            unpacked(shown["offsets"]).ravel(), state.offsets["attention"], atol=state.offsets["attention"].max() / 3e4
        )
    assert plain["states"][0]["even"] is None
    assert not {"phase_energy"} & plain["null"].keys()
    shares = unpacked(rope["states"][0]["even"]) + unpacked(rope["states"][0]["odd"])
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-3)


def test_the_energy_by_frequency_sums_to_the_phase_energy(tmp_path):
    op = operator_of(open_model(str(tiny.save(tmp_path, "llama-grouped"))).layer(1))
    even, odd = explorer.frequencies(op)
    torch.testing.assert_close(odd.sum(-1), measure(op).phase_energy)
    a, b = op.rotary.pairs[2]
    dense = torch.outer(op.wq[1, a], op.wk[1, b]) - torch.outer(op.wq[1, b], op.wk[1, a])
    assert odd[1, 2] / odd[1, 0] == pytest.approx(
        (dense.square().sum() / _dense_odd(op, 1, 0).square().sum()).item(), rel=1e-9
    )
    torch.testing.assert_close((even + odd).sum(-1), torch.ones(len(even), dtype=torch.float64))


def _dense_odd(op, head, frequency):
    a, b = op.rotary.pairs[frequency]
    return torch.outer(op.wq[head, a], op.wk[head, b]) - torch.outer(op.wq[head, b], op.wk[head, a])


def test_missing_values_and_steps_arrive(states):
    first = states[0]
    empty = first.audit.assign(previous_token=float("nan"), induction=float("nan"), overlap_median=float("inf"))
    unrun = explorer.State(**{**vars(first), "audit": empty, "offsets": None, "step": 8})
    [model] = explorer.payload([explorer.State(**{**vars(first), "step": 0}), unrun])["models"]
    assert [state["step"] for state in model["states"]] == [0, 8]
    row = dict(zip(explorer.MEASURES, model["states"][1]["rows"][0], strict=True))
    assert row["previous_token"] is None
    assert row["overlap_median"] == "∞"
    assert model["states"][1]["offsets"] is None
    packed = explorer._packed([[1.0, float("nan")], [-2.0, 0.0]])
    np.testing.assert_allclose(unpacked(packed), [[1.0, np.nan], [-2.0, 0.0]], rtol=1e-4)


def test_a_run_is_measured_step_by_step_and_comes_back_as_it_was(tmp_path):
    for step in (0, 1, 16):
        tiny.save(tmp_path / "run" / f"step{step}", "llama-grouped")
    sizes = {"seed": 0, "samples": 12}
    table = explorer.run(str(tmp_path / "run"), batch=1, length=12, **sizes)
    assert table["step"].unique().tolist() == [0, 16]
    assert set(table["model"]) == {"run"}
    table.to_parquet(tmp_path / "run.parquet")
    first, last = explorer.states(pd.read_parquet(tmp_path / "run.parquet"), **sizes)
    weights = open_model(str(tmp_path / "run"), "step16")
    heads = audit(weights, batch=1, length=12, **sizes)
    back = offsets(weights, static.all_heads(heads), batch=1, length=12, seed=0)
    expected = explorer.state(weights, heads, back, model="run", step=16, **sizes)
    assert (first.step, last.step) == (0, 16)
    found, wanted = explorer.payload([last]), explorer.payload([expected])
    assert found["models"][0]["states"][0]["rows"] == wanted["models"][0]["states"][0]["rows"]
    for name in ("null", "cloud", "layers", "heads", "scheme"):
        assert found["models"][0][name] == wanted["models"][0][name]
    for name in ("eigenvalues", "offsets", "even", "odd"):
        pair = [unpacked(each["models"][0]["states"][0][name]) for each in (found, wanted)]
        np.testing.assert_allclose(*pair, atol=2e-4 * np.abs(pair[1]).max())


def test_the_steps_that_are_watched_grow_further_apart():
    assert [step for step in range(1600) if explorer.watched(step)] == [0, 16, 32, 64, 128, 256, 512, 1000, 1500]


def test_the_markup_is_complete_and_loads_nothing(states):
    page = explorer.markup(states)
    assert "@data@" not in page
    soup = BeautifulSoup(page, "html.parser")
    code = "".join(tag.string for tag in soup.select("script:not([type]), style"))
    assert re.findall(r"\w+://\S+", code) == ['http://www.w3.org/2000/svg",']  # a name, not an address
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", code)
    assert [model["name"] for model in json.loads(soup.select_one("script[type]").string)["models"]] == [
        "llama-grouped",
        "gpt2",
    ]
    assert not soup.select("[src], [href]")
    for control in soup.select("select, input"):
        assert control.find_parent("label"), control


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs Chromium")
def test_heads_are_chosen_with_the_keyboard(states, tmp_path):
    """A head is picked from the address, then the next one with an arrow key."""
    steps = """<script>
    const map = document.querySelector('[data-qk="map"]');
    map.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
    document.title = [document.querySelector('[data-qk="title"]').textContent, document.activeElement.title,
      ...[...document.querySelectorAll('[data-qk="rows"] tr')].map((row) => row.textContent)].join("|");
    </script>"""
    path = tmp_path / "page.html"
    path.write_text(f"<!DOCTYPE html><html lang='en'><meta charset='utf-8'><body>{explorer.markup(states)}{steps}")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    run = subprocess.run(
        [*command, "--dump-dom", f"{path.as_uri()}#head=gpt2/L1H1"], capture_output=True, text=True, timeout=120
    )
    title, focused, *rows = BeautifulSoup(run.stdout, "html.parser").title.string.split("|")
    assert title == "gpt2, L1H2"
    assert focused == "L1H2"
    value = states[1].audit.query("layer == 1 and head == 2")["eigen_rotation"].item()
    [row] = [row for row in rows if row.startswith("eigen-rotation") and "," not in row]
    assert row.removeprefix("eigen-rotation").startswith(f"{value:.3g}"[:4])
