"""Each family is proven by its scores; everything else is refused by name."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.weights import tiny
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from qkspectra.errors import InputError
from qkspectra.verify import agreement
from qkspectra.weights import families, open_model
from qkspectra.weights.families import alibi, unsupported


@pytest.mark.parametrize("case", tiny.CASES)
def test_scores_of_every_family(tmp_path, case):
    model = open_model(str(tiny.save(tmp_path, case)))
    layout = model.layout
    for precision, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-10)):
        agreed = agreement(model, precision)
        assert agreed.error.shape == (layout.n_layers, layout.n_heads)
        assert agreed.error.max() <= tolerance
        assert agreed.control.min() > 0.1  # a wrong operator would have been seen, in every layer
        assert agreed.positional.isnan().all() == (layout.scheme == "absolute")
        assert agreed.compared >= layout.n_layers * layout.n_heads * 64 * 5
        assert agreed.passed


def test_all_supported_families_have_a_case():
    assert {family for family, _ in tiny.CASES.values()} == set(families.FAMILIES)


@pytest.mark.parametrize(
    ("case", "scheme", "d_rot", "n_kv_heads"),
    [
        ("gpt2", "absolute", 0, 4),
        ("bloom", "alibi", 0, 4),
        ("falcon-alibi", "alibi", 0, 4),
        ("falcon-grouped", "rope", 8, 2),
        ("falcon-multi-query", "rope", 12, 1),
        ("gpt_neox", "rope", 6, 4),
        ("llama-free-width-bias", "rope", 10, 2),
        ("gptj", "rope", 8, 4),
        ("gemma3", "rope", 10, 2),
    ],
)
def test_layout(case, scheme, d_rot, n_kv_heads):
    layout = families.model_layout(tiny.build(case).config)
    assert (layout.scheme, layout.d_rot, layout.n_kv_heads) == (scheme, d_rot, n_kv_heads)


def test_longrope_ends_where_its_frequencies_change():
    """Beyond its original length longrope has other frequencies, so no longer sequence may be measured."""
    assert families.model_layout(tiny.build("phi3-longrope").config).max_positions == 80


def test_local_and_global_layers_have_their_own_base_and_window(tmp_path):
    model = open_model(str(tiny.save(tmp_path, "gemma3")))
    local, everywhere = model.layer(0), model.layer(1)
    assert (local.window, everywhere.window) == (6, None)
    assert local.rotary.theta[1] == pytest.approx(50.0 ** (-2 / 10), rel=1e-12)
    assert everywhere.rotary.theta[1] == pytest.approx(900.0 ** (-2 / 10), rel=1e-12)


@pytest.mark.parametrize("n_heads", [8, 12])
def test_alibi_slopes_of_the_paper(n_heads):
    """Eight heads: 1/2, 1/4, ..., 1/256 (Press et al. 2022, section 3); twelve: a slope of its own for each."""
    for slopes in (alibi.bloom_slopes(n_heads), alibi.mpt_slopes(n_heads)):
        assert len(slopes.unique()) == n_heads
        if n_heads == 8:
            torch.testing.assert_close(slopes, 0.5 ** torch.arange(1, 9, dtype=torch.float64))


def test_falcon_alibi_is_added_once(tmp_path):
    """Transformers' eager attention adds it twice; what is loaded agrees with the fused kernel, which adds it once."""
    model = open_model(str(tiny.save(tmp_path, "falcon-alibi")))
    fused = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa", dtype=torch.float32).eval()
    tokens = torch.randint(tiny.VOCAB, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model.load()(tokens).logits, fused(tokens).logits, rtol=1e-4, atol=1e-4)


# Reading --------------------------------------------------------------------------------------------------------------


def test_sharded_files_hold_the_same_layers(tmp_path):
    """Query and key of one layer may lie in different shards."""
    built = tiny.build("llama-free-width-bias")
    built.save_pretrained(tmp_path / "one")
    built.save_pretrained(tmp_path / "many", max_shard_size="12KB")
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())["weight_map"]
    attention = "model.layers.1.self_attn"
    assert index[f"{attention}.q_proj.weight"] != index[f"{attention}.k_proj.weight"]
    one, many = open_model(str(tmp_path / "one")), open_model(str(tmp_path / "many"))
    for layer in range(2):
        assert_same(one.layer(layer), many.layer(layer))


