"""From a directory and audio to results, with real files and a model that knows three of them."""

import numpy as np
import pytest
import soundfile
import torch
import torch.nn.functional as F

from brctc.data import FeatureConfig, Row, TokenConfig, Tokenizer, extract_features, load_audio, pad
from brctc.decode import (
    Recognizer,
    attention_beam,
    ctc_greedy,
    transducer_beam,
    transducer_frames,
    transducer_greedy,
    write_ctm,
)
from brctc.evaluate import measure_rtf
from brctc.models import (
    AttentionConfig,
    ConformerConfig,
    HeadConfig,
    Model,
    System,
    SystemConfig,
    TransducerConfig,
    TrimConfig,
    save_model,
)
from tests.decode.systems import TEXT, utterance

RATE = 16000
FEATURES = FeatureConfig()
TEXTS = {"utt 0": "bin", "utt 1": "two", "utt 2": "set in"}
METHODS = ["ctc", "ctc-greedy", "ctc-beam", "attention", "transducer", "transducer-greedy"]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXTS.values(), TokenConfig(kind="char"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audio")
    paths = [folder / f"{name}.wav" for name in TEXTS]
    for n, (path, length_s) in enumerate(zip(paths, (0.7, 0.5, 0.9), strict=True)):
        noise = np.random.default_rng(n).normal(0, 0.1, int(length_s * RATE)).astype(np.float32)
        soundfile.write(path, noise, RATE, subtype="FLOAT")
    return paths


def features_of(path):
    return torch.from_numpy(extract_features(load_audio(path, RATE), FEATURES))


def spoken_frames(text):
    """Where the model is taught to say the characters: two frames apart, none near the end."""
    return [1 + 2 * k for k in range(len(text))]


SMALL = {"dim": 24, "heads": 2, "feed_forward_dim": 48, "dropout": 0.0}
ATTENTION = AttentionConfig(layers=1, **SMALL)
TRANSDUCER = TransducerConfig(prediction_dim=24, joint_dim=24, dropout=0.0)


def make_config(**decoders):
    encoder = ConformerConfig(first_layers=1, second_layers=1, kernel_size=5, subsampling_channels=8, **SMALL)
    return SystemConfig(encoder=encoder, decoders=decoders, normalisation="utterance")


def make_system(classes, attention=True, transducer=True):
    torch.manual_seed(3)
    decoders = {"attention": ATTENTION} if attention else {}
    decoders |= {"transducer": TRANSDUCER} if transducer else {}
    return System(make_config(**decoders), 80, {TEXT: classes})


def loss_of_known_alignment(system, encoded, n, tokens, frames):
    """Cross-entropy of everything the model should say of an utterance, frame by frame."""
    memory = utterance(encoded.final, n)
    path = torch.zeros(int(memory.lengths), dtype=torch.long)
    path[frames] = torch.tensor(tokens)
    targets = torch.tensor([tokens])
    outputs = [utterance(encoded.logits(tap), n).values[0] for tap in ("middle", "final")]
    losses = [F.cross_entropy(logits, path, reduction="sum") for logits in outputs]
    attention, transducer = system.decoders["attention"], system.decoders["transducer"]
    spoken = attention(*memory, targets)[0]
    wanted = torch.tensor([*tokens, attention.end])
    losses.append(F.cross_entropy(spoken, wanted, reduction="sum"))
    said = [sum(frame < t for frame in frames) for t in range(len(path))]  # tokens before frame t
    places = [(t, said[t], 0) for t in range(len(path)) if t not in frames]
    places += [(t, k, token) for k, (t, token) in enumerate(zip(frames, tokens, strict=True))]
    places += [(t, k + 1, 0) for k, t in enumerate(frames)]
    t, u, wanted = torch.tensor(places).T
    joint = transducer.joint(memory.values[0, t], transducer.predictions(targets)[0, u])
    losses.append(3 * F.nll_loss(joint, wanted, reduction="sum"))  # it is the slowest to learn
    return torch.stack(losses).sum()


@pytest.fixture(scope="module")
def system(tokenizer, files):
    """A system that has learnt three utterances by heart, and where their characters are."""
    system = make_system(tokenizer.size)
    optimiser = torch.optim.Adam(system.parameters(), lr=1e-2)
    source = pad([features_of(path) for path in files])
    for _ in range(300):
        encoded = system.encode(source)
        losses = [
            loss_of_known_alignment(system, encoded, n, tokenizer.encode(text), spoken_frames(text))
            for n, text in enumerate(TEXTS.values())
        ]
        loss = torch.stack(losses).mean()
        if loss < 5.0:
            return system
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    raise AssertionError(f"the system has not learnt its utterances: the loss is {loss.item()}")


def paired(files):
    return zip(files, TEXTS.values(), strict=True)


@pytest.fixture(scope="module")
def recognizer(tmp_path_factory, system, tokenizer):
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, system, {TEXT: tokenizer}, FEATURES, None, {"spikes_moved": False})
    return Recognizer.from_directory(folder)


