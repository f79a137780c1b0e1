"""The panel's units: what they measure, and that no head is chosen on what it is measured on."""

import pandas as pd
import pytest
import torch
from tests.weights import tiny

from qkspectra import compute
from qkspectra.behaviour import behaviour, mean_diagonal, previous_token
from qkspectra.errors import InputError
from qkspectra.pocket import corpus
from qkspectra.scores import position_alone
from qkspectra.store import Store
from qkspectra.studies import panel
from qkspectra.studies.audit import ablations, audit, repeats
from qkspectra.weights import open_model
from qkspectra.weights.panels import Member, Panel

VOCAB = 300
MODELS = {
    "gpt_neox": "rope",
    "llama-grouped": "rope",
    "gptj": "rope",
    "gpt2": "absolute",
    "opt": "absolute",
    "bloom": "alibi",
    "mpt": "alibi",
}
SIZES = {"seed": 3, "batch": 4, "length": 8}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("panel")
    tokenizer = corpus.train_tokenizer(["def return self none"], VOCAB)
    for name in MODELS:
        tokenizer.save(str(tiny.save(home / name, name, vocab_size=VOCAB) / "tokenizer.json"))
    return {name: home / name for name in MODELS}


@pytest.fixture(scope="module")
def seven(folders):
    members = [
        Member(name=str(folders[name]), title=name, scheme=scheme, licence="none") for name, scheme in MODELS.items()
    ]
    return Panel(name="tiny", about="random", members=members)


def heads_of(folder, **changes):
    return panel.panel_heads(open_model(str(folder)), samples=24, **SIZES | changes)


def test_rows_hold_the_audit_and_every_score(folders):
    weights = open_model(str(folders["bloom"]))
    table = heads_of(folders["bloom"])
    assert table["under"].unique().tolist() == list(panel.CONVENTIONS)
    raw = table[table["under"] == "raw"]
    alone = audit(weights, samples=24, **SIZES)
    pd.testing.assert_frame_equal(raw[list(alone.columns)], alone)
    tokens, model = repeats(weights, **SIZES), weights.load()
    modules = weights.attention_modules(model)
    half = behaviour(model, modules, tokens[:2]).previous_token
    assert raw["previous_token_first"].tolist() == half.flatten().tolist()
    assert ((raw["previous_token_first"] + raw["previous_token_second"]) / 2).tolist() == raw["previous_token"].tolist()
    text = corpus.held_out(4, 16, SIZES["seed"], folders["bloom"] / "tokenizer.json")
    seen = previous_token(model, modules, text)
    assert raw["previous_token_text"].tolist() == seen.flatten().tolist()
    expected = torch.cat([mean_diagonal(position_alone(weights.layer(i), 16)[None], 1) for i in range(2)])
    assert raw["previous_token_alone"].tolist() == expected.tolist()
    assert (raw["previous_token"] - raw["previous_token_alone"]).tolist() == raw["previous_token_learned"].tolist()
    assert (raw["null_low"] < raw["null_median"]).all()


def test_a_convention_that_a_model_lacks_leaves_its_rows_as_they_are(folders):
    table = heads_of(folders["llama-grouped"])
    by = {under: part.reset_index(drop=True) for under, part in table.groupby("under")}
    for under in ("centred", "bias_augmented"):  # an RMS norm, and no biases
        pd.testing.assert_frame_equal(by[under].drop(columns="under"), by["raw"].drop(columns="under"))
    everything = by["norm_folded+centred+bias_augmented"]
    assert everything["eigen_rotation"].tolist() == by["norm_folded"]["eigen_rotation"].tolist()
    assert everything["eigen_rotation"].tolist() != by["raw"]["eigen_rotation"].tolist()
    assert set(everything["convention"]) == {"norm_folded"}


