"""Vector graphics as light as a page needs them: fewer points on drawn curves, fewer characters in SVG.

What a reader sees stays the same to within `TOLERANCE`, a fraction of the thinnest line; the numbers that are offered
beside a figure are never touched.
"""

import re
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float64
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

TOLERANCE = 0.3
"""Points (1/72 inch) that a drawn curve may lie from where all of its points would have put it."""
SHORT = 10
"""Points of a curve that are left alone."""

_NUMBER = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?")
_PLACE = re.compile(r'(?<= )(x|y|d)="([^"]*)"|translate\([^)]*\)')
_POLYLINE = re.compile(r"(?:M [-\d.e]+ [-\d.e]+ \n?(?:L [-\d.e]+ [-\d.e]+ \n?)*)+(?:z\n?)?")
_ALIKE = re.compile(r'<use [^<>]*? style="([^"]*)"/>(?:<use [^<>]*? style="\1"/>)+')


def thin(figure: Figure) -> None:
    """Take points away from the curves of a figure that can be missed (Ramer 1972, Douglas and Peucker 1973).

    Lines with markers or steps keep all of theirs; a gap in a curve stays where it is.
    """
    figure.draw_without_rendering()  # sizes of axes are known only then
    for line in figure.findobj(Line2D):
        if len(line.get_xydata()) <= SHORT or line.get_marker() not in (None, "None", "", " ") or _stepped(line):
            continue
        places = line.get_transform().transform(line.get_xydata()) * 72 / figure.dpi
        gaps = np.flatnonzero(~np.isfinite(places).all(1))
        kept = np.zeros(len(places), bool)
        kept[gaps] = True
        for start, stop in pairwise([-1, *gaps, len(places)]):
            kept[start + 1 : stop] = needed(places[start + 1 : stop], TOLERANCE)
        x, y = line.get_data()
        line.set_data(np.asarray(x)[kept], np.asarray(y)[kept])


def needed(places: Float64[np.ndarray, "points 2"], tolerance: float) -> Bool[np.ndarray, " points"]:
    """Which points are enough for a line through them to pass all others within `tolerance`."""
    kept = np.zeros(len(places), bool)
    if len(places):
        kept[[0, -1]] = True
    pieces = [(0, len(places) - 1)]
    while pieces:
        first, last = pieces.pop()
        between = places[first + 1 : last]
        if not len(between):
            continue
        along = places[last] - places[first]
        offset = between - places[first]
        length = along @ along
        share = np.clip(offset @ along / length, 0, 1) if length else np.zeros(len(offset))
        far = np.hypot(*(offset - share[:, None] * along).T)
        worst = int(far.argmax())
        if far[worst] > tolerance:
            middle = first + 1 + worst
            kept[middle] = True
            pieces += [(first, middle), (middle, last)]
    return kept


def compact(svg: str) -> str:
    """SVG as Matplotlib writes it, in fewer characters: places to 1/7200 inch, steps for corners, no blanks."""
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r">\s+<", "><", _PLACE.sub(_placed, svg))
    return _ALIKE.sub(_together, svg)


def _together(found: re.Match) -> str:
    style = f' style="{found[1]}"'
    return f"<g{style}>{found[0].replace(style, '')}</g>"


def _stepped(line: Line2D) -> bool:
    return line.get_drawstyle() != "default"


def _placed(found: re.Match) -> str:
    if found[1] is None:
        return _NUMBER.sub(_rounded, found[0])
    if found[1] == "d" and _POLYLINE.fullmatch(found[2]):
        return f'd="{_steps(found[2])}"'
    return f'{found[1]}="{_NUMBER.sub(_rounded, found[2])}"'


def _rounded(found: re.Match) -> str:
    return _short(round(100 * float(found[0])))


def _steps(line: str) -> str:
    """Lines with absolute corners as one relative path; corners are rounded, not steps, so that no error adds up."""
    written = []
    for piece in re.findall(r"M ([^Mz]*)", line):
        corners = np.array(re.findall(r"[-\d.e]+", piece), float).reshape(-1, 2)
        rounded = np.rint(100 * corners).astype(int)
        first, rest = rounded[0].tolist(), np.diff(rounded, axis=0).tolist()
        moved = [step for step in rest if step != [0, 0]]
        steps = "".join(f"{_short(x)} {_short(y)} " for x, y in moved).strip()
        written.append(f"M{_short(first[0])} {_short(first[1])}" + (f"l{steps}" if moved else "h0" if rest else ""))
    return re.sub(r" -", "-", "".join(written)) + ("z" if line.rstrip().endswith("z") else "")


def _short(hundredths: int) -> str:
    """A number of hundredths, without zeros that say nothing."""
    sign, size = "-" if hundredths < 0 else "", abs(hundredths)
    whole, part = str(size // 100), f"{size % 100:02}".rstrip("0")
    return sign + (f"{whole if whole != '0' else ''}.{part}" if part else whole)
