"""How all plots look, and how they get into a page.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart. What is drawn in INK takes the
page's own text colour, so that a plot is readable on a light and on a dark page.
"""

import functools
import io
import re
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterMathtext

from brctc.files import write_bytes
from brctc.report.escaping import escape, show_invisible

P = ParamSpec("P")

PICTURES = (".png", ".svg", ".pdf")
"""Files that `save_picture` writes."""

INK = "#010203"  # a colour that nothing else has: replaced by the page's text colour
FAINT = "#8c919b"
WRONG = "#4a4f57"
"""Of what should not be there."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6a3d9a", "#8c510a")

TITLE_CHARACTERS = 11  # that fit into an inch
LINE = 0.2
"""Of a title's height, in inches."""

STYLE: dict[Any, Any] = {
    "axes.edgecolor": FAINT,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "figure.dpi": 100,
    "figure.facecolor": "none",
    "figure.titlesize": 11,
    "figure.titleweight": "bold",
    "font.family": "sans-serif",
    "font.size": 9,
    "grid.alpha": 0.3,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "savefig.facecolor": "none",
    "text.parse_math": False,  # a transcript may have dollars
    "svg.fonttype": "none",  # text stays text: any script that the reader's browser has
    "text.color": INK,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 8,
}


def styled(plot: Callable[P, Figure]) -> Callable[P, Figure]:
    """A function that makes a figure, with all of the above in force."""

    @functools.wraps(plot)
    def inner(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with mpl.rc_context(STYLE):
            figure = plot(*args, **kwargs)
            _write_plain_numbers(figure)
            return figure

    return inner


class _PlainNumbers(LogFormatterMathtext):
    """0.1, 1, 10 where matplotlib would write powers in TeX."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def _write_plain_numbers(figure: Figure) -> None:
    for axis in [axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)]:
        if isinstance(axis.get_major_formatter(), LogFormatterMathtext):
            axis.set_major_formatter(_PlainNumbers())
        if isinstance(axis.get_minor_formatter(), LogFormatterMathtext):
            axis.set_minor_formatter(_PlainNumbers())


def new_figure(width: float, height: float, title: str) -> Figure:
    """Inches; the title says what to see."""
    figure = Figure(figsize=(width, height), layout="constrained")
    title = wrap_title(title, width)
    figure.set_figheight(height + LINE * title.count("\n"))
    figure.suptitle(title, x=0.008, ha="left")
    return figure


def wrap_title(title: str, width: float) -> str:
    """In lines of so many inches."""
    return "\n".join(textwrap.wrap(title, int(width * TITLE_CHARACTERS)))


def colours(count: int) -> list[str]:
    """One for each thing, again from the start when they run out."""
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def bare(axis: Axes) -> None:
    """No grid and no frame: for pictures."""
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)


def save_picture(figure: Figure, path: Path) -> None:
    """A file of its own, on white: PNG, SVG or PDF, by its name."""
    picture = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(picture, format=path.suffix[1:], dpi=150, facecolor="white")
    write_bytes(path, picture.getvalue())


def to_svg(figure: Figure) -> str:
    """An <svg> element for a page: no references to anything outside, names of its own."""
    file = io.StringIO()
    salted: dict[Any, Any] = {**STYLE, "svg.hashsalt": figure.get_suptitle()}  # ids of its own
    with mpl.rc_context(salted), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the browser may have it
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = show_invisible(file.getvalue())
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)  # HTML knows them
    text = re.sub(r'<g id="[^"]*">', "<g>", text)  # every figure has the same ones
    text = text.replace(INK, "currentColor")
    width = round(figure.get_figwidth() * 96)
    label = escape(figure.get_suptitle().replace("\n", " "))
    return re.sub(
        r'<svg [^>]*?(viewBox="[^"]*")[^>]*>',
        # a function: in a text, what the label has behind a backslash would be taken for a group
        lambda found: f'<svg role="img" aria-label="{label}" {found[1]} style="width:{width}px">',
        text,
        count=1,
    )