@pytest.mark.parametrize("method", METHODS)
def test_every_search_finds_what_was_learnt(recognizer, files, method):
    for found, (path, text) in zip(recognizer.recognize(files, method, beam=4), paired(files), strict=True):
        assert (found.id, found.text) == (path.stem, text)
        assert found.frames == spoken_frames(text)
        assert found.duration_s == pytest.approx(soundfile.info(path).duration)
        assert found.factor == 1
        assert found.encoder_s > 0
        assert found.decoder_s > 0
        # 4x subsampling of 10 ms: frame j sees input frames 4 j to 4 j + 6, centred at 40 j + 35 ms
        centres = [(start_s + end_s) / 2 for _, start_s, end_s in found.token_times]
        assert centres == pytest.approx([0.04 * frame + 0.035 for frame in found.frames])
        assert "".join(time.word for time in found.token_times) == text
        assert [time.word for time in found.word_times] == text.split()


def test_options_reach_the_search(recognizer, files):
    """A reward that pays for any token, and a search that is told to forget the CTC."""
    system = recognizer.model.system
    with torch.no_grad():
        encoded = system.encode(pad([features_of(files[0])]))
        ctc = encoded.logits()
    expected = attention_beam(system.decoders["attention"], encoded.final, ctc, 3, 0.1, 4.0)[0][0]
    (found,) = recognizer.recognize(files[:1], "attention", beam=3, ctc_weight=0.1, length_reward=4.0)
    assert found.tokens == expected.tokens
    assert found.score == pytest.approx(expected.score, abs=1e-3)
    assert len(found.tokens) > len(TEXTS["utt 0"])


def test_auto_takes_the_decoder_that_there_is(tmp_path, tokenizer, files):
    cases = (True, False, "attention"), (False, True, "transducer"), (False, False, "ctc")
    for n, (attention, transducer, method) in enumerate(cases):
        folder = tmp_path / str(n)
        save_model(folder, make_system(tokenizer.size, attention, transducer), {TEXT: tokenizer}, FEATURES)
        recognizer = Recognizer.from_directory(folder)
        auto, named = (recognizer.recognize(files[1:2], m)[0] for m in ("auto", method))
        assert (auto.tokens, auto.score) == (named.tokens, named.score)
    with pytest.raises(ValueError, match='method is "attention", but the model has no such decoder'):
        recognizer.recognize(files, "attention")


def recognized(config, sizes, tokenizer, files, method, **options):
    """The result for the first file, the encoded file, and the system, which is random."""
    torch.manual_seed(5)
    system = System(config, 80, sizes).eval()
    recognizer = Recognizer(Model(system, dict.fromkeys(sizes, tokenizer), FEATURES, None, {}))
    (found,) = recognizer.recognize(files[:1], method, **options)
    with torch.no_grad():
        encoded = system.encode(pad([features_of(files[0])]))
        encoded.logits(text=config.output)
    return found, encoded, system


def test_a_decoder_hears_the_tap_that_it_was_trained_on(tokenizer, files):
    config = make_config(
        attention=ATTENTION.model_copy(update={"on": "middle"}),
        transducer=TRANSDUCER.model_copy(update={"on": "middle"}),
    )
    sizes = {TEXT: tokenizer.size}
    found, encoded, system = recognized(config, sizes, tokenizer, files, "attention", ctc_weight=0.0, beam=3)
    scores = {
        tap: attention_beam(system.decoders["attention"], memory, None, 3, 0.0)[0][0].score
        for tap, memory in encoded.taps.items()
    }
    assert found.score == pytest.approx(scores["middle"])
    assert found.score != pytest.approx(scores["final"])
    for method, search in (("transducer", transducer_beam), ("transducer-greedy", transducer_greedy)):
        found, encoded, system = recognized(config, sizes, tokenizer, files, method)
        model = system.decoders["transducer"]
        scores = {}
        for tap in ("middle", "final"):
            (best,) = search(model, encoded.taps[tap])
            scores[tap] = (best[0] if method == "transducer" else best).score
        assert found.score == pytest.approx(scores["middle"])
        assert found.score != pytest.approx(scores["final"])
        if method == "transducer":
            (frames,) = transducer_frames(model, encoded.taps["middle"], [found.tokens])
            assert found.frames == frames


