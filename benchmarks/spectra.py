"""All static measures of all heads of a 12 x 12 model with d_model 768, against LAPACK alone and TransformerLens.

Every side is given all 144 heads at once, and two threads.
"""

import sys

import torch

from benchmarks.row import Row, best_times
from qkspectra.operators import QKOperator
from qkspectra.spectrum import Spectrum, measure
from qkspectra.threads import threads

LAYERS, HEADS, D_HEAD, D_MODEL = 12, 12, 64, 768


def _weights() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (LAYERS, HEADS, D_HEAD, D_MODEL)
    wq, wk = (torch.randn(shape, generator=generator, dtype=torch.float64) / D_MODEL**0.5 for _ in range(2))
    return wq, wk


def rows() -> list[Row]:
    wq, wk = _weights()
    cores = (wk @ wq.mT).flatten(0, 1)

    def ours() -> Spectrum:
        return measure(QKOperator(wq.flatten(0, 1), wk.flatten(0, 1)))

    candidates = {
        "ours": ours,
        "values": lambda: torch.linalg.eigvals(cores),
        "vectors": lambda: torch.linalg.eig(cores),
    }
    try:
        from transformer_lens import FactoredMatrix
    except ImportError:
        print("TransformerLens is missing: pip install --no-deps -r benchmarks/requirements.txt", file=sys.stderr)
    else:
        single = wq.float(), wk.float()
        candidates["peer"] = lambda: FactoredMatrix(wq.mT, wk).eigenvalues
        candidates["peer, single"] = lambda: FactoredMatrix(single[0].mT, single[1]).eigenvalues
    with threads(2):
        seconds = best_times(candidates)
    ratio = {name: seconds["ours"] / time for name, time in seconds.items()}
    missing = "" if "peer" in ratio else ": not installed"
    return [
        Row("all static measures", seconds["ours"], None, "s", f"{LAYERS * HEADS} heads of {D_HEAD} x {D_MODEL}"),
        Row("… over LAPACK", ratio["vectors"], 2.5, "x", "torch.linalg.eig of the stacked cores"),
        Row("… over LAPACK without vectors", ratio["values"], 2.5, "x", "torch.linalg.eigvals of the stacked cores"),
        Row("… over TransformerLens", ratio.get("peer"), 1.0, "x", "FactoredMatrix.eigenvalues" + missing),
        Row("… in single precision", ratio.get("peer, single"), None, "x", "the same, its weights cast down" + missing),
    ]
