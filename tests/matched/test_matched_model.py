"""The model against a slow one, its schemes against each other, its bans against what they claim."""

from dataclasses import replace

import pytest
import torch
from tests.matched.conftest import small
from torch.nn import functional as F

from qkspectra.errors import InputError
from qkspectra.matched.model import (
    BANS,
    SCHEMES,
    Position,
    checked,
    flat,
    forward,
    initial,
    layer_of,
    rotary_of,
    unflat,
)
from qkspectra.operators import operator_of
from qkspectra.scores import rebuilt_scores
from qkspectra.toy.model import alibi_slopes


def slow_logits(recipe, p, sequence):
    """Logits of one sequence, token by token and pair by pair, from dense operators of every distance."""
    width, heads, d_head = recipe.width, recipe.heads, recipe.width // recipe.heads
    rows = {"rope": d_head, "partial": d_head // 4}.get(recipe.name, 0)
    p = {name: part.double() for name, part in p.items()}
    h = p["embed"][sequence]
    if recipe.name == "absolute":
        h = h + p["position"]
    for layer in range(recipe.layers):
        x = F.layer_norm(h, (width,))
        out = torch.zeros_like(h)
        for head in range(heads):
            mine = slice(head * d_head, (head + 1) * d_head)
            wq, wk, wv = (p[f"{layer}.{name}"][mine] for name in ("wq", "wk", "wv"))
            for i in range(len(h)):
                scores = []
                for j in range(i + 1):
                    turn = torch.eye(d_head, dtype=torch.float64)
                    for t in range(rows // 2):
                        angle = torch.tensor((i - j) * 10_000.0 ** (-2 * t / rows), dtype=torch.float64)
                        cos, sin = angle.cos(), angle.sin()
                        turn[2 * t : 2 * t + 2, 2 * t : 2 * t + 2] = torch.tensor([[cos, sin], [-sin, cos]])
                    score = (wq @ x[i]) @ turn @ (wk @ x[j]) / d_head**0.5
                    slope = alibi_slopes(heads)[head] if recipe.name == "alibi" else 0.0
                    scores.append(score - slope * (i - j))
                pattern = torch.stack(scores).softmax(0)
                out[i] += p[f"{layer}.wo"][:, mine] @ sum(a * (wv @ x[j]) for j, a in enumerate(pattern))
        h = h + out
        h = h + F.relu(F.layer_norm(h, (width,)) @ p[f"{layer}.up"].T) @ p[f"{layer}.down"].T
    return F.layer_norm(h, (width,)) @ p["unembed"].T


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_model_is_the_slow_model(scheme):
    recipe = small(scheme, width=64)
    p = initial(recipe)
    sequence = torch.randint(0, recipe.vocab, (recipe.context,), generator=torch.Generator().manual_seed(3))
    fast = forward(recipe, p, sequence[None], Position(recipe))[0]
    torch.testing.assert_close(fast.double(), slow_logits(recipe, p, sequence), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("ban", list(BANS))
def test_scores_are_those_of_the_extracted_operator(scheme, ban):
    """What `layer_of` hands to the rest of the library gives the very patterns that the model uses, banned or not."""
    if ban == "phase" and rotary_of(small(scheme)) is None:
        pytest.skip("nothing to ban")
    recipe = small(scheme, ban=ban)
    p, seen = initial(recipe), []
    tokens = torch.randint(0, recipe.vocab, (2, recipe.context), generator=torch.Generator().manual_seed(4))
    watched = forward(recipe, p, tokens, Position(recipe), lambda i, x, pattern: seen.append((x, pattern)))
    torch.testing.assert_close(forward(recipe, p, tokens, Position(recipe)), watched, atol=1e-4, rtol=1e-4)
    for i, (x, pattern) in enumerate(seen):
        rebuilt = rebuilt_scores(layer_of(recipe, p, i), x, recipe.mixture).softmax(-1)
        torch.testing.assert_close(pattern.double(), rebuilt, atol=1e-5, rtol=0)


def test_every_scheme_starts_from_the_same_tensors():
    starts = {scheme: initial(small(scheme, seed=7)) for scheme in SCHEMES}
    for scheme, start in starts.items():
        assert start.keys() - starts["rope"].keys() == ({"position"} if scheme == "absolute" else set())
        for name, part in starts["rope"].items():
            assert torch.equal(start[name], part), (scheme, name)
    assert not torch.equal(initial(small(seed=8))["0.wq"], starts["rope"]["0.wq"])
    assert len({float(part.flatten()[0]) for part in starts["absolute"].values()}) == len(starts["absolute"])


def test_a_scheme_changes_what_the_model_says_and_nothing_else_does():
    recipe = {scheme: small(scheme) for scheme in SCHEMES}
    tokens = torch.randint(0, 300, (1, 16), generator=torch.Generator().manual_seed(0))
    said = {s: forward(r, initial(r), tokens, Position(r)) for s, r in recipe.items()}
    for scheme in SCHEMES[1:]:
        assert not torch.allclose(said["rope"][:, 2:], said[scheme][:, 2:], atol=1e-3), scheme
    torch.testing.assert_close(said["rope"][:, 0], said["none"][:, 0])  # no distance yet


def test_only_a_quarter_of_the_rows_turns():
    full, partial = (operator_of(layer_of(r, initial(r), 0)) for r in (small(), small("partial")))
    assert full.rotary.pairs.numel() == 16
    assert partial.rotary.pairs.flatten().tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(full.wq, partial.wq)


@pytest.mark.parametrize("ban", ["phase", "symmetric"])
def test_bans_leave_what_they_claim(ban):
    """Without phase a score is even in the distance; without antisymmetric part the static operator is symmetric."""
    layer = replace(layer_of(small(), initial(small()), 0), causal=False)
    mixture = small(ban=ban).mixture
    pair = torch.randn(1, 2, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def score(distance, tokens):  # the first token of `tokens` asks, `distance` after the second
        order = tokens.flip(1) if distance >= 0 else tokens
        places = torch.tensor([0, abs(distance)])
        both = rebuilt_scores(layer, order, mixture, places)[0]
        return both[:, 1, 0] if distance >= 0 else both[:, 0, 1]

    if ban == "phase":
        torch.testing.assert_close(score(3, pair), score(-3, pair))
        assert not torch.allclose(score(3, pair), score(3, pair.flip(1)))
    else:
        static = torch.zeros(2, dtype=torch.int64)
        both = rebuilt_scores(layer, pair, mixture, static)[0]
        torch.testing.assert_close(both, both.mT)
        assert not torch.allclose(score(3, pair), score(-3, pair))  # the phase is free


def test_rows_are_there_and_back():
    recipe = small("absolute")
    p = initial(recipe)
    again = unflat(recipe, flat(p))
    assert all(torch.equal(p[name], again[name]) for name in p)
    with pytest.raises(InputError, match="no parameters of this model"):
        unflat(small("rope"), flat(p))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "alibi", "ban": "phase"}, "no phase to ban"),
        ({"before": "alibi", "branch": 8}, "not within the 8 steps"),
        ({"before": "absolute", "branch": 4}, "lacks what 'rope' needs"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        checked(small(**changes))
