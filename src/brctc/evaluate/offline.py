"""Decodes a test set with several systems: how good, how short, how fast."""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from brctc.data import CORPORA, Prepared, pad
from brctc.decode.methods import (
    TUNED,
    WITH_BEAM,
    Method,
    Search,
    choose_search,
    decoder_of,
    recipe_search,
)
from brctc.decode.pool import RecognizerPool
from brctc.decode.sources import check_features, prepared_source, read_source
from brctc.evaluate.decoding import Progress, by_length, decode_examples, spread_indices
from brctc.evaluate.defaults import metrics_of
from brctc.evaluate.down_sampling import DownSampling, down_sampling
from brctc.evaluate.metrics import MetricConfig
from brctc.evaluate.real_time import RealTime
from brctc.evaluate.results import (
    BLANKS_SKIPPED,
    SPREAD,
    BeamPoint,
    Evaluation,
    JointSearch,
    SetResults,
    SystemOnSet,
    SystemResult,
    describe_machine,
)
from brctc.evaluate.timing import Clock, is_heard
from brctc.models import Encoded, Model, TrimConfig

BEAM = 10
BEAMS = (2, 3, 4, 5, 6, 8, 10, 12, 15)
COUNTS = ("limit", "repeats", "rtf_utterances", "batch", "sweep_utterances", "jobs", "beam")
OWN_DATA = ("manifests", "text-pairs")
"""Kinds of corpora that have no name of their own."""


@dataclass(frozen=True)
class EvaluationOptions:
    """How much is measured."""

    beam: int | None = None
    """Of all searches but greedy ones; by default as a model's recipe says, or 10."""
    limit: int | None = None
    """Decode so many examples, spread over the split; all by default."""
    repeats: int = 3
    """How often each example is timed; the median counts."""
    rtf_utterances: int = 20
    """So many, spread over the split, are timed, one by one, all systems taking turns."""
    rtf_share: Fraction | None = None
    """Instead, time the first utterances: this share of the split, such as the paper's 1/88."""
    batch: int = 32
    """Two batches of so many, of short and of long examples, are timed as a whole; 1 for none."""
    beams: tuple[int, ...] = BEAMS
    """Other sizes of the beam whose speed is measured; greedy searches become beam searches."""
    sweep_utterances: int = 5
    """So many are timed for every size."""
    skip_blanks: float | None = None
    """Each system that has a decoder and does not trim is measured a second time: its decoder sees no frame
    whose CTC blank is more likely than this."""
    jobs: int = 1
    """Processes that decode, where there is no GPU. Speed is measured in one."""

    def __post_init__(self) -> None:
        for name in (*COUNTS, "beams"):
            given = getattr(self, name)
            for count in given if isinstance(given, tuple) else (given,):
                if count is not None and count < 1:
                    raise ValueError(f"{name} is {count}, expected at least 1")
        if self.rtf_share is not None and not 0 < self.rtf_share <= 1:
            raise ValueError(f"rtf_share is {self.rtf_share}, expected a share above 0, at most 1")

    def timed(self, count: int) -> list[int]:
        """Which of so many examples are timed."""
        if self.rtf_share is None:
            return spread_indices(count, self.rtf_utterances)
        return list(range(math.ceil(count * self.rtf_share)))

    @property
    def timed_are(self) -> str:
        """Which these are, as tables say it."""
        return SPREAD if self.rtf_share is None else f"the first {self.rtf_share} of the test set"


def evaluate_models(
    model_dirs: Mapping[str, Path],
    prepared: Prepared,
    options: EvaluationOptions | None = None,
    *,
    methods: Mapping[str, Method] | None = None,
    metrics: Mapping[str, MetricConfig] | None = None,
    others: Sequence[Prepared] = (),
    progress: Progress | None = None,
) -> Evaluation:
    """Every model on a split; the first one is what the others are compared with.

    Args:
        model_dirs: directories that `brctc.models.save_model` wrote, by the names to show.
        prepared: the split to decode.
        options: how much is measured.
        methods: how to search, by name; by default as a model's recipe says, or with the decoder it has.
        metrics: what is measured, by name; by default what the first model's recipe says, or else BLEU and
            chrF for translations, errors in characters for other systems of characters, in words for others.
        others: further test sets, for the same table; speed is measured on `prepared` alone.
        progress: called after every batch.
    """
    if not model_dirs:
        raise ValueError("there are no models to evaluate")
    for name in methods or {}:
        if name not in model_dirs:
            raise ValueError(f"methods names {name!r}, the models are {', '.join(model_dirs)}")
    options = options or EvaluationOptions()
    tell = progress or (lambda what, done, total: None)
    with ExitStack() as stack:
        arms = [
            _Arm(name, path, (methods or {}).get(name), options, stack) for name, path in model_dirs.items()
        ]
        arms += _skipping(arms, options.skip_blanks)
        for arm, split in product(arms, (prepared, *others)):
            check_features(arm.name, arm.model, split)
        measured = dict(metrics or metrics_of(arms[0].model))
        infos = {name: metric.info() for name, metric in measured.items()}  # before any work is lost
        decoded = [_decode(arms, split, measured, options, tell) for split in (prepared, *others)]
        clock = Clock(prepared, options.repeats, tell)
        results = _timed(arms, decoded[0].systems, clock, options)
        swept = _sweep(arms, clock, options)
    return Evaluation(
        corpus=_corpus(prepared),
        split=prepared.split,
        utterances=decoded[0].utterances,
        duration_s=decoded[0].duration_s,
        metrics=infos,
        rtf_utterances=len(options.timed(len(prepared))),
        sweep_utterances=min(options.sweep_utterances, len(prepared)),
        repeats=options.repeats,
        batch=options.batch,
        systems=tuple(results),
        sweep=swept,
        machine=describe_machine(),
        time_per="second" if is_heard(prepared) else "sentence",
        rtf_of=options.timed_are,
        others=tuple(decoded[1:]),
    )


