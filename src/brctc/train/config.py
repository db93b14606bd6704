"""A recipe: everything that decides what a training does, as typed, checked data."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, field_validator, model_validator

from brctc.data import CORPORA, SPEEDS, AugmentConfig, Config, FeatureConfig, TokenConfig
from brctc.data.corpora.handwriting import COLUMN_S
from brctc.models import SystemConfig, TrimConfig

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


class KeyedError(ValueError):
    """A value that does not go with others; `key` says where it is, seen from its section."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def _check_factor(value: Any) -> Any:
    """A number, or points in the order of their steps."""
    if not isinstance(value, list | tuple):
        return _factor_value(value)
    points = []
    for point in value:
        if not isinstance(point, list | tuple) or len(point) != 2:
            raise ValueError(f"expected a number or a list of [step, value] points, got the point {point!r}")
        step, factor = point
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ValueError(f"the step of the point {list(point)} must be a whole number from 0")
        if points and step <= points[-1][0]:
            raise ValueError(f"the points' steps must rise, but {step} follows {points[-1][0]}")
        points.append((step, _factor_value(factor)))
    if not points:
        raise ValueError("expected a number or a list of [step, value] points, got an empty list")
    return tuple(points)


def _factor_value(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"expected a finite number from 0 or a list of [step, value] points, got {value!r}")
    return float(value)


Factor = Annotated[float | tuple[tuple[int, float], ...], BeforeValidator(_check_factor)]


class ManifestOptions(Config):
    """How manifests are prepared."""

    speeds: tuple[Annotated[float, Field(ge=0.5, le=2)], ...] = SPEEDS
    """At which each training utterance is stored."""
    skip_bad: bool = False
    """Leave rows out that cannot be used, instead of stopping."""


class OptionsError(ValueError):
    """Options that the corpus does not have or cannot take."""

    def __init__(self, options: type[Config], error: ValidationError) -> None:
        super().__init__(str(error))
        self.options, self.error = options, error


