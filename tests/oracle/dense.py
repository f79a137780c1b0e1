"""The operator written out: slow, `d_model x d_model`, NumPy and SciPy only, one head at a time.

Nothing here is shared with the library: eigenvectors come from LAPACK's left and right ones of the dense matrix, and
relative operators from rotation matrices at two absolute positions.
"""

import numpy as np
import scipy.linalg
from scipy.optimize import linear_sum_assignment


def operator(wq: np.ndarray, wk: np.ndarray) -> np.ndarray:
    """`M = W_q^T W_k`."""
    return np.einsum("ai,aj->ij", wq, wk)


def match(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index arrays that pair two multisets of complex numbers with the least total distance."""
    assert len(x) == len(y)
    return linear_sum_assignment(np.abs(x[:, None] - y[None, :]))


def multiset_distance(x: np.ndarray, y: np.ndarray) -> float:
    """Largest distance within the best pairing of two multisets; the shorter one is filled up with zeros."""
    size = max(len(x), len(y))
    x, y = (np.concatenate([z, np.zeros(size - len(z))]) for z in (x, y))
    rows, columns = match(x, y)
    return float(np.abs(x[rows] - y[columns]).max())


def eigen(m: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` largest eigenvalues and their overlaps `|l|^2 |r|^2 / |l r|^2`."""
    values, left, right = scipy.linalg.eig(m, left=True, right=True)
    largest = np.argsort(-np.abs(values))[:count]
    values, left, right = values[largest], left[:, largest], right[:, largest]
    product = np.abs(np.einsum("ij,ij->j", left.conj(), right))
    return values, np.square(np.linalg.norm(left, axis=0) * np.linalg.norm(right, axis=0) / product)


def antisymmetric_energy(m: np.ndarray) -> float:
    return float(np.sum(((m - m.T) / 2) ** 2) / np.sum(m**2))


def henrici(m: np.ndarray) -> float:
    """From the strictly upper triangle of the complex Schur form, which needs no cancellation."""
    schur, _ = scipy.linalg.schur(m.astype(complex), output="complex")
    return float(np.linalg.norm(np.triu(schur, 1)) / np.linalg.norm(m))


def rotation(pairs: np.ndarray, theta: np.ndarray, d_head: int, position: float) -> np.ndarray:
    """The matrix that takes a query or key column of a head to its rotated self at a position."""
    r = np.eye(d_head)
    for (a, b), angle in zip(pairs, theta * position, strict=True):
        r[a, a] = r[b, b] = np.cos(angle)
        r[a, b], r[b, a] = -np.sin(angle), np.sin(angle)
    return r


def relative(
    wq: np.ndarray, wk: np.ndarray, pairs: np.ndarray, theta: np.ndarray, query: float, key: float
) -> np.ndarray:
    """The dense operator between a query and a key at two absolute positions."""
    d_head = len(wq)
    turned_q = rotation(pairs, theta, d_head, query) @ wq
    turned_k = rotation(pairs, theta, d_head, key) @ wk
    return operator(turned_q, turned_k)


def channels(wq: np.ndarray, wk: np.ndarray, pairs: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """`Re M_t` and `Im M_t` of every frequency, from complex rows: `M_t = (a_q + i b_q)^* (a_k + i b_k)`."""
    complex_m = [np.outer(np.conj(wq[a] + 1j * wq[b]), wk[a] + 1j * wk[b]) for a, b in pairs]
    return [m.real for m in complex_m], [m.imag for m in complex_m]
