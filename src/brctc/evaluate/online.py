"""What an online model reaches on a prepared split: how many errors, and how late."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from brctc.data import Example, Prepared, Tokenizer, WordTime
from brctc.data.units import Unit, times_in, unit_of
from brctc.decode import SimulatedClock, StreamingRecognizer, play
from brctc.decode.pool import RecognizerPool
from brctc.decode.result import Result
from brctc.decode.sources import check_features
from brctc.decode.times import spike_times, word_times
from brctc.evaluate.decoding import Progress, decode_examples, spread_indices
from brctc.evaluate.error_rate import ErrorRate, error_rate
from brctc.evaluate.latency import (
    DriftLatency,
    Spread,
    computational_latency_ms,
    data_collecting_latency_ms,
    drift_latency,
)
from brctc.evaluate.real_time import one_thread
from brctc.evaluate.results import from_json, to_json
from brctc.models import Model, StreamingEncoder


@dataclass(frozen=True)
class OnlineEvaluation:
    """An online model on a split, by greedy CTC. Words count, and each from its start in the reference; where
    errors are of characters, Chinese and Japanese ones take the place of words (`brctc.data.units`).

    `latency_ms` is the paper's: data collecting + computation + drift. What is observed is measured on
    utterances that were really streamed, with what the paper's sum is for these beside it.
    """

    utterances: int
    digest: str
    """Of the utterances: measurements are good as long as these are the same."""
    unit: Unit
    """Of the errors; times follow it."""
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
    model: str | Path,
    prepared: Prepared,
    *,
    limit: int | None = None,
    streamed: int = 30,
    unit: Unit | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> OnlineEvaluation:
    """Decodes a split greedily, and streams a part of it.

    Args:
        model: the directory that `brctc.models.save_model` wrote, of a streaming model.
        prepared: the split. Utterances without word times count for errors only; some must have them.
        limit: decode so many utterances, spread over the split; all by default. The whole utterances
            are decoded in batches, which gives the same tokens and frames as streaming them.
        streamed: so many of these, if they have word times, are streamed in the time of a simulated
            clock (`brctc.decode.SimulatedClock`); from them are `rtf` and what is observed.
        unit: what errors and latencies are counted in; characters for systems of characters, words for
            others.
        jobs: processes that decode, where there is no GPU. Streams are measured in one, on the CPU.
        progress: called after every batch.
    """
    if streamed < 1:
        raise ValueError(f"streamed is {streamed}, expected at least 1")
    chosen = choose_utterances(prepared, limit)
    tell = progress or (lambda what, done, total: None)
    with RecognizerPool(model, jobs) as pool:
        found = pool.recognizer.model
        encoder = check_online(str(model), found, prepared)
        results = decode_examples(pool, prepared, chosen, "decoding", tell, method="ctc-greedy")
    unit = unit or unit_of(found.tokenizer.kind)
    frame_s = found.system.config.encoder.subsampling * prepared.frame_shift_s
    words = _spikes(results, found.tokenizer, unit, frame_s)
    drift = drift_latency(_references(prepared, chosen, unit), words)
    some = _stream_some(found, prepared, chosen, words, unit, streamed, tell)
    chunk_ms, right_context_ms = (
        1000 * frame_s * frames for frames in (encoder.chunk_frames, encoder.right_context_frames)
    )
    texts = [result.text for result in results]
    return OnlineEvaluation(
        utterances=len(chosen),
        digest=digest_of(prepared, chosen),
        unit=unit,
        error=error_rate([prepared.examples[i].texts["transcript"] for i in chosen], texts, unit),
        texts=tuple(texts),
        chunk_ms=chunk_ms,
        right_context_ms=right_context_ms,
        rtf=some.rtf,
        dcl_ms=data_collecting_latency_ms(chunk_ms, right_context_ms),
        cl_ms=computational_latency_ms(chunk_ms, some.rtf),
        drift=drift.drift,
        end_of_sentence=drift.end_of_sentence,
        without_reference=drift.without_reference,
        streamed=some.utterances,
        streamed_drift=some.drift,
        observed=some.observed.drift,
        observed_end_of_sentence=some.observed.end_of_sentence,
    )


def choose_utterances(prepared: Prepared, limit: int | None) -> list[int]:
    """So many, spread over a split, or all. One that does not say when its words begin is refused."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}, expected at least 1")
    chosen = spread_indices(len(prepared), limit)
    if all(prepared.examples[i].word_times is None for i in chosen):
        raise ValueError(
            f"{prepared.directory}: none of the {len(chosen)} utterances of {prepared.split!r} has word "
            "times, so there is no latency to measure: `brctc reference-times` finds them for a manifest, "
            "which is then to be prepared again"
        )
    return chosen