def _skipping(arms: "Sequence[_Arm]", threshold: float | None) -> "list[_Arm]":
    """The systems whose decoders can do without blanks, once more."""
    if threshold is None:
        return []
    found = [arm.skipping(threshold) for arm in arms if arm.can_skip]
    if not found:
        raise ValueError("skip_blanks: no model has a decoder, a CTC head beside it, and no trimming")
    return found


def _decode(
    arms: "Sequence[_Arm]",
    prepared: Prepared,
    metrics: Mapping[str, MetricConfig],
    options: EvaluationOptions,
    tell: Progress,
) -> SetResults:
    """What each system puts out for a test set, measured, and compared with the first."""
    chosen = spread_indices(len(prepared), options.limit)
    outputs = [arm.decode(prepared, chosen, tell) for arm in arms]
    factors = [arm.down_sampling(prepared, chosen, tell) for arm in arms]
    output = arms[0].model.system.config.output
    references = [prepared.examples[i].texts[output] for i in chosen]
    systems = []
    for i, (factor, found) in enumerate(zip(factors, outputs, strict=True)):
        scores = {name: metric.measure(references, found) for name, metric in metrics.items()}
        differences = {}
        if i:
            differences = {
                name: metric.compare(references, outputs[0], found) for name, metric in metrics.items()
            }
        systems.append(SystemOnSet(scores, differences, factor))
    seconds = round(sum(prepared.examples[i].duration_s for i in chosen), 3)
    return SetResults(prepared.split, len(chosen), seconds, tuple(systems))