def test_base_and_head_models_store_the_same_layers(tmp_path):
    """`GPT2Model` saves `h.0...`, `GPT2LMHeadModel` saves `transformer.h.0...`."""
    built = tiny.build("gpt2")
    built.save_pretrained(tmp_path / "head")
    built.base_model.save_pretrained(tmp_path / "base")
    assert_same(open_model(str(tmp_path / "head")).layer(1), open_model(str(tmp_path / "base")).layer(1))


class Recording:
    """Tensors that note which were read."""

    def __init__(self, tensors):
        self._tensors, self.read = tensors, set()
        self.names, self.shape = tensors.names, tensors.shape

    def get(self, name):
        self.read.add(name)
        return self._tensors.get(name)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("llama", {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "input_layernorm.weight"}),
        ("phi3", {"self_attn.qkv_proj.weight", "input_layernorm.weight"}),
    ],
)
def test_only_query_and_key_tensors_of_the_layer_are_read(tmp_path, case, expected):
    model = open_model(str(tiny.save(tmp_path, case)))
    tensors = Recording(model.tensors)
    families.read_layer(model.config, tensors, 1)
    assert tensors.read == {f"model.layers.1.{name}" for name in expected}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_upcast_exactly(tmp_path, dtype):
    built = tiny.build("llama").to(dtype)
    built.save_pretrained(tmp_path)
    layer = open_model(str(tmp_path)).layer(0)
    stored = built.model.layers[0].self_attn.q_proj.weight
    assert torch.equal(layer.wq.flatten(0, 1), stored.detach().double())


def test_there_is_no_such_layer(tmp_path):
    model = open_model(str(tiny.save(tmp_path, "gpt2")))
    with pytest.raises(InputError, match="no layer 2: the model has layers 0 to 1"):
        model.layer(2)


# Configurations -------------------------------------------------------------------------------------------------------


def rewrite(folder, **changes):
    """Changes entries of `config.json`; a value of `...` removes the entry."""
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not ...}))


@pytest.mark.parametrize(
    ("case", "old"),
    [
        ("gpt_neox", {"rope_parameters": ..., "rotary_pct": 0.5, "rotary_emb_base": 1000}),
        ("phi", {"rope_parameters": ..., "partial_rotary_factor": 0.5, "rope_theta": 10000.0}),
        (
            "llama-linear",
            {"rope_parameters": ..., "rope_theta": 700, "rope_scaling": {"type": "linear", "factor": 3.0}},
        ),
        ("gemma3", {"rope_parameters": ..., "rope_theta": 900.0, "rope_local_base_freq": 50.0}),
    ],
)
def test_old_and_new_configurations_say_the_same(tmp_path, case, old):
    new = open_model(str(tiny.save(tmp_path, case)))
    before = [new.layer(i) for i in range(2)]
    rewrite(tmp_path, **old)
    after = open_model(str(tmp_path))
    assert after.layout == new.layout
    for i in range(2):
        assert_same(before[i], after.layer(i))


@pytest.mark.parametrize(
    ("case", "changes", "missing"),
    [
        ("gpt_neox", {"rope_parameters": {"rope_theta": 1000, "rope_type": "default"}}, "rotary_pct"),
        ("gpt_neox", {"rope_parameters": ..., "rotary_pct": 0.5}, "rotary_emb_base"),
        ("llama", {"rope_parameters": ...}, "rope_theta"),
        ("llama", {"rope_parameters": ..., "transformers_version": "4.40.0"}, "rope_theta"),
        ("phi", {"rope_parameters": {"rope_theta": 1000, "rope_type": "default"}}, "partial_rotary_factor"),
        ("gptj", {"rotary_dim": ...}, "rotary_dim"),
        ("granite", {"attention_multiplier": ...}, "attention_multiplier"),
        ("gemma2", {"query_pre_attn_scalar": ...}, "query_pre_attn_scalar"),
        ("gemma3", {"rope_parameters": ..., "rope_theta": 900.0}, "rope_local_base_freq"),
        ("falcon-multi-head", {"rope_parameters": ...}, "rope_theta"),
    ],
)
def test_what_a_default_would_hide_is_refused(tmp_path, case, changes, missing):
    """transformers#44985, #48630: a lost `rotary_pct`, a base that silently became another."""
    tiny.save(tmp_path, case)
    rewrite(tmp_path, **changes)
    with pytest.raises(InputError, match=missing):
        open_model(str(tmp_path))


