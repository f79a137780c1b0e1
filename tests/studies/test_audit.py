"""The audit's contract: columns, order, empty where meaningless, formats, exit codes; the public models' anchors."""

import json

import pandas as pd
import pyarrow.parquet
import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from typer.testing import CliRunner

import qkspectra
from qkspectra.behaviour import behaviour
from qkspectra.cli import app
from qkspectra.errors import InputError
from qkspectra.operators import operator_of
from qkspectra.spectrum import measure
from qkspectra.studies.audit import COLUMNS, ablations, audit, repeats
from qkspectra.weights import open_model

CONTRACT = [
    *("model", "revision", "commit", "scheme", "layer", "head", "kv_head", "d_model", "d_head", "d_rot", "convention"),
    *("previous_token", "induction", "duplicate_token", "antisymmetric_energy", "eigen_rotation", "content_sign"),
    *("real_eigenvalues", "henrici", "spectral_radius", "overlap_median"),
    *("z_antisymmetric_energy", "z_eigen_rotation", "z_henrici", "phase_energy", "phase_symmetric_share", "bias_norm"),
]

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
FAMILIES = {
    "llama": {"num_key_value_heads": 2, "max_position_embeddings": 64},
    "gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_inner": 48, "n_positions": 64},
    "bert": {"max_position_embeddings": 64},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for family, changes in FAMILIES.items():
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **{"vocab_size": 90, **SIZES, **changes, "bos_token_id": 3})
        made[family] = tmp_path_factory.mktemp(family)
        (AutoModel if family == "bert" else AutoModelForCausalLM).from_config(config).save_pretrained(made[family])
    return made


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_columns_are_the_contract(folders):
    assert list(COLUMNS) == CONTRACT
    for family in FAMILIES:
        table = audit(open_model(str(folders[family])), samples=16)
        assert list(table.columns) == CONTRACT
        assert len(table) == 8
        assert table["layer"].tolist() == [0] * 4 + [1] * 4
        assert table["head"].tolist() == [0, 1, 2, 3] * 2


def test_rows_are_what_the_parts_say(folders):
    weights = open_model(str(folders["llama"]))
    table = audit(weights, samples=16, seed=5)
    assert table["kv_head"].tolist() == [0, 0, 1, 1] * 2
    expected = measure(operator_of(weights.layer(1)))
    assert table.loc[4:, "eigen_rotation"].tolist() == expected.eigen_rotation.tolist()
    assert table.loc[4:, "phase_energy"].tolist() == expected.phase_energy.tolist()
    model = weights.load()
    tokens = repeats(weights, seed=5)
    assert tokens.shape == (16, 64)
    assert 3 not in tokens
    seen = behaviour(model, weights.attention_modules(model), tokens)
    assert table.loc[4:, "induction"].tolist() == seen.induction[1].tolist()
    assert table["induction"].tolist() != audit(weights, samples=16, seed=6)["induction"].tolist()


def test_what_has_no_meaning_is_empty_and_never_zero(folders):
    columns = {family: audit(open_model(str(folders[family])), samples=16).isna().all() for family in FAMILIES}
    empty = {family: set(column[column].index) for family, column in columns.items()}
    rotary = {"d_rot", "phase_energy", "phase_symmetric_share"}
    assert empty["llama"] == {"revision", "commit", "bias_norm"}
    assert empty["gpt2"] == empty["bert"] == {"revision", "commit", *rotary}


def test_static_only_leaves_behaviour_empty_and_reads_query_and_key_tensors_alone(folders, monkeypatch):
    weights = open_model(str(folders["llama"]))
    read = []
    get = type(weights.tensors).get
    monkeypatch.setattr(type(weights.tensors), "get", lambda self, name: read.append(name) or get(self, name))
    monkeypatch.setattr(type(weights), "load", lambda self: pytest.fail("the model was loaded"))
    table = audit(weights, static_only=True, samples=16)
    assert table[["previous_token", "induction", "duplicate_token"]].isna().all(axis=None)
    assert table["z_eigen_rotation"].notna().all()
    assert {name.split(".")[-2] for name in read} == {"q_proj", "k_proj", "input_layernorm"}


