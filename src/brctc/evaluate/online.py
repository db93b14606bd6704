"""What an online model reaches on a prepared split: how many errors, and how late."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from brctc.data import Prepared, WordTime
from brctc.decode import Recognizer, SimulatedClock, StreamingRecognizer, play
from brctc.decode.sources import check_features
from brctc.decode.times import spike_times, word_times
from brctc.evaluate.error_rate import ErrorRate, Unit, error_rate
from brctc.evaluate.latency import (
    Spread,
    computational_latency_ms,
    data_collecting_latency_ms,
    drift_latency,
)
from brctc.evaluate.offline import BATCH, Progress, spread_indices, unit_of
from brctc.evaluate.real_time import one_thread
from brctc.evaluate.results import from_json, to_json
from brctc.models import EmformerConfig, Model, load_model


@dataclass(frozen=True)
class OnlineEvaluation:
    """An online model on a split, by greedy CTC. Words count, and each from its start in the reference.

    `latency_ms` is the paper's: data collecting + computation + drift. What is observed is measured on
    utterances that were really streamed, with what the paper's sum is for these beside it.
    """

    utterances: int
    digest: str
    """Of the utterances: measurements are good as long as these are the same."""
    unit: Unit
    """Of the errors."""
    error: ErrorRate
    texts: tuple[str, ...]
    """What was recognized: with it, errors can be compared in pairs."""
    chunk_ms: float
    right_context_ms: float
    rtf: float
    """Of the streams, one at a time on one thread, in CPU time; features were there already."""
    dcl_ms: float
    cl_ms: float
    drift: Spread
    """From the start of each word to the last frame of its prediction."""
    end_of_sentence: Spread
    without_reference: int
    """Utterances that have no word times, and count for errors only."""
    streamed: int
    """Utterances that were streamed."""
    streamed_drift: Spread
    """As `drift`, of these."""
    observed: Spread
    """Until each word was handed over."""
    observed_end_of_sentence: Spread

    @property
    def latency_ms(self) -> float:
        """Data collecting + computation + drift, on average."""
        return self.dcl_ms + self.cl_ms + self.drift.mean_ms

    @property
    def expected_ms(self) -> float:
        """What `observed` should be on average: the same sum for the utterances that were streamed."""
        return self.dcl_ms + self.cl_ms + self.streamed_drift.mean_ms

    def to_json(self) -> str:
        """As text."""
        return to_json(self)

    @staticmethod
    def from_json(text: str) -> "OnlineEvaluation":
        """What `to_json` gave; anything else is refused."""
        return from_json(OnlineEvaluation, text)


def evaluate_online(
    model: str | Path | Model,
    prepared: Prepared,
    *,
    limit: int | None = None,
    streamed: int = 30,
    unit: Unit | None = None,
    progress: Progress | None = None,
) -> OnlineEvaluation:
    """Decodes a split greedily, and streams a part of it.

    Args:
        model: an online one, or the directory that `brctc.models.save_model` wrote.
        prepared: the split. Utterances without word times count for errors only; some must have them.
        limit: decode so many utterances, spread over the split; all by default. The whole utterances
            are decoded in batches, which gives the same tokens and frames as streaming them.
        streamed: so many of these, if they have word times, are streamed in the time of a simulated
            clock (`brctc.decode.SimulatedClock`); from them are `rtf` and what is observed.
        unit: what errors are counted in; characters for systems of characters, words for others.
        progress: called after every utterance.
    """
    if streamed < 1:
        raise ValueError(f"streamed is {streamed}, expected at least 1")
    chosen = choose_utterances(prepared, limit)
    name = "the model" if isinstance(model, Model) else str(model)
    model = model if isinstance(model, Model) else load_model(model)
    encoder = check_online(name, model, prepared)
    tell = progress or (lambda what, done, total: None)
    unit = unit or unit_of(model.tokenizer.kind)

    frame_s = encoder.subsampling * prepared.frame_shift_s
    texts, words = _decode(model, prepared, chosen, tell)
    words = [spike_times(said, frame_s) for said in words]
    references = [prepared.utterances[i].word_times for i in chosen]
    drift = drift_latency(references, words)

    timed = [k for k, reference in enumerate(references) if reference is not None]
    sample = [timed[k] for k in spread_indices(len(timed), streamed)]
    rtf, handed = _stream(model, prepared, [chosen[k] for k in sample], tell)
    sample_references = [references[k] for k in sample]
    observed = drift_latency(sample_references, handed)

    frame_ms = 1000 * frame_s
    chunk_ms, right_context_ms = encoder.chunk_frames * frame_ms, encoder.right_context_frames * frame_ms
    return OnlineEvaluation(
        utterances=len(chosen),
        digest=digest_of(prepared, chosen),
        unit=unit,
        error=error_rate([prepared.utterances[i].text for i in chosen], texts, unit),
        texts=tuple(texts),
        chunk_ms=chunk_ms,
        right_context_ms=right_context_ms,
        rtf=rtf,
        dcl_ms=data_collecting_latency_ms(chunk_ms, right_context_ms),
        cl_ms=computational_latency_ms(chunk_ms, rtf),
        drift=drift.drift,
        end_of_sentence=drift.end_of_sentence,
        without_reference=drift.without_reference,
        streamed=len(sample),
        streamed_drift=drift_latency(sample_references, [words[k] for k in sample]).drift,
        observed=observed.drift,
        observed_end_of_sentence=observed.end_of_sentence,
    )


def choose_utterances(prepared: Prepared, limit: int | None) -> list[int]:
    """So many, spread over a split, or all. One that does not say when its words begin is refused."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}, expected at least 1")
    chosen = spread_indices(len(prepared), limit)
    if all(prepared.utterances[i].word_times is None for i in chosen):
        raise ValueError(
            f"{prepared.directory}: none of the {len(chosen)} utterances of {prepared.split!r} says when its "
            "words begin, so there is no latency: `brctc reference-times` finds it out for a manifest, "
            "which is then prepared anew"
        )
    return chosen