def test_llama_before_it_had_a_base_to_state(tmp_path):
    tiny.save(tmp_path, "llama")
    rewrite(tmp_path, rope_parameters=..., transformers_version="4.28.0.dev0")
    assert open_model(str(tmp_path)).layer(0).rotary.theta[1] == pytest.approx(10000.0 ** (-2 / 12), rel=1e-12)


@pytest.mark.parametrize(
    ("case", "changes", "named"),
    [
        ("llama", {"rope_interleaved": True}, "rope_interleaved"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("llama", {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}}, "proportional"),
        ("llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised"),
        ("mistral", {"layer_types": tiny.LAYERS}, "ministral"),  # Transformers reads it as another family
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
        ("qwen2", {"use_logn_attn": True}, "use_logn_attn"),
        ("qwen2", {"layer_types": ["chunked_attention"] * 2}, "chunked_attention"),
        ("bert", {"position_embedding_type": "relative_key_query"}, "position_embedding_type"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("mpt", {"attn_config": {"alibi": False}}, "alibi"),
        ("mpt", {"attn_config": {"qk_ln": True}}, "qk_ln"),
        ("gptj", {"rotary_dim": 7}, "7 rows"),
        ("gpt_neox", {"rotary_pct": 1.5, "rope_parameters": ..., "rotary_emb_base": 1e4}, "1.5 is not a share"),
        ("llama", {"rope_parameters": ..., "rope_theta": 1e4, "rope_scaling": "linear"}, "linear.*not understood"),
        ("llama", {"rope_parameters": tiny.LLAMA3 | {"factor": 0}}, "not positive numbers"),
        ("llama", {"rope_parameters": tiny.YARN | {"original_max_position_embeddings": -3}}, "make sense"),
        ("llama", {"rope_parameters": tiny.YARN | {"surprise": 1}}, "surprise"),
        ("phi3", {"rope_parameters": tiny.LONGROPE | {"short_factor": [1.0]}}, "short_factor"),
        ("gpt_neox", {"head_dim_of_keys": 3}, "head_dim_of_keys"),
        ("gpt_neox", {"head_dim": 6}, "its heads are 12 wide"),
        ("llama-grouped", {"num_key_value_heads": 4}, "6 query heads do not share 4 key-value heads"),
        ("llama", {"num_hidden_layers": 0}, "without layers"),
        ("gemma2", {"query_pre_attn_scalar": -1}, "query_pre_attn_scalar=-1"),
    ],
)
def test_an_option_that_may_change_scores_is_refused(tmp_path, case, changes, named):
    tiny.save(tmp_path, case)
    rewrite(tmp_path, **changes)
    with pytest.raises(InputError, match=named):
        open_model(str(tmp_path)).layer(1)


@pytest.mark.parametrize(
    ("case", "entries"),
    [
        (
            "llama",
            {"is_llama_config": True, "rope_interleaved": False, "pretraining_tp": 1, "max_sequence_length": 128},
        ),
        ("gptj", {"rotary": True, "scale_attn_weights": True}),
        ("bloom", {"attention_softmax_in_fp32": True, "offset_alibi": 100, "skip_bias_add": True}),
        ("bert", {"position_embedding_type": "absolute", "pooler_num_attention_heads": 12}),
        ("gemma2", {"sliding_window_size": 6, "cache_implementation": "hybrid"}),
        ("gpt_bigcode", {"pad_key_length": True, "validate_runner_input": True, "summary_first_dropout": 0.1}),
        ("phi3", {"full_attn_mod": 1, "attention_bias": False, "lm_head_bias": False}),
        ("starcoder2", {"norm_type": "layer_norm", "mlp_type": "default"}),
    ],
)
def test_entries_of_public_models_that_leave_scores_alone(tmp_path, case, entries):
    tiny.save(tmp_path, case)
    rewrite(tmp_path, **entries)
    assert open_model(str(tmp_path)).layer(1).layer == 1


@pytest.mark.parametrize("family", families.FAMILIES)
def test_every_entry_of_a_configuration_is_accounted_for(family):
    """A new option in Transformers' own configuration classes has to be read or declared harmless."""
    fields = {field.name for field in dataclasses.fields(CONFIG_MAPPING[family])}
    about = {name for name in fields if unsupported.ABOUT_SCORES.search(name) and not name.startswith("_")}
    known = families.FAMILIES[family].options | set(unsupported.AT_VALUE) | {"add_cross_attention"}  # refused if set
    assert {name for name in about - known if not unsupported.HARMLESS.fullmatch(name)} == set()


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("t5", "relative-position bias"),
        ("deberta-v2", "relative positions"),
        ("deepseek_v2", "latent attention"),
        ("deepseek_v3", "latent attention"),
        ("qwen3_next", "gated or linear"),
        ("rwkv", "gated or linear"),
        ("mamba", "state-space"),
        ("falcon_h1", "state-space"),
        ("gpt_oss", "sinks"),
        ("whisper", "another model or modality"),
    ],
)
def test_other_architectures_are_refused_by_name(tmp_path, family, reason):
    CONFIG_MAPPING[family]().save_pretrained(tmp_path)
    tiny.build("gpt2").base_model.save_pretrained(tmp_path / "weights")
    (tmp_path / "weights" / "model.safetensors").rename(tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=f"{family} are not supported: it has .*{reason}"):
        open_model(str(tmp_path))


