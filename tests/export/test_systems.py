"""Every system as graphs: ONNX Runtime says what torch says, with every search, alone and in batches."""

import json

import pytest
import sherpa_onnx
import torch

from brctc.data import Row, load_audio
from brctc.decode import Recognizer, StreamingRecognizer
from brctc.export import EXPORTS, export_model
from brctc.models import load_model
from tests.export.small import (
    ATTENTION,
    OFFLINE,
    ONLINE,
    SIZES,
    TRANSDUCER,
    TRIM,
    WORDS,
    recordings,
    save,
    small_model,
)

pytestmark = pytest.mark.slow
ONNX, SHERPA = EXPORTS.parse({"kind": "onnx"}), EXPORTS.parse({"kind": "sherpa"})
DECODERS = {"attention": ATTENTION, "transducer": TRANSDUCER}


def exported(model, folder, format=ONNX) -> Recognizer:
    export_model(model, folder / "out", format)
    return Recognizer.from_directory(folder / "out")


def check_same(model, recognizer, sources, methods, batch_size=2):
    ours = Recognizer(model)
    for method in methods:
        options = {"method": method, "beam": 3, "nbest": 2, "batch_size": batch_size}
        expected = ours.recognize(sources, **options)
        found = recognizer.recognize(sources, **options)
        for a, b in zip(expected, found, strict=True):
            assert (a.tokens, a.frames, a.factor) == (b.tokens, b.frames, b.factor), method
            assert a.score == pytest.approx(b.score, abs=1e-3)
            assert [one.text for one in a.nbest or ()] == [one.text for one in b.nbest or ()]
        assert any(result.tokens for result in found), method


@pytest.mark.parametrize(
    "model",
    [
        {"trim": TRIM, "decoders": DECODERS, "encoder": OFFLINE | {"phases": 2}},
        {"normalisation": "utterance", "encoder": OFFLINE | {"positions": "relative", "subsampling": 2}},
    ],
    ids=["hybrid and transducer", "ctc"],
)
def test_offline(tmp_path, model):
    made = small_model(**model)
    methods = ["ctc-greedy", "ctc-beam"]
    if "decoders" in model:
        methods += ["attention", "transducer", "transducer-greedy"]
    check_same(made, exported(made, tmp_path), recordings(tmp_path), methods)


@pytest.mark.parametrize(
    "kind",
    [{}, {"kernel_size": None, "memory_size": 0, "left_context_frames": 0}],
    ids=["all", "nothing"],
)
def test_online(tmp_path, kind):
    made = small_model(ONLINE | kind, decoders={"transducer": TRANSDUCER})
    sources = recordings(tmp_path)
    recognizer = exported(made, tmp_path)
    check_same(made, recognizer, sources, ["ctc-greedy", "transducer-greedy"])
    ours, theirs = StreamingRecognizer(made), StreamingRecognizer(recognizer.model)
    for stream in (ours, theirs):
        for part in torch.from_numpy(load_audio(sources[2], 16000)).split(1234):
            stream.push(part)
        stream.flush()
    assert len(ours.tokens) > 5
    assert theirs.tokens == ours.tokens


def test_translation_of_text(tmp_path):
    encoder = {"kind": "legonn", "dim": 12, "heads": 2, "feed_forward_dim": 20, "up_sampling": 2}
    encoder |= {"first_layers": 1, "second_layers": 1}
    trim = TRIM.model_copy(update={"text": "translation"})
    made = small_model(
        encoder,
        trim,
        texts={"source": "eins zwei drei", "translation": WORDS},
        heads={"translation": {}},
        decoders={"translation": ATTENTION | {"text": "translation"}},
        output="translation",
        normalisation="none",
    )
    sources = [Row("a", "eins drei zwei"), Row("b", "zwei")]
    check_same(made, exported(made, tmp_path), sources, ["attention", "ctc-greedy"])
    assert (tmp_path / "out" / "tokens-source.txt").read_text().splitlines()[0] == "<blk> 0"


def test_translation_of_speech(tmp_path):
    upper = {"kind": "conformer", "first_layers": 1, "second_layers": 1, "subsampling": 1}
    upper |= {name: size for name, size in SIZES.items() if name != "subsampling_channels"}
    made = small_model(
        trim=TRIM,
        texts={"transcript": WORDS, "translation": "eins zwei drei"},
        upper_encoders={"translation": {"encoder": upper}},
        heads={"transcript": {}, "translation": {"on": "translation"}},
        decoders={"meant": ATTENTION | {"text": "translation", "on": "translation"}},
        output="translation",
    )
    recognizer, sources = exported(made, tmp_path), recordings(tmp_path)
    check_same(made, recognizer, sources, ["attention", "ctc-greedy"])
    expected = Recognizer(made).recognize(sources, others=True, beam=2)
    found = recognizer.recognize(sources, others=True, beam=2)
    assert [result.others for result in found] == [result.others for result in expected]


@pytest.fixture(scope="module")
def trimmed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sherpa")
    made = small_model(trim=TRIM, seed=2)
    export_model(made, folder / "out", SHERPA)
    return made, folder / "out", recordings(folder)