class _Arm:
    """A model under its name, with the way it is decoded."""

    def __init__(
        self, name: str, directory: Path, method: Method | None, options: EvaluationOptions, stack: ExitStack
    ) -> None:
        self.name = name
        self.pool = stack.enter_context(RecognizerPool(directory, options.jobs))
        self.model = self.pool.recognizer.model
        known: dict[str, Any] = recipe_search(self.model.description)
        self.method = choose_search(method or known.pop("method", None), self.model.system.config)
        given = {} if options.beam is None else {"beam": options.beam}
        self.options: dict[str, Any] = {"beam": BEAM} | known | {"method": self.method} | given

    @property
    def can_skip(self) -> bool:
        """Whether its decoder can be kept from seeing blanks."""
        name = self.decoder_name
        if name is None or self.model.trim is not None or self.skips is not None:
            return False
        config = self.model.system.config
        decoder = config.decoders[name]
        return decoder.text in config.heads and config.heads[decoder.text].on == decoder.on

    @property
    def decoder_name(self) -> str | None:
        """The decoder that it searches with; None with CTC alone."""
        return self.model.system.config.decoder_name(decoder_of(self.method) or "")

    def skipping(self, threshold: float) -> "_Arm":
        """The same model, its decoder blind for frames whose blank is more likely than this."""
        arm = copy(self)
        arm.name = self.name + BLANKS_SKIPPED
        arm.options = self.options | {"skip_blanks": threshold}
        return arm

    @property
    def skips(self) -> float | None:
        """The probability above which blanks are skipped."""
        return self.options.get("skip_blanks")

    @property
    def rule(self) -> TrimConfig | None:
        """The model's own rule for trimming, or the usual one; None if it cannot be trimmed."""
        return self.model.system.config.trim_rule(self.model.trim)

    def beam_options(self, beam: int) -> dict[str, Any]:
        """For a search with so large a beam."""
        return self.options | {"method": WITH_BEAM.get(self.method, self.method), "beam": beam}

    def decode(self, prepared: Prepared, chosen: Sequence[int], tell: Progress) -> list[str]:
        """The text of each chosen example."""
        what = f"decoding, {self.name}"
        results = decode_examples(self.pool, prepared, chosen, what, tell, times=False, **self.options)
        return [result.text for result in results]

    @torch.inference_mode()
    def down_sampling(self, prepared: Prepared, chosen: Sequence[int], tell: Progress) -> DownSampling:
        """What the model's own rule for trimming keeps, or the usual one would; all frames of an encoder that
        cannot be trimmed; where blanks are skipped, what is left of them. Labels are of the text that
        decides."""
        model, tap = self.model, self.model.watched_tap
        text = model.watched_text or model.system.config.output
        before: list[int] = []
        after: list[int] = []
        labels: list[int] = []
        for group in by_length(prepared, chosen):
            source = pad([read_source(prepared_source(prepared, i), model).values for i in group])
            encoded = model.system.encode(source.to(model.system.device))
            lengths = encoded.taps[tap].lengths
            before += lengths.tolist()
            after += self._kept(encoded, tap).tolist()
            texts = [prepared.examples[i].texts[text] for i in group]
            labels += [len(model.tokenizers[text].encode(said)) for said in texts]
            tell(f"trimming, {self.name}", len(before), len(chosen))
        return down_sampling(before, after, labels)

    def _kept(self, encoded: Encoded, tap: str) -> Tensor:
        """(N): how many frames are left."""
        if self.skips is not None and self.decoder_name is not None:
            return encoded.seen_by(self.decoder_name, self.skips).hidden.lengths
        return encoded.kept_lengths(tap, self.rule) if self.rule else encoded.taps[tap].lengths

    @property
    def joint_search(self) -> JointSearch | None:
        """The weights of the joint CTC/attention search; None of another."""
        if self.method != "attention":
            return None
        search = Search(**self.options)
        tuned: dict[str, Any] = self.model.description.get(TUNED, {})
        where = f"{tuned['split']}, {tuned['utterances']:,} utterances" if tuned else ""
        return JointSearch(search.ctc_weight, search.length_reward, where)

    def result(self, found: SystemOnSet, real_time: RealTime, batch_time: RealTime | None) -> SystemResult:
        """All that is known of the system."""
        description = self.model.description
        return SystemResult(
            name=self.name,
            method=self.method,
            beam=None if self.method.endswith("greedy") else self.options["beam"],
            parameters=self.model.system.num_parameters,
            risk=_risk(self.model),
            trims=self.model.trim is not None or self.skips is not None,
            trimmable=self.rule is not None or self.skips is not None,
            steps=description.get("steps"),
            train_s=description.get("seconds"),
            scores=found.scores,
            differences=found.differences,
            down_sampling=found.down_sampling,
            real_time=real_time,
            batch_time=batch_time,
            search=self.joint_search,
        )


def _timed(
    arms: Sequence[_Arm], results: Sequence[SystemOnSet], clock: Clock, options: EvaluationOptions
) -> list[SystemResult]:
    """The results with the speed of each system."""
    searches = [(arm, arm.options) for arm in arms]
    alone = clock.time_alone(searches, options.timed(len(clock.prepared)), "timing")
    batched = clock.time_batches(searches, options.batch)
    found = zip(results, alone, batched, strict=True)
    return [arm.result(*of_arm) for arm, of_arm in zip(arms, found, strict=True)]


def _sweep(arms: Sequence[_Arm], clock: Clock, options: EvaluationOptions) -> tuple[BeamPoint, ...]:
    searches = [(arm, arm.beam_options(size)) for size in options.beams for arm in arms]
    if not searches:
        return ()
    indices = spread_indices(len(clock.prepared), options.sweep_utterances)
    timed = clock.time_alone(searches, indices, "beam sweep")
    return tuple(
        BeamPoint(arm.name, search["method"], search["beam"], point)
        for (arm, search), point in zip(searches, timed, strict=True)
    )


def _risk(model: Model) -> str:
    """Of the first CTC, at the end of training."""
    risks = list(model.description.get("risks", {}).values())
    if not risks or risks[0]["kind"] == "none":
        return "none"
    return f"{risks[0]['kind']} {risks[0]['factor']:g}"


def _corpus(prepared: Prepared) -> str:
    """The kind of the corpus that is measured on, where it is a known one; or else the name of its folder."""
    kind = ((prepared.origin or {}).get("corpus") or {}).get("kind")
    known = isinstance(kind, str) and kind in CORPORA and kind not in OWN_DATA
    return str(kind) if known else prepared.directory.name