class CorpusConfig(Config):
    """Where the data comes from and where it lies prepared; paths as seen from where the command runs."""

    name: Literal["handwriting", "digit-strings", "grid"] | None = None
    """A corpus that is built in."""
    manifests: dict[Literal["train", "dev", "test"], str] | None = None
    """Or your own: a TSV file for each split."""
    options: Annotated[dict[str, Any], Field(default_factory=dict, validate_default=True)]
    """How the built-in corpus is made, or the manifests are prepared."""
    prepared: str
    """The directory of the prepared splits; made when it is not there."""

    @field_validator("options")
    @classmethod
    def _resolve_options(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "name" not in info.data:  # it is wrong itself
            return options
        if "features" in options:
            raise ValueError("features have a section of their own, outside of corpus")
        known = CORPORA[info.data["name"]].config if info.data["name"] else ManifestOptions
        try:
            return known(**options).model_dump(mode="json", exclude={"features"})
        except ValidationError as error:
            raise OptionsError(known, error) from None

    @model_validator(mode="after")
    def _one_source(self) -> "CorpusConfig":
        if (self.name is None) == (self.manifests is None):
            raise KeyedError("name", "say either the name of a corpus or your own manifests")
        if self.manifests is not None and not {"train", "dev"} <= self.manifests.keys():
            raise KeyedError("manifests", "needs at least train and dev")
        return self


class OptimiserConfig(Config):
    """Adam, its rate over the steps of a stage, and what is done to gradients."""

    peak_rate: Positive
    """The rate at the end of the warm-up."""
    betas: tuple[Share, Share] = (0.9, 0.98)
    warmup_steps: Annotated[int, Field(ge=0)]
    schedule: Literal["inverse-sqrt", "hold-cosine"] = "inverse-sqrt"
    hold: Share | None = None
    """hold-cosine: the share of the stage until which the peak is held."""
    floor: Share | None = None
    """hold-cosine: the last rate, as a share of the peak."""
    clip_norm: Positive = 5.0
    """Longer gradients are shortened to this."""
    accumulate: Count = 1
    """In how many parts a batch is computed, one after the other or each on a process of its own."""

    @model_validator(mode="after")
    def _schedule_fits(self) -> "OptimiserConfig":
        for key, value in (("hold", self.hold), ("floor", self.floor)):
            if self.schedule == "hold-cosine" and value is None:
                raise KeyedError(key, "the schedule hold-cosine needs it")
            if self.schedule != "hold-cosine" and value is not None:
                raise KeyedError(key, f"the schedule {self.schedule} has none")
        return self


class RiskConfig(Config):
    """Which alignments a CTC prefers, and how strongly."""

    kind: Literal["early-finish", "early-emission", "delay-penalty", "none"] = "none"
    factor: Factor = 0.0
    """A number, or [step, value] points with straight lines between them; steps of the stage. What a whole
    utterance costs, in nats; of a delay penalty, what a frame costs."""

    @model_validator(mode="after")
    def _factor_fits(self) -> "RiskConfig":
        if self.kind == "none" and self.factor != 0:
            raise KeyedError("factor", f'a risk of kind "none" has no factor, but it is {self.factor}')
        if self.kind != "none" and self.factor == 0:
            raise KeyedError("factor", f"a risk of kind {self.kind} needs a factor above 0")
        return self


class WeightConfig(Config):
    """How the losses are added (`brctc.models.Objective`). A system has the decoders whose losses count."""

    inter: Share = 0.3
    """The intermediate CTC's share of ctc; the final one has the rest."""
    ctc: NotNegative
    """Both CTC losses together."""
    attention: NotNegative = 0.0
    transducer: NotNegative = 0.0


class CurriculumConfig(Config):
    """Short utterances first, and some of them always."""

    max_labels: Count
    """What is short."""
    only_steps: Annotated[int, Field(ge=0)] = 0
    """So many steps see nothing else."""
    share: Share | None = None
    """Afterwards this share of the steps see short ones, the others the rest; None: all as they come."""


class Stage(Config):
    """A part of the training with one objective."""

    epochs: Count | None = None
    """How long it lasts; or `steps`."""
    steps: Count | None = None
    inherit: Literal["whole", "encoder"] | None = None
    """What the stage before (the first one: the recipe's `start`) leaves: all that both have, or the encoder
    with its CTC layers alone."""
    inter_risk: RiskConfig = RiskConfig()
    """Of the CTC between the two halves of the encoder."""
    final_risk: RiskConfig = RiskConfig()
    """Of the CTC behind it; the only one of an emformer."""
    peak_first: Factor = 0.0
    """Weight of peak-first regularisation beside the final CTC; a number or points, as a risk's factor."""
    trim: TrimConfig | None = None
    """Cut what the intermediate CTC leaves blank, in front of the second half."""
    weights: WeightConfig
    curriculum: CurriculumConfig | None = None
    optimiser: OptimiserConfig | None = None
    """Instead of the recipe's."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "Stage":
        if (self.epochs is None) == (self.steps is None):
            raise KeyedError("steps", "a stage lasts so many steps or so many epochs: say one of them")
        if self.epochs is not None and self.curriculum is not None and self.curriculum.share == 1:
            raise KeyedError("curriculum.share", "is 1, so that no epoch would end: say steps, not epochs")
        inter, final = self.weights.ctc * self.weights.inter, self.weights.ctc * (1 - self.weights.inter)
        if inter == 0 and self.inter_risk.kind != "none":
            raise KeyedError("inter_risk", "has no effect: by weights, the intermediate CTC counts nothing")
        if final == 0 and self.final_risk.kind != "none":
            raise KeyedError("final_risk", "has no effect: by weights, the final CTC counts nothing")
        if final == 0 and self.peak_first != 0:
            raise KeyedError("peak_first", "has no effect: by weights, the final CTC counts nothing")
        if inter == 0 and self.trim is not None:
            raise KeyedError("trim", "needs a trained intermediate CTC: by weights, it counts nothing")
        if not (inter or final or self.weights.attention or self.weights.transducer):
            raise KeyedError("weights", "all are 0: there is nothing to train")
        return self


class CheckpointConfig(Config):
    """When checkpoints are written, how many stay, and how many make the model."""

    every_steps: Count | None = None
    every_epochs: Count | None = None
    """Or `every_steps`."""
    keep: Count = 10
    """So many stay."""
    average: Count = 10
    """The model is the mean of so many checkpoints, the last ones of the last stage."""

    @model_validator(mode="after")
    def _numbers_fit(self) -> "CheckpointConfig":
        if (self.every_steps is None) == (self.every_epochs is None):
            raise KeyedError("every_steps", "say either every_steps or every_epochs")
        if self.average > self.keep:
            raise KeyedError("average", f"{self.average} are to be averaged, but keep is {self.keep}")
        return self


class MonitorConfig(Config):
    """What is looked at while a model learns. It changes nothing of what is learnt."""

    dev_utterances: Annotated[int, Field(ge=0)] = 200
    """Decoded greedily at every checkpoint; 0 for none."""
    snapshot_steps: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Steps of the whole run before which posteriors and gradients are stored."""
    snapshot_utterances: Count = 3
    tensorboard: bool = True


class DecodeConfig(Config):
    """How the trained model is decoded, unless one says otherwise."""

    method: Literal["ctc-greedy", "ctc-beam", "attention", "transducer-greedy", "transducer"] = "ctc-greedy"
    beam: Count = 10
    ctc_weight: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """attention: the CTC's share of a hypothesis's score."""
    length_reward: float = 0.0
    """attention: added for every token."""


class Recipe(Config):
    """A training from data to model."""

    corpus: CorpusConfig
    features: FeatureConfig | None = None
    tokens: TokenConfig
    augment: AugmentConfig | None = None
    model: SystemConfig
    """All decoders that any stage trains; a stage has those whose weight is above 0."""
    optimiser: OptimiserConfig
    batch_s: Positive
    """Seconds of a batch, its padding included, over all processes and parts together."""
    start: str | None = None
    """A run or its model that the first stage inherits from, tokens and normalisation included; from nothing
    by default."""
    seed: Annotated[int, Field(ge=0)] = 0
    precision: Literal["float32", "bf16"] = "float32"
    """bf16: the network under autocast; losses and parameters stay float32."""
    stages: Annotated[dict[str, Stage], Field(min_length=1)]
    """By name, in the order in which they are trained."""
    checkpoints: CheckpointConfig
    monitor: MonitorConfig = MonitorConfig()
    decode: DecodeConfig = DecodeConfig()

    @model_validator(mode="after")
    def _parts_fit(self) -> "Recipe":
        for i, (name, stage) in enumerate(self.stages.items()):
            inherits = i > 0 or self.start is not None
            if not inherits and stage.inherit is not None:
                raise KeyedError(f"stages.{name}.inherit", "the first stage has nothing to inherit")
            if inherits and stage.inherit is None:
                what = "a later stage" if i else f"what starts with {self.start}"
                raise KeyedError(f"stages.{name}.inherit", f"{what} inherits: whole or encoder")
        for decoder in ("attention", "transducer"):
            trained = [name for name, stage in self.stages.items() if getattr(stage.weights, decoder) > 0]
            if trained and getattr(self.model, decoder) is None:
                key = f"stages.{trained[0]}.weights.{decoder}"
                raise KeyedError(key, f"counts a decoder that there is not: model.{decoder} is missing")
            if not trained and getattr(self.model, decoder) is not None:
                raise KeyedError(f"model.{decoder}", f"no stage trains it: weights.{decoder} is 0 everywhere")
        self._check_features()
        self._check_online()
        self._check_decoding()
        return self

    def _check_features(self) -> None:
        if self.corpus.name == "handwriting" and self.features is not None:
            raise KeyedError("features", "handwriting has none but its pixels")
        if self.corpus.name != "handwriting" and self.features is None:
            raise KeyedError("features", "missing; audio needs them")

    def _check_online(self) -> None:
        if not self.model.online:
            return
        for name, stage in self.stages.items():
            if stage.trim is not None:
                raise KeyedError(f"stages.{name}.trim", "an emformer has no second half to trim for")
            if stage.weights.inter:
                message = f"is {stage.weights.inter}, but an emformer has no intermediate CTC: say 0"
                raise KeyedError(f"stages.{name}.weights.inter", message)

    def _check_decoding(self) -> None:
        last, method = list(self.stages.values())[-1].weights, self.decode.method.partition("-")[0]
        if method in ("attention", "transducer") and getattr(last, method) == 0:
            raise KeyedError("decode.method", f"the last stage does not train the decoder of {method!r}")
        if method == "ctc" and last.ctc * (1 - last.inter) == 0:
            raise KeyedError("decode.method", "the last stage does not train the final CTC")

    def optimiser_of(self, stage: Stage) -> OptimiserConfig:
        """The stage's own optimiser, or else the recipe's."""
        return stage.optimiser or self.optimiser

    @property
    def frame_shift_ms(self) -> float:
        """From one frame of the features to the next."""
        return 1000 * COLUMN_S if self.features is None else self.features.frame_shift_ms

    def risk_of(self, stage: Stage) -> RiskConfig:
        """The risk of the output that snapshots are of: the intermediate CTC, online the only one."""
        return stage.final_risk if self.model.online else stage.inter_risk

    def system_of(self, stage: Stage) -> SystemConfig:
        """The system that the stage trains: the decoders whose losses count, and no others."""
        unused = {
            decoder: None for decoder in ("attention", "transducer") if not getattr(stage.weights, decoder)
        }
        return self.model.model_copy(update=unused)
