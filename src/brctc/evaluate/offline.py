"""Decodes a test set with several systems: how good, how short, how fast."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from brctc.data import Prepared, make_batch
from brctc.decode import Recognizer
from brctc.decode.recognizer import Method
from brctc.decode.sources import check_features
from brctc.evaluate.down_sampling import DownSampling, down_sampling
from brctc.evaluate.error_rate import Unit, compare, error_rate
from brctc.evaluate.real_time import RealTime, measure_rtf
from brctc.evaluate.results import BeamPoint, Evaluation, SystemResult, describe_machine
from brctc.models import Model, TrimConfig, count_parameters

Progress = Callable[[str, int, int], object]
"""Told what is being done, how much of it is, and of how much."""

BEAMS = (2, 3, 4, 5, 6, 8, 10, 12, 15)
BATCH = 16
WITH_BEAM: dict[str, Method] = {"ctc-greedy": "ctc-beam", "transducer-greedy": "transducer"}


def evaluate_models(
    model_dirs: Mapping[str, Path],
    prepared: Prepared,
    *,
    beam: int = 10,
    limit: int | None = None,
    repeats: int = 3,
    methods: Mapping[str, Method] | None = None,
    unit: Unit | None = None,
    rtf_utterances: int = 20,
    beams: Sequence[int] = BEAMS,
    sweep_utterances: int = 5,
    progress: Progress | None = None,
) -> Evaluation:
    """Every model on a split; the first one is what the others are compared with.

    Args:
        model_dirs: directories that `brctc.models.save_model` wrote, by the names to show.
        prepared: the split to decode.
        beam: of all searches but greedy ones.
        limit: decode so many utterances, spread over the split; all by default.
        repeats: how often each utterance is timed; the median counts.
        methods: how to search, by name; by default as a model's recipe says, or with the decoder it has.
        unit: what errors are counted in; characters for systems of characters, words for others.
        rtf_utterances: so many are timed, one by one, all systems taking turns.
        beams, sweep_utterances: the same for every size of the beam, with fewer utterances. Greedy
            searches are replaced by their beam searches there.
        progress: called after every utterance.
    """
    if not model_dirs:
        raise ValueError("there are no models to evaluate")
    for name in methods or {}:
        if name not in model_dirs:
            raise ValueError(f"methods names {name!r}, the models are {', '.join(model_dirs)}")
    for name, count in (
        ("limit", limit),
        ("rtf_utterances", rtf_utterances),
        ("sweep_utterances", sweep_utterances),
    ):
        if count is not None and count < 1:
            raise ValueError(f"{name} is {count}, expected at least 1")
    tell = progress or (lambda what, done, total: None)
    arms = [_Arm(name, path, (methods or {}).get(name), beam) for name, path in model_dirs.items()]
    for arm in arms:
        check_features(arm.name, arm.model, prepared)
    unit = unit or unit_of(arms[0].model.tokenizer.kind)

    chosen = spread_indices(len(prepared), limit)
    texts = [prepared.utterances[i].text for i in chosen]
    outputs = [arm.decode(prepared, chosen, tell) for arm in arms]
    factors = [arm.down_sampling(prepared, chosen, tell) for arm in arms]
    timed = _time([(arm, arm.options) for arm in arms], prepared, rtf_utterances, repeats, "timing", tell)
    searches = [(arm, arm.beam_options(size)) for size in beams for arm in arms]
    swept = _time(searches, prepared, sweep_utterances, repeats, "beam sweep", tell) if searches else []
    systems = []
    for i, (arm, found, factor, real_time) in enumerate(zip(arms, outputs, factors, timed, strict=True)):
        description = arm.model.description
        systems.append(
            SystemResult(
                name=arm.name,
                method=arm.method,
                beam=None if arm.method.endswith("greedy") else beam,
                parameters=count_parameters(arm.model.system),
                risk=_risk(description),
                trims=arm.model.trim is not None,
                steps=description.get("steps"),
                train_s=description.get("seconds"),
                error=error_rate(texts, found, unit),
                difference=compare(texts, outputs[0], found, unit) if i else None,
                down_sampling=factor,
                real_time=real_time,
            )
        )
    return Evaluation(
        corpus=_corpus(arms[0].model, prepared),
        split=prepared.split,
        utterances=len(chosen),
        duration_s=round(sum(prepared.utterances[i].duration_s for i in chosen), 3),
        unit=unit,
        rtf_utterances=min(rtf_utterances, len(prepared)),
        sweep_utterances=min(sweep_utterances, len(prepared)),
        repeats=repeats,
        systems=tuple(systems),
        sweep=tuple(
            BeamPoint(arm.name, options["method"], options["beam"], point)
            for (arm, options), point in zip(searches, swept, strict=True)
        ),
        machine=describe_machine(),
    )


class _Arm:
    """A model under its name, with the way it is decoded."""

    def __init__(self, name: str, directory: Path, method: Method | None, beam: int) -> None:
        self.name = name
        self.recognizer = Recognizer.from_directory(directory)
        self.model = self.recognizer.model
        decode: dict[str, Any] = self.model.description.get("recipe", {}).get("decode", {})
        system = self.model.system
        has = "attention" if system.attention else "transducer" if system.transducer else "ctc-greedy"
        self.method = cast(Method, method or decode.get("method") or has)
        self.options = {"method": self.method, "beam": beam} | {
            key: decode[key] for key in ("ctc_weight", "length_reward") if key in decode
        }

    def beam_options(self, beam: int) -> dict[str, Any]:
        """For a search with so large a beam."""
        return self.options | {"method": WITH_BEAM.get(self.method, self.method), "beam": beam}

    def decode(self, prepared: Prepared, chosen: Sequence[int], tell: Progress) -> list[str]:
        """The text of each chosen utterance."""
        order = sorted(chosen, key=lambda i: prepared.utterances[i].num_frames)  # little padding
        texts: dict[str, str] = {}
        for first in range(0, len(order), BATCH):
            sources = [
                (prepared.utterances[i].id, prepared.features(i)) for i in order[first : first + BATCH]
            ]
            for result in self.recognizer.recognize(
                sources, times=False, batch_size=BATCH, **cast(Any, self.options)
            ):
                texts[result.id] = result.text
                tell(f"decoding, {self.name}", len(texts), len(chosen))
        return [texts[prepared.utterances[i].id] for i in chosen]

    @torch.inference_mode()
    def down_sampling(self, prepared: Prepared, chosen: Sequence[int], tell: Progress) -> DownSampling:
        """What the model's own rule for trimming keeps, or the usual one would."""
        rule = self.model.trim or TrimConfig.model_validate({})
        before: list[int] = []
        after: list[int] = []
        labels: list[int] = []
        order = sorted(chosen, key=lambda i: prepared.utterances[i].num_frames)
        for first in range(0, len(order), BATCH):
            batch = make_batch(prepared, order[first : first + BATCH], self.model.tokenizer)
            encoded = self.model.system.encode(batch.features, batch.lengths)
            before += encoded.inter_lengths.tolist()
            after += encoded.kept_lengths(rule).tolist()
            labels += batch.target_lengths.tolist()
            tell(f"trimming, {self.name}", len(before), len(order))
        return down_sampling(before, after, labels)