@pytest.mark.parametrize("output", [TEXT, "translation"])
def test_of_several_texts_the_output_is_said(tokenizer, files, output):
    """By its own head and decoder, whichever was defined first."""
    texts = {"translation": ATTENTION.model_copy(update={"text": "translation"}), TEXT: ATTENTION}
    config = make_config(**texts).model_copy(
        update={"output": output, "heads": {TEXT: HeadConfig(), "translation": HeadConfig()}}
    )
    sizes = {TEXT: tokenizer.size, "translation": tokenizer.size}
    found, encoded, system = recognized(config, sizes, tokenizer, files, "auto", beam=3)
    scores = {}
    for text in texts:
        with torch.no_grad():
            ctc = encoded.logits(text=text)
        scores[text] = attention_beam(system.decoders[text], encoded.final, ctc, 3, 0.5)[0][0].score
    assert found.score == pytest.approx(scores.pop(output), abs=1e-3)
    assert found.score != pytest.approx(*scores.values(), abs=1e-3)
    found, encoded, _ = recognized(config, sizes, tokenizer, files, "ctc")
    assert found.tokens == ctc_greedy(*encoded.logits(text=output))[0].tokens


@pytest.mark.parametrize("method", ["ctc", "attention", "transducer"])
def test_batches_rows_features_and_order(recognizer, files, method):
    """However an utterance is given, and with whatever others, it is the same utterance."""
    alone = recognizer.recognize(files, method, beam=3)
    seen = []
    rows = [Row(f"row-{n}", "", path, 1.0) for n, path in enumerate(files)]
    batch = recognizer.recognize(rows, method, beam=3, batch_size=2, on_result=seen.append)
    assert seen == batch
    assert [result.id for result in batch] == ["row-0", "row-1", "row-2"]
    arrays = [(path.stem, features_of(path).numpy()) for path in files]
    given = recognizer.recognize(arrays, method, beam=3, batch_size=3)
    for a, b, c in zip(alone, batch, given, strict=True):
        assert a.tokens == b.tokens == c.tokens
        assert a.frames == b.frames == c.frames
        assert b.score == pytest.approx(a.score, abs=1e-3)
        assert c.score == pytest.approx(a.score, abs=1e-3)


def test_a_row_may_be_a_part_of_a_file(recognizer, files, tmp_path):
    whole = [load_audio(path, RATE) for path in files]
    soundfile.write(tmp_path / "all.wav", np.concatenate(whole), RATE, subtype="FLOAT")
    start, length = len(whole[0]), len(whole[1])
    row = Row("part", "", tmp_path / "all.wav", 0.5, start_sample=start, num_samples=length)
    (found,) = recognizer.recognize([row], "ctc")
    assert (found.id, found.text, found.duration_s) == ("part", "two", 0.5)


def test_trimmed_model_says_how_much_it_kept_and_that_it_has_no_times(tmp_path, system, tokenizer, files):
    description = {"spikes_moved": True}
    trim = TrimConfig(threshold=0.5, margin=2)
    save_model(tmp_path, system, {TEXT: tokenizer}, FEATURES, trim, description)
    results = Recognizer.from_directory(tmp_path).recognize(files, "ctc")
    for result, (path, text) in zip(results, paired(files), strict=True):
        frames = (len(features_of(path)) - 7) // 4 + 1
        assert result.factor == pytest.approx((spoken_frames(text)[-1] + 1 + 2) / frames)
        assert result.frames is result.token_times is result.word_times is None
    with pytest.raises(ValueError, match=r"utt 0: .* trained to finish early .* squeezed to the left"):
        write_ctm(tmp_path / "out.ctm", results)


@pytest.mark.parametrize("description", [{}, {"spikes_moved": False}])
def test_trimming_alone_moves_no_spikes(tmp_path, system, tokenizer, files, description):
    trim = TrimConfig(threshold=0.5, margin=2)
    save_model(tmp_path, system, {TEXT: tokenizer}, FEATURES, trim, description)
    results = Recognizer.from_directory(tmp_path).recognize(files, "ctc")
    for result, (_, text) in zip(results, paired(files), strict=True):
        assert result.factor < 1
        assert result.frames == spoken_frames(text)
        assert [time.word for time in result.word_times] == text.split()


def test_features_without_a_clock(tmp_path, system, tokenizer, files):
    """A model that reads handwriting: frames yes, seconds no."""
    save_model(tmp_path, system, {TEXT: tokenizer})
    recognizer = Recognizer.from_directory(tmp_path)
    (found,) = recognizer.recognize([("line", features_of(files[1]))], "ctc")
    assert (found.text, found.frames) == ("two", spoken_frames("two"))
    assert (found.duration_s, found.token_times) == (None, None)
    assert "no duration" in found.no_times
    with pytest.raises(ValueError, match=r"a\.wav: the model takes features that are not made of audio"):
        recognizer.recognize(["a.wav"])


