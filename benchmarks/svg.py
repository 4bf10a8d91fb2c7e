"""Two kinds of plots as SVG, written by hand: bars beside a mark, and lines on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH = 720
ROW = 22
LEFT = 230
RIGHT = 70
COLOURS = ("#1f6f8b", "#c8553d", "#588157", "#7b2cbf", "#b08900", "#3d405b", "#d81159", "#0fa3b1")

_HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
    'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">\n'
    '<rect width="100%" height="100%" fill="white"/>\n'
)


def _text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(words)}</text>\n"
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = "#999", dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{colour}"{dashed}/>\n'
    )


def bars(title: str, values: Mapping[str, float], *, mark: float, mark_name: str) -> str:
    """One bar for each value, and a line at `mark`; all values are in one unit."""
    height = 60 + ROW * len(values)
    scale = (WIDTH - LEFT - RIGHT) / max([*values.values(), mark * 1.05])
    out = [_HEAD.format(width=WIDTH, height=height), _text(10, 20, title, size=14)]
    for number, (name, value) in enumerate(values.items()):
        y = 40 + ROW * number
        out.append(_text(LEFT - 8, y + 14, name, anchor="end"))
        out.append(
            f'<rect x="{LEFT}" y="{y + 2}" width="{value * scale:.1f}" height="{ROW - 6}" '
            f'fill="{COLOURS[0]}"/>\n'
        )
        out.append(_text(LEFT + value * scale + 4, y + 14, f"{value:.2f}"))
    x = LEFT + mark * scale
    out.append(_line(x, 34, x, height - 18, COLOURS[1], "4 3"))
    out.append(_text(x, height - 5, mark_name, anchor="middle", size=11))
    return "".join(out) + "</svg>\n"


def lines(
    title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x_name: str,
    y_name: str,
) -> str:
    """Both axes logarithmic; values of 0 or less are left out."""
    points = {name: [(x, y) for x, y in row if x > 0 and y > 0] for name, row in series.items()}
    found = [point for row in points.values() for point in row]
    x_low, x_high = _decades([x for x, _ in found])
    y_low, y_high = _decades([y for _, y in found])
    height, left, right, top, bottom = 380, 70, 20, 40, 50
    bottom += 18 * len(points)
    plot_width, plot_height = WIDTH - left - right, height - top - 50

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            left + (math.log10(x) - x_low) / (x_high - x_low) * plot_width,
            top + plot_height - (math.log10(y) - y_low) / (y_high - y_low) * plot_height,
        )

    out = [
        _HEAD.format(width=WIDTH, height=height + bottom - 50),
        _text(10, 20, title, size=14),
    ]
    for decade in range(x_low, x_high + 1):
        x, _ = at(10.0**decade, 10.0**y_low)
        out.append(_line(x, top, x, top + plot_height, "#ddd"))
        out.append(_text(x, top + plot_height + 16, _short(decade), anchor="middle"))
    for decade in range(y_low, y_high + 1):
        _, y = at(10.0**x_low, 10.0**decade)
        out.append(_line(left, y, left + plot_width, y, "#ddd"))
        out.append(_text(left - 6, y + 4, _short(decade), anchor="end"))
    out.append(_text(left + plot_width / 2, top + plot_height + 34, x_name, anchor="middle"))
    out.append(_text(left - 60, top - 8, y_name))
    for number, (name, row) in enumerate(points.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in row)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>\n')
        out += [
            f'<circle cx="{at(x, y)[0]:.1f}" cy="{at(x, y)[1]:.1f}" r="3" fill="{colour}"/>\n'
            for x, y in row
        ]
        y = height + 18 * number + 4
        out.append(_line(left, y, left + 24, y, colour))
        out.append(_text(left + 30, y + 4, name))
    return "".join(out) + "</svg>\n"


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten round the values."""
    if not values:
        return 0, 1
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _short(decade: int) -> str:
    if 0 <= decade <= 3:
        return f"{10**decade:,}"
    return f"{10.0**decade:g}" if -3 <= decade < 0 else f"1e{decade}"
