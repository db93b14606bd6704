"""`brctc sweep` on strings of tones: killed, continued, not repeated."""

import json
import os
import shutil
import signal
import time

import pytest
import soundfile
import yaml

from tests.cli.commands import Command, brctc
from tests.data.sounds import write, write_digits
from tests.train.tiny import EMFORMER

ENCODER = EMFORMER | {
    "subsampling": 4,
    "subsampling_channels": 4,
    "chunk_frames": 8,
    "right_context_frames": 4,
}
RECIPE = {
    "corpus": {
        "kind": "digit-strings",
        "prepared": "prepared",
        "source": "digits",
        "train_strings": 30,
        "dev_strings": 4,
        "test_strings": 6,
        "dev_speakers": 1,
        "test_speakers": 2,
        "max_digits": 4,
        "speeds": [1.0],
    },
    "features": {},
    "tokens": {"transcript": {"kind": "word"}},
    "model": {"encoder": ENCODER},
    "optimiser": {"peak_rate": 1e-2, "warmup_steps": 20},
    "batch": {"seconds": 20},
    "stages": {"only": {"steps": 120, "losses": {"final": {"kind": "ctc", "on": "final", "weight": 1.0}}}},
    "checkpoints": {"every_steps": 10, "keep": 1, "average": 1},
    "monitor": {"dev_utterances": 0, "tensorboard": False},
}
SWEEP = {
    "recipe": "online.yaml",
    "tune": {"stages.only.inherit": "whole", "stages.only.steps": 20},
    "starts": {"plain": {}},
    "methods": {
        "vanilla": {"start": "plain"},
        "early": {
            "start": "plain",
            "changes": {"stages.only.losses.final.risk": {"kind": "early-emission", "factor": 5}},
        },
    },
    "blocks": [{"chunks_ms": [320], "methods": ["vanilla", "early"]}],
}
pytestmark = pytest.mark.slow
COMMAND = ("sweep", "sweep.yaml", "--out", "out")


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A folder in which a sweep was killed in its cells and then completed, and what the second said."""
    folder = tmp_path_factory.mktemp("swept")
    write_digits(folder / "digits")
    for name, content in (("online", RECIPE), ("sweep", SWEEP)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    command = Command(folder, *COMMAND)
    cell = folder / "out" / "vanilla-320+160"
    while command.process.is_alive() and not list(cell.glob("checkpoints/*")):
        time.sleep(0.02)
    os.kill(command.process.pid, signal.SIGKILL)
    command.finish()
    start = (folder / "out" / "start-plain" / "model" / "model.json").stat().st_mtime_ns
    found = brctc(folder, *COMMAND)
    assert found.code == 0, found.err
    assert (folder / "out" / "start-plain" / "model" / "model.json").stat().st_mtime_ns == start
    return folder, found


def test_a_sweep_that_was_killed_goes_on(swept):
    folder, found = swept
    assert "320 + 160" in found.out
    assert "The report is out/report.html." in found.out
    page = (folder / "out" / "report.html").read_text()
    assert "Errors against latency on digit-strings" in page
    results = json.loads((folder / "out" / "report.json").read_text())
    assert [trial["name"] for trial in results["trials"]] == ["vanilla-320+160", "early-320+160"]
    assert all(trial["online"]["dcl_ms"] == 320 for trial in results["trials"])


def test_what_is_measured_is_not_measured_again(swept):
    folder, _ = swept
    files = sorted((folder / "out").glob("*/online.json"))
    times = [path.stat().st_mtime_ns for path in files]
    latency_ms = max(
        trial["online"]["dcl_ms"] + trial["online"]["cl_ms"] + trial["online"]["drift"]["mean_ms"]
        for trial in json.loads((folder / "out" / "report.json").read_text())["trials"]
    )
    absolute = [folder / "out" if word == "out" else word for word in COMMAND]  # the same, written otherwise
    found = brctc(folder, *absolute, "--target-latency-ms", latency_ms + 1)
    assert found.code == 0, found.err
    assert f"The model is in {folder}/out/" in found.out
    assert [path.stat().st_mtime_ns for path in files] == times
    impossible = brctc(folder, *COMMAND, "--target-latency-ms", 1)
    assert impossible.code == 2
    assert "nothing is within 1 ms; the fastest is" in impossible.err


def test_what_is_trained_anew_is_measured_anew(swept):
    folder, _ = swept
    run = folder / "out" / "vanilla-320+160"
    before = (run / "online.json").stat().st_mtime_ns
    os.utime(run / "model" / "model.json")
    assert brctc(folder, *COMMAND).code == 0
    assert (run / "online.json").stat().st_mtime_ns > before


def test_latencies_that_cannot_be_wanted(swept):
    for latency in ("nan", "-5"):
        found = brctc(swept[0], *COMMAND, "--target-latency-ms", latency)
        assert found.err.startswith(f"brctc sweep: --target-latency-ms is {latency}, expected more than 0")


def test_a_start_that_is_gone_is_not_trained_for_cells_that_are(swept, tmp_path):
    folder, _ = swept
    copy = shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(copy / "out" / "start-plain")
    found = brctc(copy, *COMMAND)
    assert found.code == 0, found.err
    assert not (copy / "out" / "start-plain").exists()
    shutil.rmtree(copy / "out" / "early-320+160")
    found = brctc(copy, *COMMAND)
    assert found.code == 0, found.err
    assert (copy / "out" / "start-plain" / "model").exists()  # this one was needed


def test_another_recipe_is_refused(swept):
    folder, _ = swept
    found = brctc(folder, *COMMAND, "--set", "seed=1")
    assert found.code == 2
    assert "out/start-plain was begun with another recipe: seed was 0, now it is 1" in found.err


def test_latency_of_runs_is_what_the_sweep_has_found(swept, trained):
    folder, _ = swept
    runs = "out/vanilla-320+160", "out/early-320+160"
    found = brctc(folder, "latency", *runs, "--out", "latency.html")
    assert found.code == 0, found.err
    assert "The report is latency.html." in found.out
    page = (folder / "latency.html").read_text()
    for trial in json.loads((folder / "out" / "report.json").read_text())["trials"]:
        assert trial["name"] in page
        assert trial["name"] in found.out
        assert f" {trial['online']['drift']['mean_ms']:.0f} " in found.out
    several = brctc(folder, "latency", *runs, "--jobs", "2", "--out", "several.html")
    assert several.code == 0, several.err
    alone, together = (json.loads((folder / f"{name}.json").read_text()) for name in ("latency", "several"))
    for one, other in zip(alone["trials"], together["trials"], strict=True):
        for measured in ("error", "texts", "drift", "end_of_sentence", "streamed_drift"):
            assert one["online"][measured] == other["online"][measured]
    mixed = brctc(folder, "latency", runs[0], trained[0] / "vanilla")
    assert mixed.code == 2
    assert "vanilla has a conformer" in mixed.err  # before the first is measured
    assert "decoding" not in mixed.err
    assert brctc(folder, "latency", runs[0], "--out", "out").err.endswith("is a directory, expected a file\n")
    numbers = brctc(folder, "latency", runs[0], "--out", "latency.json")
    assert numbers.err.endswith("--out latency.json is where the page's numbers go: use latency.html\n")
    offline = brctc(trained[0], "latency", "vanilla")
    assert offline.code == 2
    assert "vanilla has a conformer, but needs a streaming encoder (kind: emformer)" in offline.err


def test_a_look_at_some_utterances_keeps_what_was_measured(swept):
    folder, _ = swept
    files = [folder / "out" / name for name in ("vanilla-320+160/online.json", "report.html", "report.json")]
    whole = [file.read_bytes() for file in files]
    found = brctc(folder, *COMMAND, "--limit", "2")
    assert found.code == 0, found.err
    assert "2 utterances" in found.out
    assert [file.read_bytes() for file in files] == whole
    assert (folder / "out" / "report-2.html").exists()
    assert brctc(folder, *COMMAND, "--limit", "1000").out.endswith("The report is out/report.html.\n")  # all
    refused = brctc(folder, "sweep", "sweep.yaml", "--out", "elsewhere", "--limit", "0")
    assert (refused.code, refused.err) == (2, "brctc sweep: limit is 0, expected at least 1\n")
    assert not (folder / "elsewhere").exists()


def test_every_split_has_a_report_of_its_own(swept):
    folder, _ = swept
    files = [folder / "out" / name for name in ("vanilla-320+160/online.json", "report.html", "report.json")]
    first = [file.read_bytes() for file in files]
    found = brctc(folder, *COMMAND, "--split", "dev")
    assert found.code == 0, found.err
    assert found.out.endswith("The report is out/report-dev.html.\n")
    assert json.loads((folder / "out" / "report-dev.json").read_text())["split"] == "dev"
    assert [file.read_bytes() for file in files] == first


def test_a_test_set_that_has_changed_is_measured_anew(swept, tmp_path):
    """Its recordings are others now, and it was prepared again."""
    folder, _ = swept
    changed = shutil.copytree(folder, tmp_path / "changed")
    for path in (changed / "digits").glob("*/3_*.wav"):
        write(path, soundfile.read(path)[0][: 48000 // 10], 48000)
    options = [(key, value) for key, value in RECIPE["corpus"].items() if key not in ("kind", "prepared")]
    given = [f"{key}={json.dumps(value)}" for key, value in options]
    prepared = brctc(changed, "prepare", "digit-strings", "--out", "prepared", "--set", *given)
    assert prepared.code == 0, prepared.err
    result = changed / "out" / "vanilla-320+160" / "online.json"
    before = json.loads(result.read_text())
    found = brctc(changed, *COMMAND)
    assert found.code == 0, found.err
    after = json.loads(result.read_text())
    assert after["digest"] != before["digest"]
    assert after["error"]["tokens"] == before["error"]["tokens"]
    assert json.loads((changed / "out" / "report.json").read_text())["trials"][0]["online"] == after
