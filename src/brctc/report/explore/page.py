"""The page as one file: its style, its scripts and its posteriors are all inside, and it fetches nothing."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brctc.files import write_text
from brctc.report.escaping import show_invisible
from brctc.report.explore.posteriors import Posterior, plain_scores
from brctc.report.page import CSS
from brctc.report.style import COLOURS

FOLDER = Path(__file__).parent
SCRIPTS = ("formula.js", "criterion.js", "risks.js", "python.js", "charts.js", "tables.js", "controls.js")
"""In this order: each uses those in front of it."""


def write_explore_page(out: Path, posteriors: Sequence[Posterior], first: int = 0) -> None:
    """Writes the page; it opens with the posterior of this index."""
    data = {
        "posteriors": [_plain(posterior) for posterior in posteriors],
        "first": first,
        "colours": COLOURS,
    }
    script = script_of(SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        # what a browser lets in: this style and this script, whatever an id or a token may say
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        "style": CSS + (FOLDER / "explore.css").read_text(encoding="utf-8"),
        "data": _for_script(data),
        "script": script,
    }
    template = (FOLDER / "explore.html").read_text(encoding="utf-8")
    write_text(out, re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template))


def script_of(names: Sequence[str]) -> str:
    """Files of the page's script as one."""
    texts = [(FOLDER / name).read_text(encoding="utf-8") for name in names]
    return "\n".join(['"use strict";', *texts])


def _plain(posterior: Posterior) -> dict[str, Any]:
    return {
        "key": show_invisible(posterior.key),
        "title": show_invisible(posterior.title),
        "note": show_invisible(posterior.note),
        "classes": [show_invisible(name) for name in posterior.classes],
        "scores": plain_scores(posterior),
        "targets": list(posterior.targets),
        "fromLogits": posterior.from_logits,
    }


def _for_script(data: Any) -> str:
    """JSON inside of a <script>: no text in it can end that."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
