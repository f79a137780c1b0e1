"""Scores written out: one sequence, head, query and key at a time, complex numbers for rotations, NumPy only."""

import math

import numpy as np


def scores(layer, x, mixture, positions):
    """Pre-softmax scores `(heads, query, key)` of a layer on one sequence `x`, `(position, d_model)`."""
    length, heads = len(x), len(layer.kv_head)
    q = _rows(layer, x, layer.wq.numpy(), layer.bq, layer.q_norm)
    k = _rows(layer, x, layer.wk.numpy(), layer.bk, layer.k_norm)
    out = np.full((heads, length, length), -np.inf)
    for h in range(heads):
        g = int(layer.kv_head[h])
        for i in range(length):
            for j in range(length):
                if (layer.causal and j > i) or (layer.window is not None and i - j >= layer.window):
                    continue
                delta = positions[i] - positions[j]
                score = layer.scale * (
                    mixture[0] * _product(layer.rotary, q[h, i], k[g, j], delta)
                    + mixture[1] * _product(layer.rotary, q[h, i], k[g, j], -delta)
                    + mixture[2] * _product(layer.rotary, k[g, i], q[h, j], delta)
                    + mixture[3] * _product(layer.rotary, k[g, i], q[h, j], -delta)
                )
                if layer.alibi is not None:
                    score -= float(layer.alibi[h]) * delta * (layer.scale if layer.alibi_scaled else 1.0)
                out[h, i, j] = score if layer.softcap is None else layer.softcap * math.tanh(score / layer.softcap)
    return out


def _rows(layer, x, w, b, norm):
    y = np.stack([[w[h] @ row + (0 if b is None else b[h].numpy()) for row in x] for h in range(len(w))])
    if layer.clip is not None:
        y = np.clip(y, -layer.clip, layer.clip)
    if norm is None:
        return y
    for i in range(len(x)):
        if layer.norm_across_heads:
            y[:, i] = _normal(norm, y[:, i].ravel()).reshape(y[:, i].shape)
        else:
            for h in range(len(w)):
                y[h, i] = _normal(norm, y[h, i])
        y[:, i] = y[:, i] * (1 if norm.weight is None else norm.weight.numpy())
        y[:, i] = y[:, i] + (0 if norm.bias is None else norm.bias.numpy())
    return y


def _normal(norm, row):
    if norm.kind == "layer":
        row = row - row.mean()
    return row / math.sqrt((row**2).mean() + norm.eps)


def _product(rotary, left, right, delta):
    """`Re sum_t conj(l_t) r_t e^(-i theta_t delta)`, and the plain product of the rows that do not rotate."""
    if rotary is None:
        return left @ right
    pairs = rotary.pairs.numpy()
    still = np.setdiff1d(np.arange(len(left)), pairs)
    total = left[still] @ right[still]
    for (a, b), theta in zip(pairs, rotary.theta.numpy(), strict=True):
        turned = (left[a] - 1j * left[b]) * (right[a] + 1j * right[b]) * np.exp(-1j * theta * delta)
        total += rotary.factor**2 * turned.real
    return total
