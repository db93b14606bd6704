"""Runs and models that several tests look at."""

import pytest

from tests.cli.commands import SMALL, brctc


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with the runs vanilla and brctc of `brctc train`, and what the second has said."""
    folder = tmp_path_factory.mktemp("trained")
    for name in ("vanilla", "brctc"):
        found = brctc(folder, "train", f"handwriting/{name}", "--out", name, "--set", *SMALL)
        assert found.code == 0, found.err
    return folder, found
