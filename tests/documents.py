"""The pages that people read, and the code in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
OWN_DATA = ROOT / "docs" / "own-data.md"  # one thing after the other: tests/cli/test_own_data.py
EXPORT = ROOT / "docs" / "export.md"  # one thing after the other: tests/export/test_page.py
EXTENDING = ROOT / "docs" / "extending.md"  # files that belong together: tests/test_extending.py
INTEGRATIONS = ROOT / "docs" / "integrations.md"  # what is there of each: tests/frameworks/test_page.py


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), flags=re.M | re.S)
