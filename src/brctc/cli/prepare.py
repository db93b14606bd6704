"""`brctc prepare`"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from brctc.cli.shared import Assignments, Flag, Jobs, parse_assignments, show_preparing, table
from brctc.config import SectionError, describe_problems
from brctc.data import (
    CORPORA,
    SPEEDS,
    CorpusConfig,
    FeatureConfig,
    LengthCheck,
    PreparationError,
    Prepared,
    RowSource,
    Storage,
    Summary,
    TokenConfig,
    Tokenizer,
    prepare_corpus,
    prepare_split,
)
from brctc.data.manifest import Row
from brctc.data.source import check_speeds
from brctc.data.split import splits_in

CHARACTERS, FILTERBANK = TokenConfig(), FeatureConfig()
OF_MANIFESTS = ("split", "skip_bad", "subsampling", "tokens")
"""Options that a known corpus does not take."""
OF_CORPORA = ("set", "source")
"""Options that manifests do not take."""
OF_AUDIO = ("features", "speeds", "store")


@dataclass(frozen=True, kw_only=True)
class Command:
    """Check a corpus and store it as training reads it: your own from manifests, or a known one.
    - A manifest is a TSV file with a header and the columns id, text, path (of the audio, seen
      from the manifest) and duration in seconds; it may have translation, speaker, start_sample,
      num_samples and word_times. docs/own-data.md shows how to write one.
    - Every row is checked. If something is wrong, all problems are listed by id and the split
      is not written.
    - Killed or stopped, the same command goes on where it was; what is up to date is kept.

    Examples:
      brctc prepare train.tsv dev.tsv test.tsv --out data/prepared/mine
      brctc prepare recordings.tsv --split train --out data/prepared/mine --skip-bad
      brctc prepare handwriting --out data/prepared/handwriting
      brctc prepare librispeech --source data/LibriSpeech --out data/prepared/librispeech --jobs 8
      brctc prepare wenetspeech --source data/wenetspeech --out data/prepared/wenetspeech --set subset=M
    """

    what: Annotated[
        tuple[str, ...], Positional, arg(metavar="MANIFEST ... | CORPUS", help_behavior_hint="(required)")
    ] = ()
    """A manifest for each split, or the name of a corpus."""
    out: Annotated[Path, arg(metavar="DIR")]
    """Gets the prepared splits, in lhotse's Shar format."""
    split: Annotated[
        tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: the files' names)")
    ] = ()
    """The names of the manifests' splits."""
    store: Literal["features", "audio"] = "features"
    """Features at all speeds; or audio, whose features and speeds are made when it is read."""
    skip_bad: Flag = False
    """Leave bad rows out, and list them."""
    speeds: Annotated[tuple[float, ...], arg(metavar="FLOAT ...")] = SPEEDS
    """The split "train" is heard at each of these speeds."""
    subsampling: Literal[1, 2, 4] = 4
    """The encoder's, to see whether a transcript fits into its frames."""
    tokens: TokenConfig = CHARACTERS
    """What a transcript is counted in then."""
    features: FeatureConfig = FILTERBANK
    """What the features are; the defaults are the paper's (table 3)."""
    source: Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")] = None
    """Where the recordings of a corpus are."""
    set: Assignments = ()
    """Options of a corpus, such as train_strings=1000 or seed=1."""
    jobs: Jobs = None
    """Processes that prepare."""
    verify: Flag = False
    """Read every byte of what is prepared in DIR, and name what is damaged; nothing is prepared."""

    def run(self) -> None:
        """Prepares a known corpus or manifests, or looks at what was prepared."""
        if self.verify:
            return verify(self.out)
        if len(self.what) == 1 and self.what[0] in named_corpora() and not Path(self.what[0]).is_file():
            return self._prepare_known(self.what[0])
        if not self.what:
            raise ValueError(f"name manifests, or one of the corpora {', '.join(named_corpora())}")
        manifests = name_splits([Path(name) for name in self.what], self.split)
        self._refuse(OF_CORPORA, "is for a known corpus, not for manifests")
        self._prepare_manifests(manifests)

    def _refuse(self, options: Sequence[str], why: str) -> None:
        for option in fields(self):
            if option.name in options and getattr(self, option.name) != option.default:
                raise ValueError(f"--{option.name.replace('_', '-')} {why}")

    def _prepare_known(self, name: str) -> None:
        self._refuse(OF_MANIFESTS, "is for manifests: a corpus has its options in --set")
        corpus = self._corpus(name)
        features = self.features if corpus.input == "audio" else None
        with show_preparing() as progress:
            summaries = prepare_corpus(corpus, features, jobs=self.jobs, progress=progress)
        show(list(summaries.values()), self.out)

    def _corpus(self, name: str) -> CorpusConfig:
        content = {"kind": name, "prepared": str(self.out)}
        if CORPORA[name].input == "audio":
            content |= {"speeds": self.speeds, "store": self.store}
        else:
            self._refuse(OF_AUDIO, f"is for audio, and {name} is not audio")
        if self.source is not None:
            content["source"] = str(self.source)
        try:
            return CORPORA.parse(content | parse_assignments(self.set))
        except SectionError as error:
            raise ValueError(describe_problems(error.error, error.config, name)) from None

    def _prepare_manifests(self, manifests: dict[str, Path]) -> None:
        check_speeds(self.speeds)
        check_others(self.out, list(manifests), self.features)
        check = LengthCheck(training_tokens(manifests, self.tokens), self.subsampling)
        done: list[Summary] = []
        failed: list[str] = []
        with show_preparing() as progress:
            for name, manifest in manifests.items():
                storage = self._storage(name, manifest)
                try:
                    summary = prepare_split(
                        RowSource(manifest),
                        self.out,
                        name,
                        storage,
                        check=None if storage.kind == "text" else check,
                        skip_bad=self.skip_bad,
                        jobs=self.jobs,
                        progress=lambda count, total, name=name: progress(name, count, total),
                    )
                    done.append(summary)
                except PreparationError as error:
                    failed.append(str(error))
        show(done, self.out)
        if failed:
            hint = "" if self.skip_bad else "; --skip-bad leaves bad rows out"
            raise ValueError("\n".join([*failed, f"Nothing was written of these{hint}."]))

    def _storage(self, split: str, manifest: Path) -> Storage:
        if lists_texts(manifest):
            return Storage("text")
        return Storage.of_audio(self.features, self.store, self.speeds if split == "train" else (1.0,))


