"""Query and key tensors by ranges: the same values as from a file, few bytes, and every fault of the road."""

import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.weights import tiny

from ci import hub as small_hub
from qkspectra.errors import InputError
from qkspectra.weights import families, hub, open_model, ranges, remote, sources
from qkspectra.weights.remote import RemoteTensors

NAME = "someone/tiny"
FILE = "model.safetensors"


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """Waits take no time, and are written down."""
    waited = []
    monkeypatch.setattr("time.sleep", waited.append)
    return waited


@pytest.fixture(scope="session")
def neox(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("neox"), "gpt_neox", hidden_size=256)


@pytest.fixture(scope="session")
def grouped(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("grouped"), "llama-grouped", hidden_size=384)


def shard(folder, into):
    """Queries in one file, everything else in another, as an index says."""
    tensors = load_file(folder / FILE)
    places = {name: f"model-0000{1 if 'q_proj' in name else 2}-of-00002.safetensors" for name in tensors}
    for file in sorted(set(places.values())):
        save_file({n: t for n, t in tensors.items() if places[n] == file}, into / file, {"format": "pt"})
    (into / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (into / "config.json").write_text((folder / "config.json").read_text())


def same_layers(weights, folder):
    local = open_model(str(folder))
    for layer in range(local.layout.n_layers):
        theirs, ours = local.layer(layer), weights.layer(layer)
        for part in ("wq", "wk", "bq", "bk"):
            expected, found = getattr(theirs, part), getattr(ours, part)
            assert (expected is None and found is None) or torch.equal(expected, found)
    return True


@pytest.mark.parametrize("case", tiny.CASES)
def test_what_a_layer_will_read_is_known_beforehand(case):
    class Recorded:
        def __init__(self, tensors):
            self.tensors, self.asked = tensors, []

        def names(self):
            return list(self.tensors)

        def shape(self, name):
            return tuple(self.tensors[name].shape)

        def get(self, name, rows=None):
            self.asked.append(name)
            return self.tensors[name].double()

    model = tiny.build(case)
    tensors = Recorded({name: tensor.detach() for name, tensor in model.state_dict().items()})
    families.read_layer(model.config, tensors, 1)
    layout = families.model_layout(model.config)
    assert families.read_names(model.config, tensors, 1, layout) == tensors.asked != []


def test_layers_are_those_of_the_file_and_little_else_is_fetched(server, neox, grouped):
    """Bytes of the queries and keys, or of the fused projection that holds them, and at most 2% more."""
    for folder, parts in ((neox, ("query_key_value",)), (grouped, ("q_proj", "k_proj"))):
        name = f"someone/{folder.name}"
        server.sent.clear()
        server.put(name, folder)
        weights = open_model(name, ranges=True)
        assert same_layers(weights, folder)
        tensors = load_file(folder / FILE)
        needed = sum(t.nbytes for n, t in tensors.items() if any(part in n for part in parts))
        assert needed < server.sent[FILE] <= 1.02 * needed
        assert not (weights.source.folder / FILE).exists()


def test_connections_are_used_again(server, grouped):
    for step in range(12):
        server.put(NAME, grouped, f"step{step}")
    for step in range(12):
        assert same_layers(open_model(NAME, f"step{step}", ranges=True), grouped)
    assert len(server.requests) > 100
    assert server.connections <= 2 * (remote.CONNECTIONS + 1)  # the Hub's and the storage's


def test_shards(server, grouped, tmp_path):
    folder = tmp_path / "sharded"
    folder.mkdir()
    shard(grouped, folder)
    server.put(NAME, folder)
    assert same_layers(open_model(NAME, ranges=True), grouped)
    index = folder / "model.safetensors.index.json"
    moved = dict.fromkeys(json.loads(index.read_text())["weight_map"], "model-00002-of-00002.safetensors")
    index.write_text(json.dumps({"weight_map": moved}))
    server.put(NAME, folder)
    with pytest.raises(InputError, match=r"index.json places .*q_proj.weight in .* which does not hold it"):
        open_model(NAME, ranges=True)
    (folder / "model-00002-of-00002.safetensors").unlink()
    server.put(NAME, folder)
    with pytest.raises(InputError, match=r"lacks the shard model-00002-of-00002.safetensors"):
        open_model(NAME, ranges=True)


def test_any_order_and_any_size_of_pieces(server, grouped, monkeypatch):
    monkeypatch.setattr(remote, "PIECE", 10_000)
    monkeypatch.setattr(remote, "AHEAD", 0)
    server.put(NAME, grouped)
    weights, local = open_model(NAME, ranges=True), open_model(str(grouped))
    for layer in (1, 0, 0, 1):
        assert torch.equal(weights.layer(layer).wk, local.layer(layer).wk)
    name = "model.layers.1.self_attn.q_proj.weight"
    for rows in (1, 3, 10_000):
        assert torch.equal(weights.tensors.get(name, rows), local.tensors.get(name)[:rows])
        assert torch.equal(local.tensors.get(name, rows), local.tensors.get(name)[:rows])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_precisions(server, grouped, tmp_path, dtype):
    (tmp_path / "config.json").write_text((grouped / "config.json").read_text())
    save_file({name: tensor.to(dtype) for name, tensor in load_file(grouped / FILE).items()}, tmp_path / FILE)
    files = {name: (tmp_path / name).read_bytes() for name in ("config.json", FILE)}
    server.put(NAME, files)
    assert same_layers(open_model(NAME, ranges=True), tmp_path)


def test_one_content_hash_however_it_is_read(server, grouped):
    server.put(NAME, grouped)
    by_ranges = open_model(NAME, ranges=True)
    whole = open_model(NAME)
    assert by_ranges.source.content_hash == whole.source.content_hash == sources.resolve(str(grouped)).content_hash
    with pytest.raises(InputError, match="opened by ranges, which is for its operators alone: open it whole"):
        by_ranges.load()
    server.requests.clear()
    assert open_model(NAME, ranges=True).source.listed is None  # the cache has it by now
    assert not any(FILE in request for request in server.requests)


def test_the_token_stays_with_the_hub(server, grouped, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    server.put(NAME, grouped)
    open_model(NAME, ranges=True).layer(0)
    assert any("resolve" in request for request in server.authorised)
    assert any("storage" in request for request in server.requests)
    assert not any("storage" in request for request in server.authorised)


@pytest.mark.parametrize(
    ("fault", "waited"),
    [
        (small_hub.Fault(429, FILE, 2, {"Retry-After": "3"}), [4.0, 4.0]),
        (small_hub.Fault(500, FILE, 2), [1, 2]),
        (small_hub.Fault(429, FILE, 1, {"Retry-After": "3"}, "HEAD"), [4.0]),
        (small_hub.Fault(503, FILE, 2, method="HEAD"), [1, 2]),
        (small_hub.Fault("reset", FILE, 3), [1.0, 1.0, 1.0]),  # each of them gets somewhere
        (small_hub.Fault("short", FILE, 1), [1.0]),
        (small_hub.Fault("drip", FILE, 1), [1.0]),
    ],
    ids=lambda value: f"{value.kind}-{value.method}" if isinstance(value, small_hub.Fault) else "",
)  # fmt: skip
def test_what_passes_is_waited_for(server, grouped, monkeypatch, waits, fault, waited):
    monkeypatch.setattr(ranges, "SLOW", 0.05)
    server.put(NAME, grouped)
    listing = hub.listing(NAME, None)
    server.faults.append(fault)
    data = ranges.Ranges(listing, FILE).read(8, listing.files[FILE].size)
    assert data == server.commits[listing.commit][FILE][8:]
    assert waits == waited
    assert fault.times == 0


@pytest.mark.parametrize(
    ("kind", "method", "message"),
    [
        (404, "GET", "the Hub answers 404.*: try again later"),
        (404, "HEAD", "the Hub answers 404.*: try again later"),
        (403, "GET", "the Hub answers 403"),
        (429, "GET", "the Hub answers 429.*: try again later"),
        (500, "HEAD", "the Hub answers 500.*: try again later"),
        ("reset", "GET", r"broke off 5 times \(\w+\): try again later"),
        ("drip", "GET", r"broke off 5 times \(too slow, or too short\): try again later"),
        ("short", "GET", r"broke off 5 times \(too slow, or too short\): try again later"),
        ("long", "GET", "sends more than was asked for: read it whole, with --download"),
        ("whole", "GET", "answers bytes 0 to .* with 200 and no range: read it whole, with --download"),
        ("corrupt", "GET", "has a header that does not describe it: the file is damaged"),
    ],
)
def test_what_does_not_pass_is_one_line(server, grouped, monkeypatch, kind, method, message):
    monkeypatch.setattr(ranges, "SLOW", 0.05)
    monkeypatch.setattr(ranges, "LEAST", 1 << 30)
    server.put(NAME, grouped)
    server.faults.append(small_hub.Fault(kind, FILE, method=method))
    with pytest.raises(InputError, match=message) as caught:
        open_model(NAME, ranges=True).layer(0)
    assert "\n" not in str(caught.value)


def test_gated_weights_say_how_to_get_in(server, grouped):
    server.put(NAME, grouped)
    server.gated.add(NAME)
    with pytest.raises(InputError, match="gated: accept its terms"):
        open_model(NAME, ranges=True)


def test_an_address_that_expires_is_asked_for_again(server, grouped):
    server.put(NAME, grouped)
    server.lifetime = 5
    assert same_layers(open_model(NAME, ranges=True), grouped)


@pytest.mark.parametrize("change", [lambda data: data + b"x", lambda data: data[:-1] + b"x"])
def test_a_file_that_is_not_the_listed_one_is_refused(server, grouped, change):
    server.put(NAME, grouped)
    source = sources.resolve(NAME, ranges=True)
    files = server.commits[source.commit]
    files[FILE] = change(files[FILE])
    with pytest.raises(InputError, match=r"the Hub lists model.safetensors .* and serves .*: try again later"):
        RemoteTensors(source.listed, source.folder)


def spoil(header):
    """A file with the header given, over the right number of bytes."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + bytes(16)


@pytest.mark.parametrize(
    "data",
    [
        b"", bytes(7), struct.pack("<Q", 10**9) + bytes(100), spoil(b"{"), spoil(b"[]"), spoil({"a": {"dtype": "F32"}}),
        spoil({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 12]}}),
        spoil({"a": {"dtype": "F32", "shape": [5], "data_offsets": [0, 20]}}),
        spoil({"a": {"dtype": "F32", "shape": [3], "data_offsets": [4, 16]}}),
        spoil({"a": {"dtype": "F32", "shape": [-4], "data_offsets": [0, -16]}}),
    ],
)  # fmt: skip
def test_headers_that_do_not_fit_their_file(server, grouped, data):
    server.put(NAME, {"config.json": (grouped / "config.json").read_bytes(), FILE: data})
    with pytest.raises(InputError, match="has a header that does not describe it: the file is damaged"):
        open_model(NAME, ranges=True)


def test_pickles_alone_are_one_line(server, grouped):
    commit = server.put(NAME, {"config.json": b"{}", "pytorch_model.bin": b"x"}, "step1")
    with pytest.raises(InputError, match=f"holds pickled weights only at {commit[:12]}"):
        open_model(NAME, "step1", ranges=True)
    assert not any("pytorch_model" in request for request in server.requests)
