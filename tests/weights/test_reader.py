"""Tensors of a stored model, one at a time."""

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.weights import tiny, tiny_gguf

from qkspectra.errors import InputError
from qkspectra.operators import operator_of
from qkspectra.verify import agreement
from qkspectra.weights import families, open_model
from qkspectra.weights.gguf import GGUFTensors
from qkspectra.weights.reader import INDEX, open_tensors

Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path):
    return tiny.save(tmp_path, "llama-grouped")


def shard(folder, index):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    save_file({"other": torch.zeros(1)}, folder / "b.safetensors")
    places = dict.fromkeys(tensors, "a.safetensors") | index
    (folder / INDEX).write_text('{"weight_map": ' + str(places).replace("'", '"') + "}")
    return open_tensors(folder)


def test_values_are_the_stored_ones(folder):
    stored, tensors = load_file(folder / "model.safetensors"), open_tensors(folder)
    assert set(tensors.names()) == set(stored)
    for name in tensors.names():
        assert tensors.shape(name) == tuple(stored[name].shape)
        assert tensors.get(name).dtype == torch.float64
        assert torch.equal(tensors.get(name), stored[name].double())


def test_a_shard_is_opened_only_for_its_own_tensors(folder):
    tensors = shard(folder, {"other": "b.safetensors"})
    (folder / "b.safetensors").write_bytes(b"damaged")
    assert tensors.get(Q).shape == (48, 48)
    with pytest.raises(InputError, match=r"b.safetensors is truncated or damaged .*: fetch it again"):
        tensors.get("other")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({Q: "b.safetensors"}, "places .*q_proj.weight in b.safetensors, which does not hold it"),
        ({Q: "c.safetensors"}, "lacks the shard c.safetensors"),
        ({Q: "../c.safetensors"}, r"outside its folder: \.\./c.safetensors"),
    ],
)
def test_an_index_that_does_not_fit(folder, index, message):
    with pytest.raises(InputError, match=message):
        shard(folder, index).get(Q)


@pytest.mark.parametrize("text", ["{", "[]", '{"metadata": {}}'])
def test_an_index_that_is_none(folder, text):
    (folder / INDEX).write_text(text)
    with pytest.raises(InputError, match="is not a safetensors index"):
        open_tensors(folder)


def test_shards_without_an_index(folder):
    save_file({"other": torch.zeros(1)}, folder / "b.safetensors")
    with pytest.raises(InputError, match="holds 2 safetensors files and no"):
        open_tensors(folder)


# GGUF -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["F32", "Q4_1", "Q8_0"])
def test_gguf_as_transformers_dequantises_it(tmp_path, kind):
    tiny_gguf.save(tmp_path / "tiny.gguf", kind=kind, hidden_size=96)
    model = open_model(str(tmp_path))
    own = model.load().state_dict()
    assert len(model.tensors.names()) == 2 * 3
    for name in model.tensors.names():
        assert torch.equal(model.tensors.get(name).float(), own[name])
    assert agreement(model, torch.float32).passed


def test_the_permutation_of_gguf_rows_is_seen_by_phases_alone(tmp_path):
    """llama.cpp reorders query and key rows alike (llama.cpp#22611): `M` stays, each frequency's share does not."""
    tiny_gguf.save(tmp_path / "tiny.gguf")
    model = open_model(str(tmp_path))
    kept = GGUFTensors(tmp_path / "tiny.gguf")
    kept._rotated = {}  # the rows as they lie in the file
    right, wrong = model.layer(0), families.read_layer(model.config, kept, 0)
    a, b = operator_of(right), operator_of(wrong)
    assert not torch.equal(right.wq, wrong.wq)
    torch.testing.assert_close(dense(a), dense(b))
    for t in range(4):
        phases = dense(a.phase_channel(t)), dense(b.phase_channel(t))
        assert (phases[0] - phases[1]).norm(dim=(1, 2)).min() > 0.5 * phases[0].norm(dim=(1, 2)).max()


def dense(operator):
    return operator.wq.mT @ operator.wk


def rewritten(source, target, **changes):
    """A GGUF file with entries of its header added, changed, or (with `None`) left out."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    extra = changes.pop("tensor", None)
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")) and changes.get(name, 0) is not None:
            writer.add_key_value(name, field.contents(), field.types[0])
    for name, value in changes.items():
        if value is not None:
            kind = gguf.GGUFValueType.STRING if isinstance(value, str) else gguf.GGUFValueType.FLOAT32
            writer.add_key_value(name, value, kind)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    if extra:
        writer.add_tensor(extra, torch.ones(4).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama.rope.scaling.factor": 4.0}, "sets llama.rope.scaling.factor"),
        ({"llama.attention.scale": 0.5}, "sets llama.attention.scale"),
        ({"tensor": "rope_freqs.weight"}, "sets rope_freqs.weight"),
        ({"tensor": "blk.0.attn_q_norm.weight"}, "sets blk.0.attn_q_norm.weight"),
        ({"llama.rope.freq_base": None}, "does not state llama.rope.freq_base"),
    ],
)
def test_gguf_that_transformers_would_run_otherwise(tmp_path, changes, message):
    tiny_gguf.save(tmp_path / "plain")
    rewritten(tmp_path / "plain", tmp_path / "tiny.gguf", **changes)
    with pytest.raises(InputError, match=message):
        open_model(str(tmp_path))


def test_gguf_of_another_architecture(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "gemma")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(InputError, match="of architecture gemma; of GGUF only llama is read"):
        open_model(str(tmp_path))
