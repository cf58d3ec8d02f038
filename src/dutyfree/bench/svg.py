"""Figures as SVG files: the same results give the same bytes. No date, no random names, no version of matplotlib's."""

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETTINGS: dict[str, Any] = {
    "svg.hashsalt": "dutyfree",
    "svg.fonttype": "none",  # text stays text, in whatever font the reader has
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
}


def check_matplotlib() -> None:
    """ImportError with what to install where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError("plots need matplotlib, which is not installed: pip install 'dutyfree[render]'.") from None


def svg(width: float, height: float, draw: Callable[["Figure"], None]) -> str:
    """A figure of so many inches, white, with what ``draw`` puts into it."""
    check_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(width, height), facecolor="white", layout="tight")
        draw(figure)
        text = io.StringIO()
        canvas: Any = FigureCanvasSVG(figure)  # which matplotlib leaves without types
        canvas.print_svg(text, metadata={"Date": None, "Creator": None})
    # Editors and git would take the blanks off.
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"
