"""Every snippet of docs/integrations.md runs, where its package is."""

import re
from importlib.util import find_spec

import pytest

from tests.frameworks.documented import run, snippets

OWN = {"brctc", "torch"}


def packages(code):
    return {name for name in re.findall(r"^(?:from|import) (\w+)", code, re.M)} - OWN


@pytest.mark.parametrize("place", range(len(snippets())))
def test_snippet(place):
    before = snippets()[: place + 1]
    missing = [name for name in packages(before[place]) if find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not here")
    mine = packages(before[place])
    run(*(code for code in before[:-1] if packages(code) <= mine), before[-1])