def digest_of(prepared: Prepared, chosen: Sequence[int]) -> str:
    """Changes with the utterances: their ids, lengths, texts and times of words."""
    found = [prepared.examples[i] for i in chosen]
    content = [[u.id, u.num_frames, dict(u.texts), u.word_times] for u in found]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def check_online(name: str, model: Model, prepared: Prepared) -> StreamingEncoder:
    """The encoder of a model that can be streamed and fits the features; others are refused."""
    encoder = model.system.encoder
    if not isinstance(encoder, StreamingEncoder):
        kind = model.system.config.encoder.kind
        raise ValueError(f"{name} has a {kind}, but needs a streaming encoder (kind: emformer)")
    check_features(name, model, prepared)
    return encoder


Words = Sequence[WordTime]


def reference_times(example: Example, unit: Unit) -> Words | None:
    """When the words of an example are said, or its characters where these count; None if nobody knows."""
    if example.word_times is None:
        return None
    return times_in(unit, example.word_times, example.texts["transcript"])


def _references(prepared: Prepared, chosen: Sequence[int], unit: Unit) -> list[Words | None]:
    return [reference_times(prepared.examples[i], unit) for i in chosen]


def _spikes(results: Sequence[Result], tokenizer: Tokenizer, unit: Unit, frame_s: float) -> list[Words]:
    """The words of each result where the model predicts them; one that has no times is refused."""
    words = []
    for result in results:
        if result.token_times is None:
            raise ValueError(f"{result.id}: there are no times to measure: {result.no_times}")
        words.append(spike_times(word_times(result.tokens, result.token_times, tokenizer, unit), frame_s))
    return words


class _Streamed(NamedTuple):
    """What utterances that were streamed have shown."""

    utterances: int
    rtf: float
    drift: Spread
    """Of their words in the whole utterances."""
    observed: DriftLatency
    """Of their words as they were handed over."""


def _stream_some(
    model: Model,
    prepared: Prepared,
    chosen: Sequence[int],
    words: Sequence[Words],
    unit: Unit,
    most: int,
    tell: Progress,
) -> _Streamed:
    """Streams at most so many of the chosen utterances that have word times, on the CPU; `words` are all
    utterances' words."""
    references = _references(prepared, chosen, unit)
    timed = [k for k, reference in enumerate(references) if reference is not None]
    sample = [timed[k] for k in spread_indices(len(timed), most)]
    model.system.cpu()
    rtf, handed = _stream(model, prepared, [chosen[k] for k in sample], unit, tell)
    known = [references[k] for k in sample]
    drift = drift_latency(known, [words[k] for k in sample]).drift
    return _Streamed(len(sample), rtf, drift, drift_latency(known, handed))


def _stream(
    model: Model, prepared: Prepared, chosen: Sequence[int], unit: Unit, tell: Progress
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
                heard_s += prepared.examples[index].duration_s
                words.append(word_times(tokens, times, model.tokenizer, unit))
                tell("streaming", done, len(chosen))
    return computed_s / heard_s, words
