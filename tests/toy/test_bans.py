"""Every ban against dense operators and against its own claim."""

import math

import pytest
import torch
from torch import Tensor

from qkspectra.errors import InputError
from qkspectra.operators import QKOperator
from qkspectra.spectrum import Spectrum, measure
from qkspectra.toy.bans import BANS, SCHEMES, ban_of, real_eigenvalues
from qkspectra.toy.model import (
    ModelConfig,
    Position,
    alibi_slopes,
    effective,
    forward,
    initial,
    phase_measures,
    rotary_angles,
    unflatten,
)

PAIRS = [(scheme, ban.name) for scheme in SCHEMES for ban in BANS.values() if scheme == "rope" or not ban.needs_phase]


def config_of(scheme: str, ban: str, **sizes: int) -> ModelConfig:
    return ModelConfig(scheme, (ban, "none"), **{"d_model": 24, "heads": 3, "d_head": 8, "length": 10, **sizes})


def theta_of(config: ModelConfig, seeds: int = 2) -> Tensor:
    """Parameters away from their initial scale, so that nothing holds by accident of the initialisation."""
    theta = initial(config, range(seeds))
    return theta + 0.2 * torch.randn(theta.shape, generator=torch.Generator().manual_seed(5))


def measured(config: ModelConfig, theta: Tensor) -> Spectrum:
    wq, wk, rotary = effective(config, theta, 0)
    return measure(QKOperator(wq.flatten(0, 1), wk.flatten(0, 1), rotary=rotary))


