import subprocess
import sys

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from qkspectra.errors import InputError
from qkspectra.pocket import corpus
from qkspectra.weights.catalogue import CATALOGUE

TOKENIZER = CATALOGUE["pocket-gpt2"].folder / "tokenizer.json"


def test_the_installed_package_holds_the_pinned_text():
    training, held_out = corpus.read(corpus.TRAINING), corpus.read(corpus.HELD_OUT)
    assert (len(training), len(held_out)) == (538, 37)
    assert not set(training) & set(held_out)


def test_held_out_text_is_not_in_the_training_files():
    """Copied code would make the held-out loss one of memory. Only the licence's header is everywhere."""
    training = "\n".join(corpus.read(corpus.TRAINING))
    bodies = [text.partition("limitations under the License.")[2] for text in corpus.read(corpus.HELD_OUT)]
    held_out = "".join(bodies)
    assert len(held_out) > 900_000
    starts = np.random.default_rng(0).integers(0, len(held_out) - 200, 50)
    assert sum(held_out[start : start + 200] in training for start in starts) <= 1


def test_every_byte_has_a_token_and_every_file_a_boundary(texts):
    tokenizer = corpus.train_tokenizer(texts, 300)
    assert tokenizer.get_vocab_size() == 300
    odd = "naïve\t\u2028 \N{SNOWMAN}"
    assert tokenizer.decode(tokenizer.encode(odd).ids) == odd
    ids = corpus.encode(tokenizer, texts)
    assert (ids == 0).sum() == len(texts)
    assert ids[0] == 0
    assert tokenizer.decode(ids.tolist()) == "".join(texts)


def test_the_tokenizer_is_the_same_every_time(texts):
    code = (
        "import sys; from qkspectra.pocket import corpus\n"
        "print(corpus.train_tokenizer(sys.stdin.read().split('@'), 300).to_str())"
    )
    run = subprocess.run([sys.executable, "-c", code], input="@".join(texts), capture_output=True, text=True)
    assert run.stdout.strip() == corpus.train_tokenizer(texts, 300).to_str()


def test_held_out_spans_come_from_the_text_and_from_the_seed_alone():
    spans = corpus.held_out(8, 32, 3, TOKENIZER)
    assert spans.shape == (8, 32)
    assert torch.equal(spans, corpus.held_out(8, 32, 3, TOKENIZER))
    assert not torch.equal(spans, corpus.held_out(8, 32, 4, TOKENIZER))
    text = "".join(corpus.read(corpus.HELD_OUT))
    decoded = Tokenizer.from_file(str(TOKENIZER)).decode(spans[0].tolist())
    assert decoded.strip("\ufffd") in text
    with pytest.raises(InputError, match="spans of 10000000"):
        corpus.held_out(1, 10_000_000, 0, TOKENIZER)


def test_another_version_of_the_package_is_refused(monkeypatch):
    monkeypatch.setattr(corpus, "version", lambda _: "5.23.0")
    corpus._read.cache_clear()
    with pytest.raises(InputError, match=r"5\.24\.0 and 5\.23\.0 is installed: install transformers==5\.24\.0"):
        corpus.read(corpus.HELD_OUT)


def test_changed_files_are_refused():
    with pytest.raises(InputError, match="have been changed"):
        corpus.read(corpus.Text(("generation/*.py",), corpus.HELD_OUT.sha256))
