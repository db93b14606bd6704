"""A recipe: everything that decides what a training does, as typed, checked data."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from brctc.config import Config, Count, KeyedError, Positive, Probability, Share
from brctc.data import AugmentConfig, FeatureConfig, TokenConfig
from brctc.data.batch import SOURCE
from brctc.data.corpora.base import AnyCorpus
from brctc.data.features import check_streams
from brctc.data.sampling import BatchConfig, CurriculumConfig
from brctc.decode.methods import decoder_of
from brctc.evaluate.grid import GridConfig
from brctc.evaluate.metrics import AnyMetric
from brctc.models import SystemConfig, TrimConfig
from brctc.models.base import check_name
from brctc.train.checkpoint import Order
from brctc.train.factors import is_zero
from brctc.train.losses import AnyLoss, CTCConfig
from brctc.train.objective import FACTOR, TOTAL


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


class TextTokens(TokenConfig):
    """The tokens of one text."""

    same_as: str | None = None
    """Another text whose tokens these are: the vocabulary is made from both."""

    @model_validator(mode="after")
    def _one_definition(self) -> "TextTokens":
        given = (self.kind, self.size) != (TokenConfig().kind, None)  # a stored recipe has the defaults
        if self.same_as is not None and given:
            raise KeyedError("same_as", "the tokens are another text's: give nothing else")
        return self


class Stage(Config):
    """A part of the training with one objective."""

    epochs: Count | None = None
    """How long it lasts; or `steps`."""
    steps: Count | None = None
    inherit: Literal["whole", "encoder"] | None = None
    """What the stage before (the first one: the recipe's `start`) leaves: all that both have, or the encoder
    with its CTC heads alone."""
    losses: Annotated[dict[str, AnyLoss], Field(min_length=1)]
    """The terms that are added, by name. The stage has the decoders that they train."""
    trim: TrimConfig | None = None
    """Cut what CTC leaves blank, where the encoder can be trimmed."""
    curriculum: CurriculumConfig | None = None
    optimiser: OptimiserConfig | None = None
    """Instead of the recipe's."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "Stage":
        if (self.epochs is None) == (self.steps is None):
            raise KeyedError("steps", "a stage lasts so many steps or so many epochs: say one of them")
        if self.epochs is not None and self.curriculum is not None and self.curriculum.share == 1:
            raise KeyedError("curriculum.share", "is 1, so that no epoch would end: say steps, not epochs")
        for name in self.losses:
            check_name(f"losses.{name}", name)
            if name in (TOTAL, FACTOR):
                raise KeyedError(f"losses.{name}", "the log calls something else so: choose another name")
        if all(is_zero(loss.weight) for loss in self.losses.values()):
            raise KeyedError("losses", "all weights are 0: there is nothing to train")
        return self

    @property
    def watched(self) -> CTCConfig | None:
        """The CTC whose posteriors show how a model learns: the first one."""
        found = (loss for loss in self.losses.values() if isinstance(loss, CTCConfig))
        return next(found, None)

    @property
    def decoders(self) -> list[str]:
        """Those that the stage trains."""
        trained = [loss.decoder for loss in self.losses.values() if not is_zero(loss.weight)]
        return [name for name in trained if name is not None]


class CheckpointConfig(Config):
    """When checkpoints are written, how many stay, and how many make the model."""

    every_steps: Count | None = None
    every_epochs: Count | None = None
    """Or `every_steps`."""
    keep: Count = 10
    """So many stay, and the newest in any case."""
    average: Count = 10
    """The model is the mean of so many checkpoints of the last stage."""
    average_of: Order = "last"
    """Which are averaged, and kept: the last ones, or those that are best on the development set. The best
    have the highest accuracy of the attention decoder's next token, given the true ones before it; in a stage
    without that decoder, the lowest error of the last CTC; without CTC, the lowest loss."""

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
    skip_blanks: Probability | None = None
    """attention, transducer: the decoder sees no frame whose CTC blank is more likely than this. Its loss has
    the same key, for training."""
    tune: GridConfig | None = None
    """attention: `brctc compare` finds ctc_weight and length_reward on the development set, for each trained
    model its own; the model keeps them."""

    @model_validator(mode="after")
    def _tunes_attention(self) -> "DecodeConfig":
        if self.tune is not None and self.method != "attention":
            raise KeyedError("tune", f"is for the search attention; {self.method} has no such weights")
        return self


class Recipe(Config):
    """A training from data to model."""

    corpus: AnyCorpus
    features: FeatureConfig | None = None
    """How features are made of audio."""
    tokens: Annotated[dict[str, TextTokens], Field(min_length=1)]
    """What a token is, for each text: `transcript` of speech, `source` of text, `translation`."""
    augment: AugmentConfig | None = None
    model: SystemConfig
    """All decoders that any stage trains; a stage has those that its losses train."""
    optimiser: OptimiserConfig
    batch: BatchConfig
    workers: Annotated[int, Field(ge=0)] = 0
    """Processes that load data; 0 is a thread, which is enough for stored features."""
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
    metrics: dict[str, AnyMetric] = Field(default_factory=dict)
    """What the trained model is measured with, by name, the most important first; by default BLEU and
    chrF of translations, errors of words or characters of other texts."""

    @field_validator("tokens")
    @classmethod
    def _check_tokens(cls, tokens: dict[str, TextTokens]) -> dict[str, TextTokens]:
        for name, config in tokens.items():
            other = config.same_as
            if other is not None and (other not in tokens or tokens[other].same_as is not None):
                raise KeyedError(f"{name}.same_as", f"{other!r} has no tokens of its own")
        return tokens

    @model_validator(mode="after")
    def _parts_fit(self) -> "Recipe":
        self._check_inheritance()
        self._check_losses()
        self._check_texts()
        self._check_features()
        self._check_decoding()
        if self.checkpoints.average_of == "best" and self.monitor.dev_utterances == 0:
            raise KeyedError(
                "checkpoints.average_of", "the best are found on the development set, but dev_utterances is 0"
            )
        return self

    def _check_inheritance(self) -> None:
        for i, (name, stage) in enumerate(self.stages.items()):
            inherits = i > 0 or self.start is not None
            if not inherits and stage.inherit is not None:
                raise KeyedError(f"stages.{name}.inherit", "the first stage has nothing to inherit")
            if inherits and stage.inherit is None:
                what = "a later stage" if i else f"what starts with {self.start}"
                raise KeyedError(f"stages.{name}.inherit", f"{what} inherits: whole or encoder")

    def _check_losses(self) -> None:
        for name, stage in self.stages.items():
            for term, loss in stage.losses.items():
                try:
                    loss.check(self.model)
                except KeyedError as error:
                    key = f"stages.{name}.losses.{term}.{error.key}"
                    raise KeyedError(key, str(error)) from None
                if loss.copies > (self.augment.copies if self.augment else 1):
                    needed = f"a loss of kind {loss.kind} needs augment.copies: {loss.copies}"
                    raise KeyedError(f"stages.{name}.losses.{term}", needed)
            self._check_trim(f"stages.{name}.trim", stage)
        trained = {decoder for stage in self.stages.values() for decoder in stage.decoders}
        for decoder in self.model.decoders:
            if decoder not in trained:
                raise KeyedError(f"model.decoders.{decoder}", "no stage trains it")

    def _check_trim(self, key: str, stage: Stage) -> None:
        tap = self.model.encoder.trims_at
        if stage.trim is None:
            return
        if tap is None:
            raise KeyedError(key, f"an encoder of kind {self.model.encoder.kind} cannot be trimmed")
        decides = any(
            isinstance(loss, CTCConfig) and (loss.on, loss.text) == (tap, stage.trim.text)
            for loss in stage.losses.values()
            if not is_zero(loss.weight)
        )
        if not decides:
            raise KeyedError(
                key, f"needs a CTC loss of {stage.trim.text} on {tap}, which decides what is cut"
            )

    def _check_texts(self) -> None:
        texts = {f"model.heads.{text}": text for text in self.model.heads}
        texts |= {f"model.decoders.{name}.text": d.text for name, d in self.model.decoders.items()}
        texts["model.output"] = self.model.output
        for key, text in texts.items():
            if text not in self.tokens:
                raise KeyedError(
                    key, f"there are no tokens for {text!r}: tokens has {', '.join(self.tokens)}"
                )

    def _check_features(self) -> None:
        kind, audio = self.corpus.kind, self.corpus.input == "audio"
        if not audio and self.features is not None:
            raise KeyedError("features", f"{kind} is not audio: it has none to choose")
        if audio and self.features is None:
            raise KeyedError("features", "missing; audio needs them")
        if self.model.streaming and self.features is not None:
            try:
                check_streams(self.features)
            except ValueError as error:
                raise KeyedError("features.pitch_look_ahead_frames", str(error)) from None
        takes = self.model.encoder.input
        if (self.corpus.input == "text") != (takes == "tokens"):
            given = "text" if self.corpus.input == "text" else "no text"
            problem = f"an encoder of kind {self.model.encoder.kind} takes {takes}, but {kind} is {given}"
            raise KeyedError("model.encoder.kind", problem)
        if takes == "tokens" and SOURCE not in self.tokens:
            raise KeyedError(f"tokens.{SOURCE}", "missing; it is what the encoder takes")
        if self.corpus.input == "text" and self.model.normalisation != "none":
            raise KeyedError("model.normalisation", "text has nothing to normalise: choose none")
        if (self.corpus.input == "text") != (self.batch.seconds is None):
            measure = "tokens" if self.corpus.input == "text" else "seconds"
            raise KeyedError("batch", f"a batch of {kind} is measured in {measure}")

    def _check_decoding(self) -> None:
        last, method = list(self.stages.values())[-1], self.decode.method
        needed = decoder_of(method)
        kinds = {self.model.decoders[name].kind for name in last.decoders}
        if needed is not None and needed not in kinds:
            raise KeyedError("decode.method", f"the last stage does not train the decoder of {method!r}")
        head = self.model.heads.get(self.model.output)
        trained = head is not None and any(
            isinstance(loss, CTCConfig) and (loss.on, loss.text) == (head.on, self.model.output)
            for loss in last.losses.values()
            if not is_zero(loss.weight)
        )
        if needed is None and not trained:
            raise KeyedError("decode.method", "the last stage does not train the final CTC")

    def optimiser_of(self, stage: Stage) -> OptimiserConfig:
        """The stage's own optimiser, or else the recipe's."""
        return stage.optimiser or self.optimiser

    @property
    def frame_shift_ms(self) -> float:
        """From one frame of the features to the next."""
        return 1000 * self.corpus.frame_shift_s if self.features is None else self.features.frame_shift_ms

    @property
    def unit_tokens(self) -> TextTokens:
        """The tokens of the text that decoding gives."""
        config = self.tokens[self.model.output]
        return config if config.same_as is None else self.tokens[config.same_as]

    def system_of(self, stage: Stage) -> SystemConfig:
        """The system that the stage trains: what its losses need, and no more."""
        taps = {loss.tap for loss in stage.losses.values() if loss.tap is not None}
        return self.model.only_with(taps, stage.decoders)
