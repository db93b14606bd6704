"""One server for the tests of protocols."""

import pytest

from tests.serve.serving import save, serving


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save(folder, "plain")
    save(folder, "early", 1)
    return folder


@pytest.fixture(scope="session")
def server(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    with serving(folder, models / "plain", models / "early", "--wyoming-port", 0) as server:
        yield server