def test_times_only_when_asked_for(recognizer, files):
    (found,) = recognizer.recognize(files[:1], "ctc-beam", times=False)
    assert found.frames is None
    assert found.no_times == "times were not asked for"


def test_timer_is_a_system_to_measure(recognizer, files):
    one, two, three = [(path.stem, features_of(path)) for path in files]
    systems = {
        "greedy": recognizer.timer(method="ctc"),
        "wide": recognizer.timer(method="transducer", beam=8),
    }
    greedy, wide = measure_rtf(systems, [[one], [two, three]], [0.7, 1.4], repeats=2)
    assert greedy.audio_s == pytest.approx(2.1)
    assert wide.decoder_s > greedy.decoder_s > 0
    assert wide.ratio > greedy.ratio == 1


def test_bad_sources_are_named(recognizer, files, tmp_path):
    (tmp_path / "empty.wav").touch()
    (tmp_path / "noise.wav").write_bytes(b"not audio at all")
    soundfile.write(tmp_path / "short.wav", np.zeros(300, np.float32), RATE)
    soundfile.write(tmp_path / "nothing.wav", np.zeros(20, np.float32), RATE)
    cases = [
        (tmp_path / "empty.wav", r"empty\.wav: the file is empty"),
        (tmp_path / "noise.wav", r"noise\.wav: not readable as audio"),
        (tmp_path / "missing.wav", r"missing\.wav: no such file"),
        (tmp_path / "short.wav", "short: 2 frames are too few"),
        (tmp_path / "nothing.wav", r"nothing\.wav: 20 samples make no frame"),
        (("x", np.zeros((50, 40))), r"x: features of shape \(50, 40\), expected \(T, 80\)"),
        (("x", np.full((50, 80), np.nan)), "x: a feature of frame 0 is not finite"),
        (Row("said", "text alone", None, None), "said: there is no audio, only text"),
    ]
    for source, message in cases:
        with pytest.raises(ValueError, match=message):
            recognizer.recognize([files[0], source], "ctc", batch_size=2)
    with pytest.raises(TypeError, match="a source is 3"):
        recognizer.recognize([3])
    with pytest.raises(TypeError, match="expected a list of them"):
        recognizer.recognize(str(files[0]))
    with pytest.raises(ValueError, match="method is 'viterbi', expected one of auto, ctc"):
        recognizer.recognize(files, "viterbi")
    with pytest.raises(ValueError, match="batch_size is 0"):
        recognizer.recognize(files, batch_size=0)
    assert recognizer.recognize([]) == []


def test_a_model_that_diverged(tmp_path, tokenizer):
    system = make_system(tokenizer.size)
    with torch.no_grad():
        system.heads[TEXT].bias[2] = torch.nan
    save_model(tmp_path, system, {TEXT: tokenizer}, FEATURES)
    with pytest.raises(ValueError, match=r"non-finite weights \(heads\.transcript\.bias\).* diverged"):
        Recognizer.from_directory(tmp_path)


def test_no_model(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no model"):
        Recognizer.from_directory(tmp_path)


@pytest.mark.parametrize("method", ["transducer", "transducer-greedy", "attention"])
def test_frames_that_a_decoder_does_not_see(recognizer, files, method):
    """It gets the spikes alone; the tokens' frames are still those of the audio."""
    system = recognizer.model.system
    for path, text in paired(files):
        with torch.no_grad():
            encoded = system.encode(pad([features_of(path)]))
            memory = encoded.seen_by("transducer", 0.5)
        assert memory.frames[0].tolist() == spoken_frames(text)
        (found,) = recognizer.recognize([path], method, skip_blanks=0.5, beam=4)
        assert set(found.frames) <= set(spoken_frames(text))
        if method == "attention":  # it has learnt what it has to see
            continue
        name = method.removesuffix("-greedy")
        search = transducer_greedy if method.endswith("greedy") else transducer_beam
        (expected,) = search(system.decoders[name], memory.hidden)
        expected = expected if method.endswith("greedy") else expected[0]
        assert found.tokens == expected.tokens


def test_skip_blanks_is_a_probability(recognizer, files):
    with pytest.raises(ValueError, match=r"skip_blanks is 1\.0, expected a probability between 0 and 1"):
        recognizer.recognize(files, "attention", skip_blanks=1.0)