def in_sherpa(folder, **changes):
    about = json.loads((folder / "export.json").read_text())["sherpa"]
    arguments = about["arguments"]
    files = {name: str(folder / value) for name, value in arguments.items() if isinstance(value, str)}
    kind, factory = about["factory"].split(".")
    return getattr(getattr(sherpa_onnx, kind), factory)(**arguments | files | changes)


def texts_of(recognizer, sources, together):
    """sherpa-onnx's texts, of a batch or one by one."""
    streams = []
    for source in sources:
        streams.append(recognizer.create_stream())
        streams[-1].accept_waveform(16000, load_audio(source, 16000))
    for group in [streams] if together else [[stream] for stream in streams]:
        recognizer.decode_streams(group)
    return [stream.result.text.strip() for stream in streams]


@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
def test_trimmed_ctc_in_sherpa(trimmed, together):
    made, folder, sources = trimmed
    expected = [result.text for result in Recognizer(made).recognize(sources)]
    assert texts_of(in_sherpa(folder), sources, together) == expected
    assert all(expected)


def test_what_is_made_for_sherpa_is_a_model_here(trimmed):
    made, folder, sources = trimmed
    check_same(made, Recognizer.from_directory(folder), sources, ["ctc-greedy"])


def test_a_damaged_file_is_named(trimmed, tmp_path):
    _, folder, _ = trimmed
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "tokens.txt").write_text("other")
    with pytest.raises(ValueError, match=r"tokens.txt is damaged: its SHA-256"):
        load_model(tmp_path)
    (tmp_path / "model.onnx").unlink()
    with pytest.raises(FileNotFoundError, match=r"model.onnx is missing"):
        load_model(tmp_path)


def one_symbol_a_frame(transducer, frames) -> list[int]:
    """sherpa-onnx's greedy search: no more than one symbol a frame."""
    row, tokens = transducer.first_row(), []
    for frame in transducer.project(frames):
        best = int(transducer.joint_projected(frame, row[:, : transducer.joint_dim]).argmax())
        if best:
            tokens.append(best)
            row = transducer.follow(row, torch.tensor([best]))
    return tokens


@torch.no_grad()
def test_a_transducer_in_sherpa(tmp_path):
    made = small_model(trim=TRIM, decoders={"transducer": TRANSDUCER})
    sources = recordings(tmp_path)
    export_model(made, tmp_path / "out", SHERPA)
    ours, expected = Recognizer(made), []
    for source in sources:
        (encoded,) = [ours._encode([item]) for item in [ours_source(source, made)]]
        frames, lengths = encoded.memory("transducer")
        tokens = one_symbol_a_frame(made.system.decoders["transducer"], frames[0, : lengths[0]])
        expected.append(made.tokenizer.decode(tokens))
    assert any(expected)
    assert texts_of(in_sherpa(tmp_path / "out"), sources, together=True) == expected
    beam = in_sherpa(tmp_path / "out", decoding_method="modified_beam_search", max_active_paths=1)
    assert texts_of(beam, sources, together=False) == expected
    check_same(made, Recognizer.from_directory(tmp_path / "out"), sources, ["transducer", "ctc-greedy"])


def ours_source(source, model):
    from brctc.decode.sources import read_source

    return read_source(source, model)


def test_eight_bits(tmp_path):
    made = small_model(OFFLINE | {"dim": 64, "feed_forward_dim": 512, "first_layers": 2})
    lines = export_model(made, tmp_path / "out", EXPORTS.parse({"kind": "onnx", "int8": True}))
    assert any(line.startswith("int8: ") for line in lines)
    about = json.loads((tmp_path / "out" / "export.json").read_text())
    found = about["check"]["int8"]
    assert found["bytes"] < 0.45 * found["bytes_before"]
    assert found["agreement"] > 0.8
    assert set(about["check"]["milliseconds"]) == {"torch", "ONNX Runtime", "int8"}
    assert Recognizer.from_directory(tmp_path / "out").recognize(recordings(tmp_path)[:1])[0].tokens


def test_a_wrong_graph_is_not_exported(tmp_path, monkeypatch):
    """The graph is of other weights than the model."""
    from brctc.export import onnx_format

    made, other = small_model(), small_model(seed=2)

    def wrong(system, outputs, trim):
        return encoder_module(other.system, outputs, trim)

    encoder_module = onnx_format.EncoderModule
    monkeypatch.setattr(onnx_format, "EncoderModule", wrong)
    with pytest.raises(ValueError, match=r"ONNX Runtime computes something else:\n  1 frames: 0.0e\+00"):
        export_model(made, tmp_path / "out", ONNX)
    assert not list(tmp_path.iterdir())


def test_an_export_is_not_exported_again(tmp_path, trimmed):
    from tests.cli.commands import brctc

    _, folder, _ = trimmed
    save(small_model(), tmp_path / "model")
    found = brctc(tmp_path, "export", folder, "--out", "again", "--for", "onnx")
    assert found.code == 2
    assert "is exported already" in found.err
