"""From a model directory and audio, a manifest's rows, features or texts to text."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from brctc.data import Padded, Row, pad
from brctc.data.units import unit_of
from brctc.decode.attention_beam import attention_beam
from brctc.decode.ctc import check_counts, ctc_frames, ctc_greedy, ctc_prefix_beam
from brctc.decode.hypothesis import Hypothesis
from brctc.decode.methods import Method, Search, choose_search, decoder_of
from brctc.decode.result import Alternative, Result
from brctc.decode.sources import Input, Source, read_source
from brctc.decode.times import frame_clock, token_times, word_times
from brctc.decode.transducer import transducer_beam, transducer_frames, transducer_greedy
from brctc.models import DecoderMemory, Encoded, Model, load_model

EARLY_FINISH = (
    "the model was trained to finish early (EarlyFinish): its spikes are squeezed to the left, they are "
    "not where the words are spoken"
)
NO_ALIGNMENT = "the CTC output has no path that says these tokens"
NO_CTC = "the model has no CTC output that would say when"
NO_CLOCK = "the model takes features that were not made of audio: its frames have no duration"
NO_SOUND = "the model reads text: its frames have no duration"
NOT_WANTED = "times were not asked for"
Spans = tuple[list[int], list[int]]
"""The first and the last frame of each token."""


def check_model(model: Model) -> None:
    """Refuses a model whose weights are not finite."""
    for name, tensor in model.system.state_dict().items():
        if not tensor.isfinite().all():
            raise ValueError(f"the model has non-finite weights ({name}): its training diverged")


def best_device() -> torch.device:
    """A GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Recognizer:
    """A trained model with the searches that fit it.

    >>> recognizer = Recognizer.from_directory("exp/model")
    >>> [result.text for result in recognizer.recognize(["a.wav", "b.flac"])]
    """

    def __init__(self, model: Model) -> None:
        check_model(model)
        self.model = model
        model.system.eval()

    @staticmethod
    def from_directory(directory: str | Path, device: torch.device | str | None = None) -> "Recognizer":
        """The model that `brctc.models.save_model` wrote there, on a GPU if there is one."""
        model = load_model(directory)
        model.system.to(device or best_device())
        return Recognizer(model)

    def recognize(
        self,
        sources: Sequence[Source],
        method: Method = "auto",
        beam: int = 10,
        ctc_weight: float = 0.5,
        length_reward: float = 0.0,
        skip_blanks: float | None = None,
        batch_size: int = 1,
        times: bool = True,
        nbest: int = 1,
        others: bool = False,
        on_result: Callable[[Result], object] | None = None,
    ) -> list[Result]:
        """The best hypothesis for each source, in their order.

        method: how to search; "auto" takes the decoder that the model has, or "ctc-greedy", which is
            "ctc" for short. "ctc-beam" and "transducer" sum over paths.
        beam: of all searches but the greedy ones.
        ctc_weight, length_reward: of "attention", the joint CTC/attention search.
        skip_blanks: frames whose CTC blank is more likely than this are hidden from the decoder.
        batch_size: utterances that are encoded together. Only with 1 are costs those of one alone.
        times: find the frames of the tokens, too. This is not part of the costs.
        nbest: so many hypotheses are in each result.
        others: what other CTC heads say is in each result, too, such as the transcript beside a translation.
        on_result: called with every result as soon as it is known, to show progress.
        """
        search = Search(method, beam, ctc_weight, length_reward, skip_blanks, nbest)
        results: list[Result] = []
        for (found,) in self.recognize_each(sources, [search], batch_size, times=times, others=others):
            results.append(found)
            if on_result is not None:
                on_result(found)
        return results

    def recognize_each(
        self,
        sources: Sequence[Source],
        searches: Sequence[Search],
        batch_size: int = 1,
        *,
        times: bool = True,
        others: bool = False,
    ) -> Iterator[tuple[Result, ...]]:
        """For each source, the result of every search. The encoder runs once, whatever their number."""
        if isinstance(sources, str | Path | Row):
            raise TypeError(f"sources is {sources!r}, expected a list of them")
        check_counts(batch_size=batch_size)
        chosen = [replace(s, method=choose_search(s.method, self.model.system.config)) for s in searches]
        no_times = self._no_times(times)
        for first in range(0, len(sources), batch_size):
            batch = [read_source(source, self.model) for source in sources[first : first + batch_size]]
            start = self._clock()
            encoded = self._encode(batch)
            encoder_s = self._clock() - start
            said = self._others(encoded) if others else [{}] * len(batch)
            found = [self._results(batch, encoded, search, encoder_s, no_times) for search in chosen]
            for n, results in enumerate(zip(*found, strict=True)):
                yield tuple(replace(result, others=said[n]) for result in results)

    def _results(
        self, batch: list[Input], encoded: Encoded, search: Search, encoder_s: float, no_times: str | None
    ) -> list[Result]:
        """Of one search over a batch."""
        start = self._clock()
        nbest = self._search(encoded, search)
        decoder_s = self._clock() - start
        best = [found[0] for found in nbest]
        spans = [None] * len(batch) if no_times else self._spans(encoded, search, best)
        costs = encoder_s / len(batch), decoder_s / len(batch)
        results = []
        for item, found, factor, span in zip(batch, nbest, self._factors(encoded), spans, strict=True):
            result = self._result(item, found[0], factor, span, costs, no_times)
            if search.nbest > 1:
                result = replace(result, nbest=tuple(self._alternative(one) for one in found))
            results.append(result)
        return results

    def _clock(self) -> float:
        """Seconds, when a GPU has done what it was told: it returns before."""
        if self.model.system.device.type == "cuda":
            torch.cuda.synchronize(self.model.system.device)
        return time.perf_counter()

    def _alternative(self, hypothesis: Hypothesis) -> Alternative:
        text = self.model.tokenizer.decode(hypothesis.tokens)
        return Alternative(text, hypothesis.tokens, hypothesis.score)

    @torch.inference_mode()
    def _others(self, encoded: Encoded) -> list[dict[str, str]]:
        """What the heads of other texts say, greedily."""
        said: list[dict[str, str]] = [{} for _ in encoded.final.lengths]
        for text in self.model.system.config.heads:
            if text != self.model.system.config.output:
                tokenizer = self.model.tokenizers[text]
                for known, found in zip(said, ctc_greedy(*encoded.logits(text=text)), strict=True):
                    known[text] = tokenizer.decode(found.tokens)
        return said

    def timer(self, **options: Any) -> Callable[[Sequence[Source]], tuple[float, float]]:
        """A system for `brctc.evaluate.measure_rtf`: (encoder_s, decoder_s) of sources that are searched as
        one batch, with the options of `recognize`."""

        def run(sources: Sequence[Source]) -> tuple[float, float]:
            results = self.recognize(sources, times=False, batch_size=len(sources), **options)
            return sum(result.encoder_s for result in results), sum(result.decoder_s for result in results)

        return run

    def _factors(self, encoded: Encoded) -> list[float]:
        """The share of the frames that trimming has left of each utterance."""
        before, after = encoded.taps[self.model.watched_tap].lengths, encoded.final.lengths
        return (after.double() / before).tolist()

    @torch.inference_mode()
    def _encode(self, batch: list[Input]) -> Encoded:
        system = self.model.system
        return system.encode(pad([item.values for item in batch]).to(system.device), self.model.trim)

    def _search(self, encoded: Encoded, search: Search) -> list[list[Hypothesis]]:
        """The best hypotheses of each utterance, the best one first."""
        beam, nbest = search.beam, search.nbest
        match search.method:
            case "attention":
                weight = search.ctc_weight if self._has_ctc else 0.0
                ctc = self._logits(encoded) if weight else None
                decoder, memory = self._decoder(encoded, search)
                reward = search.length_reward
                return attention_beam(decoder, memory.hidden, ctc, beam, weight, reward, nbest)
            case "transducer-greedy":
                decoder, memory = self._decoder(encoded, search)
                return [
                    [replace(found, frames=memory.frames_of(n, found.frames or []))]
                    for n, found in enumerate(transducer_greedy(decoder, memory.hidden))
                ]
            case "transducer":
                decoder, memory = self._decoder(encoded, search)
                return transducer_beam(decoder, memory.hidden, beam, nbest)
            case "ctc-beam":
                return [found[:nbest] for found in ctc_prefix_beam(*self._logits(encoded), beam)]
            case _:
                return [[found] for found in ctc_greedy(*self._logits(encoded))]

    @torch.inference_mode()
    def _decoder(self, encoded: Encoded, search: Search) -> tuple[Any, DecoderMemory]:
        """The decoder of a search, and what it attends to."""
        system = self.model.system
        name = system.config.decoder_name(decoder_of(search.method) or "")
        assert name is not None, "choose_search has seen to it"
        return system.decoders[name], encoded.seen_by(name, search.skip_blanks)

    @property
    def _has_ctc(self) -> bool:
        """Whether CTC says the text of decoding, too."""
        return self.model.system.config.output in self.model.system.config.heads

    def _logits(self, encoded: Encoded) -> Padded:
        with torch.inference_mode():
            return encoded.logits(text=self.model.system.config.output)

    def _no_times(self, wanted: bool) -> str | None:
        if self.model.description.get("spikes_moved"):
            return EARLY_FINISH
        if not self._has_ctc:
            return NO_CTC
        return None if wanted else NOT_WANTED

    def _spans(
        self, encoded: Encoded, search: Search, hypotheses: list[Hypothesis]
    ) -> Sequence[Spans | None]:
        if search.method.endswith("-greedy"):
            return [(hypothesis.frames or [], hypothesis.last_frames or []) for hypothesis in hypotheses]
        tokens = [hypothesis.tokens for hypothesis in hypotheses]
        if search.method == "transducer":
            decoder, memory = self._decoder(encoded, search)
            found = [
                memory.frames_of(n, frames)
                for n, frames in enumerate(transducer_frames(decoder, memory.hidden, tokens))
            ]
            return [(frames, frames) for frames in found]
        return ctc_frames(*self._logits(encoded), tokens)

    def _result(
        self,
        item: Input,
        hypothesis: Hypothesis,
        factor: float,
        spans: Spans | None,
        costs: tuple[float, float],
        no_times: str | None,
    ) -> Result:
        tokenizer, clock = self.model.tokenizer, self.model.features
        tokens = hypothesis.tokens
        spoken = words = None
        if no_times is None and spans is None:
            no_times = NO_ALIGNMENT
        if spans is not None:
            if clock is None or item.duration_s is None:
                no_times = NO_CLOCK if self.model.system.config.encoder.input == "frames" else NO_SOUND
            else:
                subsampling = self.model.system.config.encoder.subsampling
                pieces = [tokenizer.pieces[token] for token in tokens]
                seconds = frame_clock(subsampling, clock.frame_shift_s)
                spoken = token_times(pieces, *spans, *seconds, item.duration_s)
                words = word_times(tokens, spoken, tokenizer, unit_of(tokenizer.kind))
        return Result(
            item.id,
            tokenizer.decode(tokens),
            tokens,
            hypothesis.score,
            factor,
            item.duration_s,
            *costs,
            *(spans or (None, None)),
            spoken,
            words,
            no_times,
        )