def test_the_convention_travels_with_the_rows(folders):
    weights = open_model(str(folders["llama"]))
    folded = audit(weights, static_only=True, convention="norm_folded", samples=16)
    assert set(folded["convention"]) == {"norm_folded"}
    with pytest.raises(InputError, match="convention"):
        audit(weights, static_only=True, convention="folded")


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_the_command_line_writes_the_same_table_in_every_format(folders, tmp_path, family):
    frames = {}
    for suffix in ("csv", "parquet", "json"):
        out = tmp_path / f"heads.{suffix}"
        result = invoke("audit", folders[family], "--static-only", "--out", out)
        assert (result.exit_code, result.stdout) == (0, "")
    frames["csv"] = pd.read_csv(tmp_path / "heads.csv")
    frames["json"] = pd.DataFrame(json.loads((tmp_path / "heads.json").read_text()))
    frames["parquet"] = pd.read_parquet(tmp_path / "heads.parquet")
    for frame in frames.values():
        assert list(frame.columns) == CONTRACT
        for name in ("eigen_rotation", "z_henrici", "layer", "kv_head"):
            assert frame[name].tolist() == frames["parquet"][name].tolist()
        assert frame["previous_token"].isna().all()
        assert frame["d_rot"].isna().all() == (family == "bert")
    header, first = (tmp_path / "heads.csv").read_text().splitlines()[:2]
    fields = dict(zip(header.split(","), first.split(","), strict=True))
    assert fields["previous_token"] == fields["commit"] == ""
    assert json.loads((tmp_path / "heads.json").read_text())[0]["previous_token"] is None
    stored = pyarrow.parquet.read_table(tmp_path / "heads.parquet")
    assert stored["previous_token"].null_count == 8
    assert sorted(p.name for p in tmp_path.iterdir()) == ["heads.csv", "heads.json", "heads.parquet"]