def test_no_head_is_chosen_on_what_it_is_measured_on(folders, monkeypatch):
    weights = open_model(str(folders["gpt_neox"]))

    def zeroed(tokens):
        monkeypatch.setattr(panel, "repeats", lambda *_, **__: tokens)
        table = panel.phase_zeroing(weights, controls=1, **SIZES)
        return table[table["sequences"] == "random"].set_index("role")

    drawn = repeats(weights, **SIZES)
    elsewhere = repeats(weights, **SIZES | {"seed": 77})
    original = zeroed(drawn)
    second = zeroed(torch.cat([drawn[:2], elsewhere[2:]]))
    assert second[["layer", "head"]].values.tolist() == original[["layer", "head"]].values.tolist()
    assert second.loc["chosen", "previous_token_before"] != original.loc["chosen", "previous_token_before"]
    model = weights.load()
    chosen = set()
    for seed in range(4):  # other first halves choose other heads, and a head's measurement stays what it was
        tokens = torch.cat([repeats(weights, **SIZES | {"seed": seed})[:2], drawn[2:]])
        row = zeroed(tokens).loc["chosen"]
        first = behaviour(model, weights.attention_modules(model), tokens[:2]).previous_token
        assert (row["layer"], row["head"]) == divmod(int(first.argmax()), 4)
        measured = behaviour(model, weights.attention_modules(model), drawn[2:]).previous_token
        assert row["previous_token_before"] == measured[row["layer"], row["head"]].item()
        chosen.add((row["layer"], row["head"]))
    assert len(chosen) > 1


def test_zeroing_measures_the_chosen_head_and_distinct_controls(folders):
    weights = open_model(str(folders["gptj"]))
    table = panel.phase_zeroing(weights, controls=3, **SIZES)
    assert table.groupby("sequences")["role"].value_counts().tolist() == [3, 1] * 2
    for _, part in table.groupby("sequences"):
        assert not part.duplicated(["layer", "head"]).any()
    everyone = panel.phase_zeroing(weights, controls=99, **SIZES)
    assert len(everyone) == 2 * 8
    row = table.iloc[0]
    whole = ablations(weights, [(int(row["layer"]), int(row["head"]))], ["phase"], **SIZES)
    assert whole["previous_token_after"].item() != row["previous_token_after"]
    text = table[table["sequences"] == "text"].iloc[0]
    assert (text["layer"], text["head"]) == (row["layer"], row["head"])
    assert text["loss_first_before"] != row["loss_first_before"]


def test_units_are_stored_once_and_collected(seven, tmp_path, monkeypatch):
    store = Store(tmp_path / "results")
    units = panel.pieces(seven, samples=24, controls=2, **SIZES)
    assert len(units) == 7 + 3
    with pytest.raises(InputError, match="lacks gpt_neox, panel heads"):
        panel.collected(units, store)
    assert compute.run(units, store) == 10
    monkeypatch.setattr(panel, "effects", lambda *_, **__: pytest.fail("computed again"))
    assert compute.run(units, store) == 0
    heads, phases = panel.collected(units, store)
    assert heads.groupby("model", sort=False)["scheme"].first().to_dict() == MODELS
    assert phases["model"].unique().tolist() == [name for name, scheme in MODELS.items() if scheme == "rope"]
    alone = heads.groupby("scheme")["previous_token_alone"].agg(["min", "max"])
    assert alone.loc["alibi", "min"] > alone.loc["rope", "max"] == alone.loc["absolute", "min"]
    more = panel.pieces(seven, samples=24, controls=3, **SIZES)
    assert [unit.rest(store) is None for unit in more] == [True] * 7 + [False] * 3


def test_a_model_of_another_scheme_is_refused(folders):
    member = Member(name=str(folders["gpt2"]), title="GPT-2", scheme="alibi", licence="none")
    with pytest.raises(InputError, match="has absolute positions, its panel says alibi"):
        panel.Piece(member, panel.panel_heads, {}).open()


def test_text_needs_a_tokenizer(tmp_path):
    folder = tiny.save(tmp_path / "model", "llama")
    with pytest.raises(InputError, match=r"without tokenizer\.json"):
        heads_of(folder)