def digest_of(prepared: Prepared, chosen: Sequence[int]) -> str:
    """Changes with the utterances: their ids, lengths, texts and times of words."""
    found = [prepared.utterances[i] for i in chosen]
    content = [[u.id, u.num_frames, u.text, u.word_times] for u in found]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def check_online(name: str, model: Model, prepared: Prepared) -> EmformerConfig:
    """The encoder of a model that can be streamed and fits the features; others are refused."""
    encoder = model.system.config.encoder
    if not isinstance(encoder, EmformerConfig):
        raise ValueError(f"{name} has a {encoder.kind}, which takes no streams: use an emformer")
    check_features(name, model, prepared)
    return encoder


Words = Sequence[WordTime]


def _decode(
    model: Model, prepared: Prepared, chosen: Sequence[int], tell: Progress
) -> tuple[list[str], list[Words]]:
    """Text and timed words of each chosen utterance."""
    recognizer = Recognizer(model)
    order = sorted(range(len(chosen)), key=lambda k: prepared.utterances[chosen[k]].num_frames)
    texts = [""] * len(chosen)
    words: list[Words] = [()] * len(chosen)
    for first in range(0, len(order), BATCH):
        batch = order[first : first + BATCH]
        sources = [(prepared.utterances[chosen[k]].id, prepared.features(chosen[k])) for k in batch]
        results = recognizer.recognize(sources, "ctc-greedy", batch_size=BATCH)
        for k, result in zip(batch, results, strict=True):
            if result.word_times is None:
                raise ValueError(f"{result.id}: there are no times to measure: {result.no_times}")
            texts[k], words[k] = result.text, result.word_times
        tell("decoding", first + len(batch), len(order))
    return texts, words


def _stream(
    model: Model, prepared: Prepared, chosen: Sequence[int], tell: Progress
) -> tuple[float, list[Words]]:
    """The real-time factor, and the words of each utterance, which end when they were handed over."""
    recognizer = StreamingRecognizer(model)
    computed_s = heard_s = 0.0
    words: list[Words] = []
    with one_thread():
        for done, index in enumerate([*chosen[:1], *chosen]):  # the first one twice, to warm up
            features = torch.from_numpy(prepared.features(index))
            recognizer.reset()
            clock = SimulatedClock()
            tokens, times = [], []
            for token, handed_s in play(recognizer, features, clock):
                tokens.append(token.token)
                times.append(WordTime(token.piece, token.fired_s, handed_s))
            if done:
                computed_s += clock.computed_s
                heard_s += prepared.utterances[index].duration_s
                words.append(word_times(tokens, times, model.tokenizer))
                tell("streaming", done, len(chosen))
    return computed_s / heard_s, words
