"""Systems as a whole: taps and heads, several texts, decoders by kind, and what does not fit together."""

import pytest
import torch
from pydantic import ValidationError

from brctc.config import describe_problems
from brctc.data import Padded
from brctc.models import AttentionConfig, CTCHead, System, SystemConfig, TransducerConfig, TrimConfig
from brctc.trimming import trimmed_lengths
from tests.models.toys import (
    CLASSES,
    FEATURES,
    TEXT,
    TRIM,
    finish_early,
    ready_to_compare,
    toy_batch,
    toy_config,
    toy_online,
    toy_online_config,
    toy_system,
)

TRANSLATION = "translation"
SIZES = {TEXT: CLASSES, TRANSLATION: 9}
ATTENTION = AttentionConfig(layers=1, dim=12, heads=2, feed_forward_dim=20)


def two_texts(config=None, **changes) -> System:
    """A head for each text, the translation's on the middle."""
    heads = {TEXT: {}, TRANSLATION: {"on": "middle" if config is None else "final"}}
    content = (config or toy_config()).model_dump() | {"heads": heads} | changes
    torch.manual_seed(0)
    return ready_to_compare(System(SystemConfig.model_validate(content), FEATURES, SIZES))


def test_heads_predict_on_any_tap():
    """One classifier serves all taps; frames are those of the tap."""
    system, batch = toy_system(), toy_batch()
    finish_early(system, batch)
    encoded = system.encode(batch.source, TRIM)
    assert isinstance(system.heads[TEXT], CTCHead)
    frames = {tap: hidden.lengths for tap, hidden in encoded.taps.items()}
    assert frames["middle"].sum() > frames["trimmed"].sum() == frames["final"].sum()
    for tap, hidden in encoded.taps.items():
        logits, lengths = encoded.logits(tap)
        assert torch.equal(lengths, hidden.lengths)
        torch.testing.assert_close(logits, system.heads[TEXT](hidden.values))
        assert not torch.allclose(logits[0, 0], encoded.logits("final").values[0, 0]) or tap == "final"
    assert torch.equal(encoded.logits().values, encoded.logits("final").values)
    assert encoded.final is encoded.taps["final"]


def test_a_head_is_asked_once():
    system, batch = toy_system(), toy_batch()
    asked = []
    system.heads[TEXT].register_forward_hook(lambda *_: asked.append(1))
    encoded = system.encode(batch.source)
    assert asked == [], "what nobody asks for is not computed"
    assert encoded.logits().values is encoded.logits().values
    assert len(asked) == 1
    trimmed = system.encode(batch.source, TRIM)
    assert len(asked) == 2, "the middle decides"
    trimmed.logits("middle")
    trimmed.kept_lengths("middle", TRIM)
    assert len(asked) == 2


def test_each_text_has_a_head_of_its_own():
    system, batch = two_texts(), toy_batch()
    encoded = system.encode(batch.source)
    for text, classes in SIZES.items():
        logits = encoded.logits("middle", text).values
        assert logits.shape[2] == classes
        torch.testing.assert_close(logits, system.heads[text](encoded.taps["middle"].values))


def test_the_rule_says_whose_head_decides():
    system, batch = two_texts(), toy_batch()
    finish_early(system, batch)  # the transcript does
    whole = system.encode(batch.source)
    kept = {}
    for text in SIZES:
        rule = TRIM.model_copy(update={"text": text})
        logits, lengths = whole.logits("middle", text)
        kept[text] = trimmed_lengths(logits, lengths, threshold=0.3, margin=1, from_logits=True)
        assert torch.equal(whole.kept_lengths("middle", rule), kept[text])
        assert torch.equal(system.encode(batch.source, rule).final.lengths, kept[text])
    assert not torch.equal(*kept.values())


def test_kept_lengths_are_what_trimming_would_keep():
    """On any tap, trimmed or not."""
    system, batch = toy_system(), toy_batch()
    finish_early(system, batch)
    whole, trimmed = system.encode(batch.source), system.encode(batch.source, TRIM)
    for encoded in (whole, trimmed):
        assert torch.equal(encoded.kept_lengths("middle", TRIM), trimmed.final.lengths)
        found = encoded.kept_lengths("final", TRIM)
        assert (found <= encoded.final.lengths).all()