def dense_parts(config: ModelConfig, theta: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """`Re M_t` and `Im M_t` of the unconstrained weights as `d_model x d_model` matrices, from the definition."""
    own = unflatten(config, theta.double())
    wq, wk = own["0.wq"], own["0.wk"]
    real, imaginary = [], []
    for t in range(config.d_head // 2):
        aq, bq, ak, bk = wq[:, :, 2 * t], wq[:, :, 2 * t + 1], wk[:, :, 2 * t], wk[:, :, 2 * t + 1]
        real.append(aq[..., :, None] * ak[..., None, :] + bq[..., :, None] * bk[..., None, :])
        imaginary.append(aq[..., :, None] * bk[..., None, :] - bq[..., :, None] * ak[..., None, :])
    return real, imaginary


def part(m: Tensor, sign: int) -> Tensor:
    return (m + sign * m.mT) / 2


# What each channel ban makes of Re M_t and Im M_t, said independently of the mixtures.
CLAIMS = {
    "none": (lambda r: r, lambda i: i),
    "scale-control": (lambda r: r / math.sqrt(2), lambda i: i / math.sqrt(2)),
    "symmetric": (lambda r: part(r, 1), lambda i: i),
    "antisymmetric": (lambda r: part(r, -1), lambda i: i),
    "phase": (lambda r: r, lambda i: 0 * i),
    "symmetric-phase": (lambda r: part(r, 1), lambda i: 0 * i),
    "antisymmetric-phase": (lambda r: part(r, -1), lambda i: 0 * i),
    "static": (lambda r: 0 * r, lambda i: i),
}


@pytest.mark.parametrize(("scheme", "ban"), [pair for pair in PAIRS if pair[1] in CLAIMS])
def test_channel_bans_equal_the_dense_operator_they_claim(scheme: str, ban: str) -> None:
    """At every offset, `M(Delta)` of the effective rows is the claimed recombination of the dense parts."""
    config = config_of(scheme, ban)
    theta = theta_of(config)
    real, imaginary = dense_parts(config, theta)
    on_real, on_imaginary = CLAIMS[ban]
    wq, wk, rotary = effective(config, theta, 0)
    op = QKOperator(wq.flatten(0, 1), wk.flatten(0, 1), rotary=rotary)
    size = max(part.abs().max().item() for part in real)
    for delta in (0, 1, 7):
        angles = rotary_angles(config)[1].double() * (delta if scheme == "rope" else 0)
        wanted = sum(
            on_real(r) * angle.cos() + on_imaginary(i) * angle.sin()
            for r, i, angle in zip(real, imaginary, angles, strict=True)
        )
        turned = op.relative(delta)
        dense = (turned.wq.mT @ turned.wk).unflatten(0, wanted.shape[:2])
        torch.testing.assert_close(dense, wanted, rtol=0, atol=1e-6 * size)


@pytest.mark.parametrize(("scheme", "ban"), PAIRS)
def test_model_scores_are_those_of_the_effective_operator(scheme: str, ban: str) -> None:
    """The patterns of the running float32 model against a dense, loop-built softmax of `x_i M(i - j) x_j`."""
    config = config_of(scheme, ban)
    theta = theta_of(config)
    tokens = torch.randint(config.vocab, (2, 3, config.length), generator=torch.Generator().manual_seed(0))
    patterns = []
    forward(config, unflatten(config, theta), tokens, Position(config), lambda layer, pattern: patterns.append(pattern))
    own = unflatten(config, theta.double())
    wq, wk, rotary = effective(config, theta, 0)
    for seed in range(2):
        h = own["embed"][seed][tokens[seed]] + (own["position"][seed] if scheme == "absolute" else 0)
        x = (h - h.mean(-1, keepdim=True)) / (h.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
        op = QKOperator(wq[seed], wk[seed], rotary=rotary)
        scores = torch.full((3, config.heads, config.length, config.length), -torch.inf, dtype=torch.float64)
        for i in range(config.length):
            for j in range(i + 1):
                turned = op.relative(i - j)
                m = turned.wq.mT @ turned.wk
                scores[:, :, i, j] = torch.einsum("bd,hde,be->bh", x[:, i], m, x[:, j]) / math.sqrt(config.d_head)
                if scheme == "alibi":
                    scores[:, :, i, j] -= alibi_slopes(config.heads).double() * (i - j)
        torch.testing.assert_close(patterns[0][seed].double(), scores.softmax(-1), rtol=0, atol=2e-5)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("ban", "antisymmetric_energy", "eigen_rotation"),
    [
        ("symmetric", 0, 0),
        ("rank-symmetric", 0, 0),
        ("semidefinite", 0, 0),
        ("antisymmetric", 1, 1),
        ("rank-antisymmetric", 1, 1),
        ("real-spectrum", None, 0),
        ("none", None, None),
        ("rank-control", None, None),
        ("whitening-control", None, None),
        ("normal", None, None),
    ],
)
def test_static_bans_show_in_the_spectrum_and_controls_do_not(
    scheme: str, ban: str, antisymmetric_energy: float | None, eigen_rotation: float | None
) -> None:
    config = config_of(scheme, ban)
    spectrum = measured(config, theta_of(config))
    for values, claim in (
        (spectrum.antisymmetric_energy, antisymmetric_energy),
        (spectrum.eigen_rotation, eigen_rotation),
    ):
        if claim is None:
            assert ((values > 0.02) & (values < 0.98)).all()
        else:
            torch.testing.assert_close(values, torch.full_like(values, claim), rtol=0, atol=1e-7)


def test_normal_is_normal_with_the_stated_eigenvalues() -> None:
    for d_head in (2, 4, 6, 8, 16):
        config = config_of("absolute", "normal", d_head=d_head)
        theta = theta_of(config)
        spectrum = measured(config, theta)
        assert spectrum.henrici.max() < 1e-6
        assert spectrum.real_eigenvalues.tolist() == [real_eigenvalues(d_head)] * (2 * config.heads)
        wq, wk, _ = effective(config, theta, 0)
        m = wq.mT @ wk
        torch.testing.assert_close(m @ m.mT, m.mT @ m, rtol=0, atol=1e-10 * m.square().sum().item())
        rank = torch.linalg.matrix_rank(m)
        assert (rank == d_head).all()


def test_normal_eigenvalues_are_the_parameters() -> None:
    config = config_of("rope", "normal")
    theta = theta_of(config, 1)
    own = unflatten(config, theta.double())
    real = real_eigenvalues(config.d_head)
    values = own["0.eigenvalues"][0] * math.sqrt(config.d_model)
    scale = own["0.wq"][0].square().sum((-2, -1)) / config.d_head
    pairs = torch.complex(values[:, real::2], values[:, real + 1 :: 2])
    wanted = scale[:, None] * torch.cat([values[:, :real] + 0j, pairs, pairs.conj()], -1)
    found = measured(config, theta).eigenvalues
    for a, b in zip(found, wanted, strict=True):
        distance = (a[:, None] - b).abs()
        assert distance.amin(0).max() < 1e-9
        assert distance.amin(1).max() < 1e-9


def test_real_spectrum_bans_nothing_else() -> None:
    """An operator with a real spectrum is its own image: the ban reaches every one of them."""
    config = config_of("absolute", "real-spectrum")
    theta = theta_of(config)
    spectrum = measured(config, theta)
    assert (spectrum.henrici > 0.3).all()
    assert (spectrum.antisymmetric_energy > 0.1).all()
    wq, wk, _ = effective(config, theta, 0)
    again_q, again_k = BANS["real-spectrum"].weights({"wq": wq, "wk": wk})
    torch.testing.assert_close(again_q.mT @ again_k, wq.mT @ wk, rtol=0, atol=1e-10)


def test_semidefinite_has_no_negative_direction() -> None:
    config = config_of("alibi", "semidefinite")
    assert measured(config, theta_of(config)).content_sign.min() > 1 - 1e-9


def test_rope_phase_bans_leave_no_phase_and_static_leaves_nothing_else() -> None:
    for ban in ("phase", "symmetric-phase", "antisymmetric-phase"):
        assert odd_energy(config_of("rope", ban)) < 1e-12
    assert odd_energy(config_of("rope", "static")) > 1 - 1e-12
    assert 0.3 < odd_energy(config_of("rope", "symmetric")) < 0.9


@pytest.mark.parametrize("ban", sorted(CLAIMS))
def test_phase_measures_add_up_channels_before_measuring(ban: str) -> None:
    config = config_of("rope", ban)
    theta = theta_of(config)
    real, imaginary = dense_parts(config, theta)
    on_real, on_imaginary = CLAIMS[ban]
    even = sum(on_real(r).square().sum((-2, -1)) for r in real)
    odd = sum(on_imaginary(i).square().sum((-2, -1)) for i in imaginary)
    straight = sum(part(on_imaginary(i), 1).square().sum((-2, -1)) for i in imaginary)
    wq, wk, rotary = effective(config, theta, 0)
    found = phase_measures(QKOperator(wq.flatten(0, 1), wk.flatten(0, 1), rotary=rotary), config.d_head // 2)
    torch.testing.assert_close(found["phase_energy"], (odd / (even + odd)).flatten(), rtol=0, atol=1e-6)
    if (odd == 0).all():
        assert found["phase_symmetric_share"].isnan().all()
    else:
        torch.testing.assert_close(found["phase_symmetric_share"], (straight / odd).flatten(), rtol=0, atol=1e-6)


def odd_energy(config: ModelConfig) -> float:
    """Share of the dense energy that is odd in the offset, from `M(Delta)` and `M(-Delta)` at many offsets."""
    wq, wk, rotary = effective(config, theta_of(config), 0)
    op = QKOperator(wq.flatten(0, 1), wk.flatten(0, 1), rotary=rotary)
    even = odd = 0.0
    for delta in range(1, 40):
        forwards, backwards = op.relative(delta), op.relative(-delta)
        a, b = forwards.wq.mT @ forwards.wk, backwards.wq.mT @ backwards.wk
        even += (a + b).square().sum().item()
        odd += (a - b).square().sum().item()
    return odd / (even + odd)


@pytest.mark.parametrize("ban", [ban.name for ban in BANS.values()])
def test_every_parameter_of_a_ban_is_used(ban: str) -> None:
    config = config_of("rope", ban)
    theta = theta_of(config).requires_grad_()
    tokens = torch.randint(config.vocab, (2, 3, config.length), generator=torch.Generator().manual_seed(0))
    # A function of the logits that is not constant on the normalised residual stream.
    forward(config, unflatten(config, theta), tokens, Position(config)).square().sum().backward()
    assert theta.grad is not None
    for name, gradient in unflatten(config, theta.grad).items():
        assert gradient.abs().amax(tuple(range(1, gradient.ndim))).min() > 0, name


def test_bad_bans_are_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="unknown position scheme 'sinus'"):
        ban_of("none", "sinus")
    with pytest.raises(InputError, match="unknown ban 'nothing': choose one of none, "):
        ban_of("nothing", "rope")
    with pytest.raises(InputError, match="'phase' has no meaning under alibi"):
        ban_of("phase", "alibi")
    with pytest.raises(InputError, match="head size 7 is odd"):
        ModelConfig("rope", d_head=7)
    with pytest.raises(InputError, match="blocks of up to length/2 unique tokens"):
        ModelConfig("rope", length=24, vocab=8)
    with pytest.raises(InputError, match="below the head size"):
        ModelConfig("rope", d_model=8)
