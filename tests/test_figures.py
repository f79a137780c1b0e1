"""Figures are saved in both formats, whole, with fonts, and bit for bit the same."""

import hashlib
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from qkspectra import figures
from qkspectra.figures import Draw, Kernel, Portrait


def line() -> Figure:
    figure = Figure(figsize=(3, 2))
    figure.subplots().plot([0, 1], [1, 0], label=r"$\lambda$")
    return figure


@cache  # LAPACK's last digits depend on where in memory its input lies
def spectrum(seed: int) -> torch.Tensor:
    return torch.linalg.eigvals(torch.randn(20, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))


def draw(kind: str) -> Figure:
    distance = torch.arange(-3.0, 5.0, dtype=torch.float64)
    match kind:
        case "line":
            return line()
        case "portraits":
            return figures.portraits([Portrait("a", spectrum(0)), Portrait("b", spectrum(1))], spectrum(2))
        case "null_draws":
            return figures.null_draws([Draw("x", spectrum(0).real, {"limit": 0.5, "other": 0.6})])
        case "kernels":
            return figures.kernels([Kernel("a", distance, distance.cos(), distance.sin())])
    raise AssertionError(kind)


def digest(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["line", "portraits", "null_draws", "kernels"])
def test_equal_figures_give_equal_files(tmp_path, kind):
    for folder in ("one", "two"):
        figures.save(draw(kind), f"theory-{kind}", folder=tmp_path / folder)
    assert set(digest(tmp_path / "one")) == {f"theory-{kind}.{ending}" for ending in ("svg", "pdf", "json")}
    assert digest(tmp_path / "one") == digest(tmp_path / "two")


def test_pdf_holds_outlines_and_no_date(tmp_path):
    figures.save(line(), "line", folder=tmp_path)
    pdf, svg = (tmp_path / "line.pdf").read_bytes(), (tmp_path / "line.svg").read_text()
    assert b"/Type3" not in pdf
    assert b"/TrueType" in pdf or b"/CIDFontType2" in pdf
    assert b"/CreationDate" not in pdf
    assert "<dc:date>" not in svg


def test_a_failed_save_leaves_nothing_behind(tmp_path):
    figures.save(line(), "line", folder=tmp_path)
    before = digest(tmp_path)
    broken = line()
    broken.axes[0].set_title("$\\unknown{$")
    with pytest.raises(ValueError, match="unknown"):
        figures.save(broken, "line", folder=tmp_path)
    assert digest(tmp_path) == before


def test_portraits_put_an_evenly_filled_disc_in_the_unit_circle():
    radius = torch.linspace(0, 1, 400, dtype=torch.float64).sqrt()
    disc = 7 * torch.polar(radius, 40 * torch.arange(400.0, dtype=torch.float64))
    figure = figures.portraits([Portrait("disc", disc)], disc)
    points = figure.axes[0].lines[-1]
    assert max(abs(complex(*point)) for point in points.get_xydata()) == pytest.approx(1, abs=0.01)


def test_the_numbers_behind_a_figure_lie_beside_it(tmp_path):
    heads = [Portrait("a", spectrum(0)), Portrait("b", spectrum(1))]
    numbers = figures.points(heads)
    figures.save(figures.portraits(heads, spectrum(2)), "pair", numbers, tmp_path)
    assert list(numbers["head"].unique()) == ["a", "b"]
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "pair.csv"), numbers)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "pair.parquet"), numbers)