def named_corpora() -> list[str]:
    """Corpora that are more than their manifests."""
    return [name for name in CORPORA if "manifests" not in CORPORA[name].model_fields]


def name_splits(manifests: Sequence[Path], splits: Sequence[str]) -> dict[str, Path]:
    """The manifests by the names of their splits; those that are not there are refused."""
    names = splits or [manifest.stem for manifest in manifests]
    if len(names) != len(manifests) or len(names) != len({*names}):
        raise ValueError(f"{len(manifests)} manifests need as many different splits, got {', '.join(names)}")
    for manifest in manifests:
        if not manifest.exists() or manifest.is_dir():
            problem = "Is a directory" if manifest.is_dir() else "No such file or directory"
            raise ValueError(f"{manifest}: {problem}; known corpora are {', '.join(named_corpora())}")
    return dict(zip(names, manifests, strict=True))


def lists_texts(manifest: Path) -> bool:
    """Whether a manifest lists texts and no audio."""
    first = next((row for row in RowSource(manifest).items() if isinstance(row, Row)), None)
    return first is not None and first.path is None


def check_others(out: Path, names: Sequence[str], features: FeatureConfig) -> None:
    """No model takes splits of different features."""
    for other in splits_in(out):
        if other not in names and (theirs := Prepared(out, other).feature_config) not in (None, features):
            raise ValueError(f"{out} has the split {other!r} with features {theirs}, these are {features}")


def training_tokens(manifests: dict[str, Path], tokens: TokenConfig) -> TokenConfig | Tokenizer:
    """BPE is made from the training texts (of the first split, if none is for training), and then counts the
    tokens of every split."""
    if tokens.kind != "bpe":
        return tokens
    manifest = manifests.get("train") or next(iter(manifests.values()))
    rows = (row for row in RowSource(manifest).items() if isinstance(row, Row) and row.text)
    return Tokenizer.train((row.text for row in rows), tokens)


def verify(out: Path) -> None:
    """Looks at every byte of all splits; what is damaged is named after all were looked at."""
    names = splits_in(out)
    if not names:
        raise ValueError(f"{out} has no prepared splits")
    damaged = []
    for name in names:
        try:
            prepared = Prepared(out, name)
            prepared.verify()
            print(f"{name}: {len(prepared.shards)} shards, {len(prepared)} examples: as they were written")
        except ValueError as error:
            damaged.append(f"{name}: {error}")
    if damaged:
        raise ValueError("\n".join(damaged))


def show(summaries: Sequence[Summary], out: Path) -> None:
    """What was prepared, and what was left out."""
    if not summaries:
        return
    header = ("split", "examples", "hours", "frames", "words", "speakers")
    rows = [
        (s.split, s.examples, f"{s.duration_s / 3600:.2f}", s.num_frames, s.words, s.speakers or "-")
        for s in summaries
    ]
    print(table(header, rows))
    for summary in summaries:
        if summary.resampled:
            print(f"{summary.split}: resampled from {', '.join(map(str, summary.resampled))} Hz")
        if summary.skipped:
            left_out = "\n  ".join(map(str, summary.skipped))
            print(f"{summary.split}: {len(summary.skipped)} left out:\n  {left_out}")
    print(f"prepared in {out}")