def test_the_command_line_shows_the_strongest_heads(folders):
    result = invoke("audit", folders["llama"])
    assert result.exit_code == 0
    assert "previous-token heads" in result.stdout
    assert "induction heads" in result.stdout
    table = audit(open_model(str(folders["llama"])))
    best = table.loc[table["induction"].idxmax()]
    line = next(s for s in result.stdout.split("induction heads")[1].splitlines() if s.startswith("L"))
    assert line.split()[:3] == [f"L{best.layer}H{best['head']}", f"{best.previous_token:.3f}", f"{best.induction:.3f}"]
    static = invoke("audit", folders["llama"], "--static-only")
    assert "below the null" in static.stdout
    assert "–" in static.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--out", "heads.xlsx"], "use one of .csv, .parquet, .json"),
        (["--out", "no/such/folder/heads.csv"], "make it first"),
        (["--convention", "folded"], "unknown convention"),
        (["--convention", "centred"], "RMS norm"),
        (["--revision", "main"], "only with a Hub id"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_wrong_audits_exit_with_one_line(folders, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    result = invoke("audit", folders["llama"], "--static-only", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1
    assert says in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_failure_while_writing_leaves_the_old_file(folders, tmp_path, monkeypatch):
    out = tmp_path / "heads.csv"
    out.write_text("old")

    def full(self, path, **_):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    result = invoke("audit", folders["llama"], "--static-only", "--out", out)
    assert result.exit_code == 2
    assert "No space left" in result.stderr
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("channel", ["phase", "symmetric", "antisymmetric"])
def test_ablation_reports_before_and_after(folders, channel):
    result = invoke("ablate", folders["llama"], "--layer", 1, "--head", 2, "--channel", channel, "--json")
    assert result.exit_code == 0
    (effect,) = json.loads(result.stdout)
    table = audit(open_model(str(folders["llama"])))
    assert (effect["layer"], effect["head"], effect["channel"]) == (1, 2, channel)
    assert effect["previous_token_before"] == table.loc[6, "previous_token"]
    assert effect["induction_before"] == pytest.approx(table["induction"].nlargest(8).mean())
    assert effect["previous_token_after"] != effect["previous_token_before"]
    assert effect["loss_second_after"] != effect["loss_second_before"]
    shown = invoke("ablate", folders["llama"], "--layer", 1, "--head", 2, "--channel", channel)
    assert f"{effect['previous_token_after']:.3f}" in shown.stdout


def test_a_model_without_logits_has_no_loss(folders):
    effects = ablations(open_model(str(folders["bert"])), [(0, 1)], ["antisymmetric"])
    assert effects[["loss_second_before", "loss_second_after"]].isna().all(axis=None)
    assert effects["previous_token_after"].notna().all()
    result = invoke("ablate", folders["bert"], "--layer", 0, "--head", 1, "--channel", "symmetric", "--json")
    assert json.loads(result.stdout)[0]["loss_second_after"] is None


@pytest.mark.parametrize(
    ("family", "layer", "head", "channel", "says"),
    [
        ("llama", 2, 0, "phase", "no layer 2"),
        ("llama", -1, 0, "phase", "no layer -1"),
        ("llama", 0, 4, "phase", "no head 4"),
        ("llama", 0, 0, "everything", "choose from phase, symmetric, antisymmetric"),
        ("gpt2", 0, 0, "phase", "no rotary"),
    ],
)
def test_wrong_ablations_exit_with_one_line(folders, family, layer, head, channel, says):
    result = invoke("ablate", folders[family], "--layer", layer, "--head", head, "--channel", channel)
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert says in result.stderr


def head(table, layer, number):
    return table[(table["layer"] == layer) & (table["head"] == number)].squeeze()


def test_smollm2_reproduces_its_anchors():
    weights = qkspectra.open_model("smollm2-135m")
    table = qkspectra.audit(weights, batch=4, samples=120)
    assert len(table) == 270
    assert table["eigen_rotation"].median() == pytest.approx(0.533, abs=5e-4)
    for layer, number, rotation, previous in [
        (16, 0, 0.637, 0.90),
        (11, 1, 0.586, 0.85),
        (2, 1, 0.647, 0.72),
        (22, 1, 0.706, 0.63),
    ]:
        assert head(table, layer, number).eigen_rotation == pytest.approx(rotation, abs=5e-4)
        assert head(table, layer, number).previous_token == pytest.approx(previous, abs=0.03)
    assert table["previous_token"].idxmax() == 16 * 9
    assert table["induction"].idxmax() == 18 * 9 + 6
    assert head(table, 18, 6).eigen_rotation == pytest.approx(0.149, abs=5e-4)
    assert head(table, 18, 6).induction == pytest.approx(0.90, abs=0.03)

    effects = qkspectra.ablations(weights, [(16, 0), (11, 1)], ["phase"], batch=4)
    carrier, spare = effects.to_dict(orient="records")
    assert carrier["previous_token_after"] == pytest.approx(0.01, abs=0.01)
    assert carrier["induction_before"] == pytest.approx(0.650, abs=0.03)
    assert carrier["induction_after"] == pytest.approx(0.176, abs=0.06)
    assert carrier["loss_second_before"] < 3.5
    assert carrier["loss_second_after"] > 8
    assert spare["previous_token_after"] < 0.2
    assert abs(spare["loss_second_after"] - spare["loss_second_before"]) < 0.4


def test_minilm_reproduces_its_anchors():
    table = qkspectra.audit(qkspectra.open_model("minilm-l6"), batch=4, samples=120)
    assert len(table) == 72
    strongest = table.loc[table["previous_token"].idxmax()]
    assert (strongest.layer, strongest["head"]) == (0, 2)
    assert strongest.previous_token == pytest.approx(0.99, abs=0.01)
    assert strongest.eigen_rotation == pytest.approx(0.313, abs=5e-4)
    assert strongest.antisymmetric_energy == pytest.approx(0.394, abs=5e-4)