def test_no_architecture_is_accepted_unproven():
    for family in set(CONFIG_MAPPING) - set(families.FAMILIES):
        with pytest.raises(InputError, match="not supported"):
            families.family_of(family)
    assert set(unsupported.REASONS) & set(families.FAMILIES) == set()
    assert set(unsupported.REASONS) - set(CONFIG_MAPPING) == set()


# Tensors that do not fit ----------------------------------------------------------------------------------------------


def change_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
    return open_model(str(folder))


Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update({Q: t[Q][:-12].clone()}), r"q_proj.weight has shape \(36, 48\) .* \(48, 48\)"),
        # Gated attention doubles the width of the query projection (TransformerLens#1652).
        (lambda t: t.update({Q: torch.cat([t[Q], t[Q]])}), r"has shape \(96, 48\)"),
        (lambda t: t.pop(Q), "lack model.layers.1.self_attn.q_proj.weight"),
        (lambda t: t.update({Q.replace("weight", "bias"): torch.zeros(48)}), "q_proj.bias"),
        (lambda t: t.update({Q.replace("q_proj", "q_norm"): torch.ones(12)}), "q_norm.weight"),
        (lambda t: t.update({Q.replace("q_proj.weight", "sinks"): torch.ones(4)}), "sinks"),
        (lambda t: t.update({Q.replace("weight", "qweight"): t.pop(Q).to(torch.int32)}), "qweight .* quantised"),
        (lambda t: t.update({f"{Q}.absmax": torch.ones(4)}), "absmax .* quantised"),
        (lambda t: t.update({Q: t[Q].to(torch.int8)}), "stored as I8: quantised"),
        (lambda t: t.update({Q: t[Q].to(torch.float8_e4m3fn)}), "stored as F8_E4M3: quantised"),
        (lambda t: t[Q].__setitem__((3, 5), torch.nan), f"{Q} holds NaN"),
        (lambda t: t[Q].__setitem__((3, 5), torch.inf), f"{Q} holds infinity"),
        (lambda t: t[Q.replace("q_", "k_")].__setitem__((0, 0), -torch.inf), "k_proj.weight holds infinity"),
    ],
)
def test_tensors_at_odds_with_the_configuration(tmp_path, change, message):
    model = change_tensors(tiny.save(tmp_path, "llama"), change)
    with pytest.raises(InputError, match=message):
        model.layer(1)


def test_buffers_of_older_versions_are_left_alone(tmp_path):
    def add(tensors):
        tensors["transformer.h.1.attn.bias"] = torch.ones(1, 1, 8, 8).tril()
        tensors["transformer.h.1.attn.masked_bias"] = torch.tensor(-1e4)

    assert change_tensors(tiny.save(tmp_path, "gpt2"), add).layer(1).wq.shape == (4, 12, 48)


def assert_same(one, other):
    """Two layers are equal in every field."""
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if dataclasses.is_dataclass(a):
            assert_same(a, b)
        elif isinstance(a, torch.Tensor):
            assert torch.equal(a, b), field.name
        else:
            assert a == b, field.name
