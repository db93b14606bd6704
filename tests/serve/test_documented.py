"""The commands and the client of docs/serve.md."""

import asyncio
import json
import shlex
import shutil

import pytest

from tests.decode.streams import sound
from tests.documents import ROOT, blocks
from tests.serve.serving import expected, serving

DOCUMENT = ROOT / "docs" / "serve.md"
COMMANDS = [
    line
    for block in blocks(DOCUMENT, "bash")
    for line in block.splitlines()
    if line.startswith("brctc serve")
]


def client():
    """The one that the document shows."""
    (snippet,) = blocks(DOCUMENT, "python")
    namespace: dict = {}
    exec(compile(snippet, DOCUMENT.name, "exec"), namespace)
    return namespace["recognize"]


@pytest.mark.parametrize(
    "command",
    [pytest.param(c, marks=pytest.mark.slow if c != "brctc serve exp/online" else ()) for c in COMMANDS],
)
def test_documented(command, models, tmp_path):
    for theirs, mine in (("online", "plain"), ("vanilla", "plain"), ("early", "early")):
        shutil.copytree(models / mine, tmp_path / "exp" / theirs)
    _, _, *arguments = shlex.split(command)
    arguments = ["2" if argument == "4" else argument for argument in arguments]  # two workers will do
    samples = sound(0, 1.5)
    with serving(tmp_path, *arguments) as server:
        texts = asyncio.run(client()(samples, server.url("/", "ws")))
        assert texts == [segment.text for segment in expected(models / "plain", samples)[0]]
        names = [model["id"] for model in json.loads(server.get("/v1/models").data)["data"]]
        assert names == [argument.removeprefix("exp/") for argument in arguments if "exp/" in argument]
