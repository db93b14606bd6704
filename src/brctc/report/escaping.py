"""Texts from outside in pages: nothing in them is markup, and nothing in them is hidden."""

import html
import re

_INVISIBLE = re.compile(
    "["
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # controls but tab and line ends
    "\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # direction, format
    "\U000e0000-\U000e007f"  # tags
    "\ud800-\udfff"  # halves of characters, which no file takes
    "]"
)
"""What changes how a text looks and cannot be seen itself. Not the joiners U+200C and U+200D: Persian, Hindi
and others are written with them."""


def escape(text: str) -> str:
    """A text for HTML, as it is; invisible characters are written as JSON writes them, such as \\u202e."""
    return html.escape(show_invisible(text))


def show_invisible(text: str) -> str:
    """Invisible characters as JSON writes them."""
    return _INVISIBLE.sub(_as_json, text)


def _as_json(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex(" ", 2).split()
    return "".join(f"\\u{unit}" for unit in units)
