"""Measures from `d_head`-sized matrices against the operator written out."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.oracle import dense

from qkspectra.errors import InputError
from qkspectra.operators import QKOperator
from qkspectra.spectrum import MEASURES, Spectrum, measure
from qkspectra.weights.layout import Rotary

SCALE_FREE = [name for name in MEASURES if name != "spectral_radius"]


def gaussian(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def rotary_of(d_rot: int) -> Rotary:
    t = torch.arange(d_rot // 2)
    return Rotary(torch.stack([t, t + d_rot // 2], 1), 10.0 ** -t.double())


def draw_operator(seed: int, heads: int, d_head: int, d_model: int) -> QKOperator:
    rotary = rotary_of(2 * (d_head // 2)) if d_head > 1 else None
    op = QKOperator.from_rows(
        gaussian(seed, heads, d_head, d_model), gaussian(seed + 1, heads, d_head, d_model), rotary
    )
    return replace(op, bq=gaussian(seed + 2, heads, d_head), bk=gaussian(seed + 3, heads, d_head))


operators = st.builds(draw_operator, st.integers(0, 2**20), st.integers(1, 3), st.integers(1, 8), st.integers(1, 14))
wide_operators = st.builds(
    draw_operator, st.integers(0, 2**20), st.integers(1, 3), st.integers(1, 6), st.integers(6, 14)
)


def same(x: Spectrum, y: Spectrum, names: list[str] = MEASURES, rel: float = 1e-6) -> None:
    for name in names:
        np.testing.assert_allclose(getattr(x, name), getattr(y, name), rtol=rel, atol=1e-7, err_msg=name)


@given(operators)
def test_eigenvalues_are_those_of_the_dense_operator_as_a_multiset(op):
    eigenvalues = measure(op).eigenvalues
    assert eigenvalues.dtype == torch.complex128
    for head in range(len(op.wq)):
        m = dense.operator(op.wq[head].numpy(), op.wk[head].numpy())
        scale = np.linalg.norm(op.wq[head]) * np.linalg.norm(op.wk[head])
        # With d_model > d_head the dense matrix has a large, ill-conditioned null space: its eigenvalues are only as
        # good as eps to the power 1/2 there, far better elsewhere.
        assert dense.multiset_distance(eigenvalues[head].numpy(), np.linalg.eigvals(m)) < 1e-7 * scale


@given(wide_operators)
def test_measures_are_those_of_the_dense_operator(op):
    spectrum = measure(op)
    d_head = op.wq.shape[1]
    for head in range(len(op.wq)):
        m = dense.operator(op.wq[head].numpy(), op.wk[head].numpy())
        values, overlaps = dense.eigen(m, d_head)
        size = np.abs(values).sum()
        assert spectrum.antisymmetric_energy[head] == pytest.approx(dense.antisymmetric_energy(m), abs=1e-12)
        assert spectrum.eigen_rotation[head] == pytest.approx(np.abs(values.imag).sum() / size, abs=1e-7)
        assert spectrum.content_sign[head] == pytest.approx(values.real.sum() / size, abs=1e-7)
        assert spectrum.real_eigenvalues[head] == np.sum(np.abs(values.imag) < 1e-7 * size)
        assert spectrum.henrici[head] == pytest.approx(dense.henrici(m), abs=1e-6)
        assert spectrum.spectral_radius[head] == pytest.approx(np.abs(values).max(), rel=1e-7)
        ours, theirs = dense.match(spectrum.eigenvalues[head].numpy(), values)
        np.testing.assert_allclose(spectrum.overlaps[head].numpy()[ours], overlaps[theirs], rtol=1e-4)
        assert spectrum.overlap_median[head] == np.sort(spectrum.overlaps[head].numpy())[(d_head - 1) // 2]
        assert (spectrum.overlaps[head] > 1 - 1e-9).all()
        bias = np.concatenate(
            [op.wq[head].numpy().T @ op.bk[head].numpy(), op.wk[head].numpy().T @ op.bq[head].numpy()]
        )
        bias_terms = math.hypot(np.linalg.norm(bias), float(op.bq[head] @ op.bk[head]))
        assert spectrum.bias_norm[head] == pytest.approx(bias_terms / np.linalg.norm(m))


@given(wide_operators)
def test_phase_measures_are_those_of_the_dense_channels(op):
    spectrum = measure(op)
    for head in range(len(op.wq)):
        if op.rotary is None:
            assert spectrum.phase_energy.isnan().all()
            continue
        real, phase = dense.channels(op.wq[head].numpy(), op.wk[head].numpy(), op.rotary.pairs.numpy())
        even, odd = (sum(np.sum(m**2) for m in parts) for parts in (real, phase))
        symmetric = sum(np.sum(((m + m.T) / 2) ** 2) for m in phase)
        assert spectrum.phase_energy[head] == pytest.approx(odd / (even + odd))
        assert spectrum.phase_symmetric_share[head] == pytest.approx(symmetric / odd)


@given(st.integers(0, 2**20), st.integers(2, 8))
def test_joint_rotation_of_rows_keeps_the_spectrum_and_changes_the_phase_split(seed, half):
    op = draw_operator(seed, 2, 2 * half, 4 * half)
    turn = torch.linalg.qr(gaussian(seed + 9, 2 * half, 2 * half)).Q
    turned = replace(op, wq=turn @ op.wq, wk=turn @ op.wk, bq=op.bq @ turn.mT, bk=op.bk @ turn.mT)
    before, after = measure(op), measure(turned)
    same(before, after, [name for name in MEASURES if not name.startswith("phase")])
    assert (before.phase_energy - after.phase_energy).abs().max() > 1e-9


def test_joint_permutation_of_rows_keeps_the_spectrum_and_the_phase_split_follows_the_pairs():
    """The half-split and the interleaved layout hold the same operator in another order of rows."""
    op = draw_operator(0, 3, 8, 20)
    order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
    shuffled = replace(op, wq=op.wq[:, order], wk=op.wk[:, order], bq=op.bq[:, order], bk=op.bk[:, order])
    wrong, right = (
        measure(shuffled),
        measure(replace(shuffled, rotary=replace(op.rotary, pairs=order.argsort()[op.rotary.pairs]))),
    )
    same(measure(op), right)
    same(measure(op), wrong, [name for name in MEASURES if not name.startswith("phase")])
    assert (measure(op).phase_energy - wrong.phase_energy).abs().min() > 1e-3


@given(wide_operators, st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_scale_changes_the_radius_alone(op, a, b):
    before, after = measure(op), measure(replace(op, wq=a * op.wq, wk=b * op.wk, bq=a * op.bq, bk=b * op.bk))
    same(before, after, SCALE_FREE)
    torch.testing.assert_close(after.spectral_radius, a * b * before.spectral_radius)


@pytest.mark.parametrize("d_head", [2, 8, 64])
@pytest.mark.parametrize(("sign", "value"), [(1, 0.0), (-1, 1.0)])
def test_symmetric_operators_measure_zero_and_antisymmetric_ones_one(sign, value, d_head):
    wq, d = gaussian(0, 5, d_head, 3 * d_head), gaussian(1, 5, d_head, d_head)
    spectrum = measure(QKOperator.from_rows(wq, (d + sign * d.mT) @ wq))
    for name in ("antisymmetric_energy", "eigen_rotation"):
        np.testing.assert_allclose(getattr(spectrum, name), value, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(spectrum.henrici, 0, atol=1e-6)
    np.testing.assert_allclose(spectrum.overlaps, 1, rtol=1e-9)
    assert (spectrum.real_eigenvalues == (d_head if sign == 1 else 0)).all()


def test_content_sign_of_definite_operators():
    wq = gaussian(0, 2, 4, 10)
    assert measure(QKOperator.from_rows(wq, wq)).content_sign.tolist() == pytest.approx([1, 1])
    assert measure(QKOperator.from_rows(wq, -wq)).content_sign.tolist() == pytest.approx([-1, -1])


def test_eigenvalues_are_complex_even_when_all_are_real():
    spectrum = measure(QKOperator.from_rows(torch.eye(3)[None], torch.eye(3)[None]))
    assert spectrum.eigenvalues.dtype == torch.complex128
    assert spectrum.overlaps.tolist() == [[1, 1, 1]]


def test_head_of_width_one():
    wq, wk = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0, -1.0]]])
    spectrum = measure(QKOperator.from_rows(wq, wk))
    assert spectrum.eigenvalues.tolist() == [[1 + 0j]]
    assert spectrum.overlap_median.tolist() == pytest.approx([50.0])  # |l|^2 |r|^2 = 10 * 5, l r = 1
    assert spectrum.henrici.tolist() == pytest.approx([math.sqrt(1 - 1 / 50)])
    assert (spectrum.eigen_rotation.item(), spectrum.content_sign.item(), spectrum.real_eigenvalues.item()) == (0, 1, 1)


def test_zero_operator_has_no_ratios():
    for wq in (torch.zeros(1, 4, 9), torch.eye(9)[None, :4]):
        spectrum = measure(QKOperator.from_rows(wq, torch.zeros(1, 4, 9), rotary_of(4)))
        for name in set(MEASURES) - {"real_eigenvalues", "spectral_radius"}:
            assert getattr(spectrum, name).isnan().all(), name
        assert spectrum.spectral_radius.tolist() == [0]
        assert spectrum.eigenvalues.tolist() == [[0] * 4]


def test_rank_deficient_head_measures_its_nonzero_eigenvalues():
    full = draw_operator(5, 2, 3, 12)
    padding = torch.zeros(2, 2, 12, dtype=torch.float64)
    wide = QKOperator.from_rows(torch.cat([full.wq, padding], 1), torch.cat([full.wk, gaussian(6, 2, 2, 12)], 1))
    before, after = measure(full), measure(wide)
    names = ["antisymmetric_energy", "eigen_rotation", "content_sign", "henrici", "spectral_radius", "overlap_median"]
    same(before, after, names)
    assert (after.real_eigenvalues - before.real_eigenvalues).tolist() == [2, 2]
    assert after.overlaps.isnan().sum(-1).tolist() == [2, 2]


def test_defective_operator_has_an_infinite_overlap():
    jordan = torch.tensor([[[1.0, 1.0], [0.0, 1.0]]])
    spectrum = measure(QKOperator.from_rows(torch.eye(2)[None], jordan))
    assert (spectrum.overlaps > 1e12).all()
    assert spectrum.eigen_rotation.item() == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_measured_in_double(dtype):
    wq, wk = gaussian(0, 2, 4, 30).to(dtype), gaussian(1, 2, 4, 30).to(dtype)
    same(measure(QKOperator.from_rows(wq, wk)), measure(QKOperator.from_rows(wq.double(), wk.double())), rel=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    ("field", "what"), [("wq", "query weights"), ("wk", "key weights"), ("bq", "query bias"), ("bk", "key bias")]
)
def test_nonfinite_rows_are_refused_by_name_before_any_eigenvalue(field, what, value):
    op = replace(draw_operator(0, 3, 4, 9), name="layer 7")
    damaged = getattr(op, field).clone()
    damaged[2].view(-1)[1] = value
    with pytest.raises(InputError, match=f"{what} of layer 7, head 2"):
        measure(replace(op, **{field: damaged}))


def test_rows_whose_squares_overflow_are_refused():
    with pytest.raises(InputError, match="overflow"):
        measure(QKOperator.from_rows(torch.full((1, 2, 3), 1e200, dtype=torch.float64), torch.ones(1, 2, 3)))


def test_many_heads_measure_as_one_by_one():
    op = draw_operator(3, 7, 6, 15)
    together = measure(op)
    for head in range(7):
        one = {f.name: getattr(op, f.name)[head : head + 1] for f in fields(op) if f.name in {"wq", "wk", "bq", "bk"}}
        same(
            measure(replace(op, **one)),
            Spectrum(*(getattr(together, f.name)[head : head + 1] for f in fields(together))),
        )


class TestGinibre:
    """Closed forms for a square matrix of independent normal entries, within four standard errors."""

    @pytest.fixture(scope="class")
    @staticmethod
    def spectra() -> dict[int, Spectrum]:
        return {
            n: measure(QKOperator.from_rows(gaussian(n, 9600 // n, n, n), torch.eye(n).expand(9600 // n, n, n)))
            for n in (16, 64)
        }

    @staticmethod
    def mean(values: torch.Tensor) -> tuple[float, float]:
        return values.double().mean().item(), (values.double().std() / len(values) ** 0.5).item()

    @pytest.mark.parametrize("n", [16, 64])
    def test_antisymmetric_energy_is_one_half_less_one_over_twice_the_size(self, spectra, n):
        mean, error = self.mean(spectra[n].antisymmetric_energy)
        assert mean == pytest.approx((1 - 1 / n) / 2, abs=4 * error)

    def test_eigen_rotation_tends_to_two_over_pi(self, spectra):
        """The real axis repels the complex eigenvalues, which costs a term in 1/n: two sizes give the limit."""
        (small, small_error), (large, large_error) = (self.mean(spectra[n].eigen_rotation) for n in (16, 64))
        limit, error = (64 * large - 16 * small) / 48, math.hypot(64 * large_error, 16 * small_error) / 48
        assert error < 0.005
        assert limit == pytest.approx(2 / math.pi, abs=4 * error)

    @pytest.mark.parametrize("n", [16, 64])
    def test_number_of_real_eigenvalues(self, spectra, n):
        """Edelman, Kostlan and Shub (1994), corollary 5.1 for even n; sqrt(2n / pi) is its leading term."""
        term, exact = 1.0, 0.0
        for k in range(n // 2):
            exact += math.sqrt(2) * term
            term *= (4 * k + 1) * (4 * k + 3) / ((4 * k + 2) * (4 * k + 4))
        mean, error = self.mean(spectra[n].real_eigenvalues)
        assert mean == pytest.approx(exact, abs=4 * error)
        assert exact == pytest.approx(math.sqrt(2 * n / math.pi) + 1 / 2, abs=0.1)

    def test_departure_from_normality_tends_to_the_square_root_of_one_half(self, spectra):
        (small, small_error), (large, large_error) = (self.mean(spectra[n].henrici) for n in (16, 64))
        limit, error = (64 * large - 16 * small) / 48, math.hypot(64 * large_error, 16 * small_error) / 48
        assert limit == pytest.approx(math.sqrt(1 / 2), abs=4 * error)