def test_what_was_encoded_has_no_such_tap_or_head():
    source = toy_batch().source
    encoded = toy_online().encode(source)
    with pytest.raises(ValueError, match="there is no tap 'middle'; the encoder has final"):
        encoded.logits("middle")
    with pytest.raises(ValueError, match="there is no tap 'middle'; the encoder has final"):
        encoded.kept_lengths("middle", TRIM)
    rule = TrimConfig(text=TRANSLATION)
    online = toy_system(toy_online_config().model_copy(update={"output": TRANSLATION}))
    window = torch.zeros(1, online.encoder.window_frames, FEATURES).double()
    message = "there is no CTC head for 'translation': the system has transcript"
    for call in (
        lambda: encoded.logits(text=TRANSLATION),
        lambda: encoded.kept_lengths("final", rule),
        lambda: toy_system().encode(source, rule),
        lambda: online.step(window, torch.tensor([window.shape[1]]), online.initial_state(1)),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_streams_give_the_text_of_the_output():
    for text, classes in SIZES.items():
        system = two_texts(toy_online_config(), output=text)
        window = system.encoder.window_frames
        features, lengths = torch.randn(1, window, FEATURES).double(), torch.tensor([window])
        found, _ = system.step(features, lengths, system.initial_state(1))
        assert found.logits.shape == (1, system.encoder.chunk_frames, classes)
        torch.testing.assert_close(found.logits, system.heads[text](found.hidden.values))


def test_decoders_by_kind():
    """The one that says the text of the output."""
    decoders = {
        "first": ATTENTION.model_copy(update={"text": TRANSLATION}),
        "second": ATTENTION,
        "third": ATTENTION.model_copy(update={"label_smoothing": 0.2}),
    }
    for output, name in ((TEXT, "second"), (TRANSLATION, "first")):
        system = two_texts(decoders=decoders, output=output)
        assert system.decoder("attention") is system.decoders[name]
        assert system.decoder("transducer") is None
    assert system.decoders["first"].end == SIZES[TRANSLATION]
    assert system.decoders["second"].end == CLASSES
    both = toy_system(attention=True, transducer=True)
    assert both.decoder("transducer") is both.decoders["transducer"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            {"heads": {TEXT: {"on": "midle"}}},
            "model: heads.transcript.on: there is no tap 'midle'; the encoder has middle, trimmed, final",
        ),
        (
            {"decoders": {"d": {"kind": "attention", "on": "first"}}},
            "model: decoders.d.on: there is no tap 'first'; the encoder has middle, trimmed, final",
        ),
        (
            {"encoder": {"kind": "emformer"}, "heads": {TEXT: {"on": "middle"}}},
            "model: heads.transcript.on: there is no tap 'middle'; the encoder has final",
        ),
        ({"decoders": {"d": {}}}, "model: decoders.d.kind: required; there are: attention, transducer"),
        ({"decoders": {"d": {"kind": "attention", "dim": "x"}}}, "model: decoders.d.dim: input should be"),
        ({"attention": {}}, "model: attention: unknown key"),
        ({"normalisation": "all"}, "model: normalisation: expected 'global', 'utterance' or 'none'"),
    ],
)
def test_parts_that_do_not_fit(content, problem):
    with pytest.raises(ValidationError) as found:
        SystemConfig.model_validate(content)
    (line,) = describe_problems(found.value, SystemConfig, "model").splitlines()
    assert line.startswith(problem)


def test_texts_without_a_vocabulary():
    with pytest.raises(ValueError, match=r"model\.heads\.transcript: there are no tokens for .*transcript"):
        System(toy_config(), FEATURES, {TRANSLATION: 9})
    config = toy_config().model_copy(
        update={"decoders": {"t": TransducerConfig(prediction_dim=4, joint_dim=4, text=TRANSLATION)}}
    )
    with pytest.raises(ValueError, match=r"model\.decoders\.t\.text: there are no tokens for .*translation"):
        System(config, FEATURES, {TEXT: 5})


def test_statistics_belong_to_the_system():
    """They are stored with it, and no optimiser sees them."""
    system, source = toy_system(), toy_batch().source
    mean, std = torch.randn(FEATURES).double(), 1 + torch.rand(FEATURES).double()
    before = system.encode(source).logits().values[0]
    system.set_statistics(mean, std)
    assert torch.equal(system.state_dict()["normalisation.mean"], mean)
    assert not any("normalisation" in name for name, _ in system.named_parameters())
    moved = Padded(source.values * std + mean, source.lengths)
    system.set_statistics(torch.zeros(FEATURES), torch.ones(FEATURES))
    plain = system.encode(source).logits().values[0]
    system.set_statistics(mean, std)
    torch.testing.assert_close(system.encode(moved).logits().values[0], plain)
    assert not torch.allclose(before, plain)


def test_configurations_say_what_they_can():
    assert toy_online_config().streaming
    assert not toy_config().streaming
    assert toy_system().device == torch.device("cpu")