def _time(
    searches: Sequence[tuple[_Arm, dict[str, Any]]],
    prepared: Prepared,
    utterances: int,
    repeats: int,
    what: str,
    tell: Progress,
) -> list[RealTime]:
    """All searches in one run, taking turns; ratios are to the first one with the same beam."""
    chosen = spread_indices(len(prepared), utterances)
    sources = [(prepared.utterances[i].id, prepared.features(i)) for i in chosen]
    durations_s = [prepared.utterances[i].duration_s for i in chosen]
    total = len(searches) * len(sources) * (repeats + 1)
    done = 0

    def timer(arm: _Arm, options: dict[str, Any]) -> Callable[[Any], tuple[float, float]]:
        run = arm.recognizer.timer(**options)

        def timed(source: Any) -> tuple[float, float]:
            nonlocal done
            seconds = run(source)
            done += 1
            tell(what, done, total)
            return seconds

        return timed

    systems = {str(i): timer(arm, options) for i, (arm, options) in enumerate(searches)}
    baseline: dict[int, float] = {}
    found = []
    for (arm, options), row in zip(
        searches, measure_rtf(systems, sources, durations_s, repeats), strict=True
    ):
        first = baseline.setdefault(options["beam"], row.rtf)
        found.append(row._replace(name=arm.name, ratio=row.rtf / first))
    return found


def unit_of(tokens: str) -> Unit:
    """What the errors of a system with tokens of this kind are counted in."""
    return "char" if tokens == "char" else "word"


def spread_indices(size: int, count: int | None) -> list[int]:
    """So many indices, evenly over all."""
    if count is None or count >= size:
        return list(range(size))
    return np.linspace(0, size - 1, count).round().astype(int).tolist()


def _risk(description: dict[str, Any]) -> str:
    risk = description.get("risk") or {"kind": "none"}
    return risk["kind"] if risk["kind"] == "none" else f"{risk['kind']} {risk['factor']:g}"


def _corpus(model: Model, prepared: Prepared) -> str:
    """The name of the corpus, where the model knows it; or else of the folder."""
    return model.description.get("recipe", {}).get("corpus", {}).get("name") or prepared.directory.name
