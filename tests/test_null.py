"""The reduced null has the distribution of the one drawn in full, and its scores are in its own standard deviations."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from qkspectra.null import SCORED, closed_forms, null_operator, null_samples, population_z, z_scores
from qkspectra.operators import QKOperator
from qkspectra.spectrum import MEASURES, measure
from qkspectra.weights.layout import Rotary

ROTARY = Rotary(torch.tensor([[0, 1], [2, 3]]), torch.tensor([1.0, 0.1], dtype=torch.float64))
SHAPES = [(6, 40), (6, 9), (6, 6), (6, 4)]  # Bartlett on both sides; a thin outside; none; fewer columns than rows


def full_operator(d_head: int, d_model: int, samples: int, seed: int) -> QKOperator:
    rng = np.random.default_rng(seed)
    wq, wk = (torch.from_numpy(rng.standard_normal((samples, d_head, d_model))) for _ in range(2))
    return QKOperator.from_rows(wq, wk, ROTARY)


@pytest.mark.parametrize(("d_head", "d_model"), SHAPES)
def test_reduction_keeps_every_measure_exactly(d_head, d_model):
    """The map from full to reduced rows, done by QR on given rows: what remains to be shown is its distribution."""
    op = full_operator(d_head, d_model, 3, 0)
    basis, factor = torch.linalg.qr(op.wk.mT, mode="complete")
    reduced = replace(op, wq=op.wq @ basis, wk=factor.mT)
    for name in MEASURES:
        np.testing.assert_allclose(getattr(measure(reduced), name), getattr(measure(op), name), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("d_head", "d_model"), SHAPES)
def test_grams_and_core_have_the_distribution_of_the_full_null(d_head, d_model):
    reduced, full = null_operator(d_head, d_model, 4000, 1), full_operator(d_head, d_model, 4000, 2)
    assert reduced.wq.shape == (4000, d_head, min(d_model, 2 * d_head))
    for ours, theirs in zip((reduced.core(), *reduced.grams()), (full.core(), *full.grams()), strict=True):
        entries = [(0, 0), (d_head - 1, d_head - 1), (1, 0), (0, 1)]
        for i, j in entries:
            assert stats.ks_2samp(ours[:, i, j].numpy(), theirs[:, i, j].numpy()).pvalue > 1e-3, (i, j)
        assert stats.ks_2samp(torch.linalg.det(ours).numpy(), torch.linalg.det(theirs).numpy()).pvalue > 1e-3


@pytest.mark.parametrize(("d_head", "d_model"), SHAPES)
def test_measures_have_the_distribution_of_the_full_null(d_head, d_model):
    reduced = null_samples(d_head, d_model, 3000, seed=3, rotary=ROTARY)
    full = measure(full_operator(d_head, d_model, 3000, 4))
    for name in set(MEASURES) - {"bias_norm"}:
        assert stats.ks_2samp(getattr(reduced, name).numpy(), getattr(full, name).numpy()).pvalue > 1e-3, name


def test_a_wrong_number_of_freedoms_would_be_seen():
    """The comparison above can fail: one column fewer in ten is told apart."""
    reduced, full = null_samples(6, 9, 3000, seed=3), measure(full_operator(6, 10, 3000, 4))
    assert stats.ks_2samp(reduced.henrici.numpy(), full.henrici.numpy()).pvalue < 1e-6


def test_heads_of_a_group_share_their_key_rows():
    op = null_operator(4, 20, 12, seed=0, group=3)
    grouped = op.wk.view(4, 3, *op.wk.shape[1:])
    assert torch.equal(grouped[:, 0], grouped[:, 1])
    assert torch.equal(grouped[:, 0], grouped[:, 2])
    assert not torch.equal(grouped[0], grouped[1])
    assert len(op.wq.flatten(1).unique(dim=0)) == 12
    with pytest.raises(ValueError, match="groups of 5"):
        null_operator(4, 20, 12, seed=0, group=5)


def test_samples_are_seeded_and_drawn_once_per_shape():
    first = null_samples(5, 30, 64, seed=7)
    assert null_samples(5, 30, 64, seed=7) is first
    other = Rotary(torch.tensor([[4, 1], [0, 3]]), torch.tensor([0.5, 0.2], dtype=torch.float64))
    assert null_samples(5, 30, 64, seed=7, rotary=other) is null_samples(5, 30, 64, seed=7, rotary=ROTARY)
    assert not torch.equal(null_samples(5, 30, 64, seed=8).eigen_rotation, first.eigen_rotation)
    torch.testing.assert_close(measure(null_operator(5, 30, 64, seed=7)).eigenvalues, first.eigenvalues)


@pytest.mark.parametrize(("d_head", "d_model"), [(32, 512), (32, 64), (32, 32)])
def test_closed_forms_of_the_factored_null(d_head, d_model):
    expected, null = closed_forms(d_head, d_model), null_samples(d_head, d_model, 200, seed=1)
    assert null.henrici.mean().item() == pytest.approx(expected["henrici"], rel=0.01)
    error = null.antisymmetric_energy.std().item() / 200**0.5
    assert null.antisymmetric_energy.mean().item() == pytest.approx(expected["antisymmetric_energy"], abs=4 * error)


def test_eigen_rotation_of_the_factored_null_tends_to_two_over_pi():
    """At a fixed ratio, with a correction in 1 / d_head that two sizes remove up to its next order."""
    small, large = (
        null_samples(n, 8 * n, samples, seed=2).eigen_rotation.mean() for n, samples in ((16, 800), (64, 200))
    )
    limit = closed_forms(64, 512)["eigen_rotation"]
    assert large.item() < limit - 0.02
    assert (64 * large - 16 * small).item() / 48 == pytest.approx(limit, abs=0.015)


def test_phase_of_the_null_takes_half_of_the_energy():
    null = null_samples(4, 64, 4000, seed=0, rotary=ROTARY)
    for values in (null.phase_energy, null.phase_symmetric_share):
        assert values.mean().item() == pytest.approx(1 / 2, abs=4 * values.std().item() / 4000**0.5 + 1 / (2 * 64))


def test_scores_of_the_null_against_itself_have_mean_zero_and_unit_deviation():
    null = null_samples(6, 40, 2000, seed=0)
    scores = z_scores(null, null)
    assert tuple(scores) == SCORED
    for name in SCORED:
        assert scores[name].mean().item() == pytest.approx(0, abs=1e-9)
        assert scores[name].std().item() == pytest.approx(1)
    symmetric = measure(QKOperator.from_rows(torch.eye(6)[None], torch.eye(6)[None]))
    assert z_scores(symmetric, null)["eigen_rotation"].item() == pytest.approx(
        -null.eigen_rotation.mean().item() / null.eigen_rotation.std().item()
    )


def test_population_scores_know_that_a_group_counts_less_than_its_heads():
    """Of a measure that a group shares entirely, only the groups are independent draws."""
    shared = torch.from_numpy(np.random.default_rng(0).standard_normal(3000)).repeat_interleave(4)
    populations = shared.view(100, 120)
    honest = torch.stack([population_z(heads, shared, group=4) for heads in populations])
    blind = torch.stack([population_z(heads, shared) for heads in populations])
    assert honest.std().item() == pytest.approx(1, abs=0.25)
    assert blind.std().item() == pytest.approx(2, abs=0.5)
