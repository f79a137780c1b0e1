"""Where models run: placed by the process, and nowhere else than what is compared with the CPU's own arithmetic.

Torch's device without memory, `meta`, stands in for a GPU: what is put there has a place and no values.
"""

import pytest
import torch

from qkspectra import compute, open_model
from qkspectra.device import VARIABLE, chosen, described
from qkspectra.errors import InputError
from qkspectra.store import Store
from qkspectra.studies import laboratory, static
from qkspectra.studies.audit import audit
from qkspectra.studies.identities import layer_inputs
from qkspectra.studies.training import condition
from qkspectra.verify import agreement
from qkspectra.weights.model import loaded_once


def place(model):
    return {parameter.device.type for parameter in model.parameters()}


def test_models_run_where_the_process_says(monkeypatch):
    weights = open_model("pocket-gpt2")
    monkeypatch.delenv(VARIABLE, raising=False)
    assert place(weights.load()) == place(loaded_once(weights).load()) == {"cpu"}
    monkeypatch.setenv(VARIABLE, "meta")
    assert place(weights.load()) == place(loaded_once(weights).load()) == {"meta"}
    assert place(weights.load(device="cpu")) == place(loaded_once(weights).load(device="cpu")) == {"cpu"}


def test_what_checks_the_operator_stays_on_the_cpu(monkeypatch):
    monkeypatch.setenv(VARIABLE, "meta")
    weights = open_model("pocket-gpt-neox")
    assert agreement(weights, torch.float64).passed
    assert layer_inputs(weights, 1, 8, 0).isfinite().all()
    assert audit(weights, static_only=True, samples=8)["eigen_rotation"].notna().all()


def test_a_result_says_where_its_model_ran_and_is_one_whatever_the_place(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, "meta")
    store, weights = Store(tmp_path), open_model("pocket-gpt2")

    def placed(weights, *, seed):
        return audit(weights, static_only=True, samples=8, seed=seed).assign(place=place(weights.load()).pop())

    assert set(static.stored(store, placed, weights, seed=0)["place"]) == {"meta"}
    static.stored(store, audit, weights, seed=0, static_only=True, samples=8)
    devices = {result.provenance["study"]: result.provenance["device"] for result in store.results()}
    assert devices == {"placed": "meta", "audit": "cpu"}
    monkeypatch.setenv(VARIABLE, "cpu")
    assert set(static.stored(store, placed, weights, seed=0)["place"]) == {"meta"}


def test_an_accelerator_is_not_divided_among_processes_and_trains_all_seeds_at_once(monkeypatch):
    monkeypatch.setenv(VARIABLE, "meta")
    assert compute.processes() == 1
    assert {len(unit.seeds) for unit in laboratory.units(16)} == {16}
    monkeypatch.setenv(VARIABLE, "cpu")
    assert compute.processes() == compute.cores() >= 1
    assert {len(unit.seeds) for unit in laboratory.units(16)} == {8}


def test_a_device_that_is_not_here_is_refused_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, "tpu7")
    for attempt in (chosen, open_model("pocket-gpt2").load, lambda: condition("rope").run(Store(tmp_path))):
        with pytest.raises(InputError, match=r"no device 'tpu7': use cpu \(--device, or QKSPECTRA_DEVICE\)"):
            attempt()
    assert chosen("cpu") == described("cpu") == "cpu"
    assert not list(tmp_path.iterdir())
