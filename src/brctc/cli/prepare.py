"""`brctc prepare`"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from brctc.cli.shared import Assignments, Flag, parse_assignments, progress_bars, table
from brctc.data import (
    SPEEDS,
    FeatureConfig,
    PreparationError,
    Prepared,
    Summary,
    TokenConfig,
    Tokenizer,
    prepare_corpus,
    prepare_manifest,
)
from brctc.data.prepare import check_speeds, training_texts
from brctc.data.prepared import ORIGIN, splits_in
from brctc.files import write_text

CHARACTERS, FILTERBANK = TokenConfig(), FeatureConfig()


def command(
    manifests: Annotated[
        tuple[Path, ...], Positional, arg(metavar="MANIFEST ...", help_behavior_hint="")
    ] = (),
    *,
    out: Annotated[Path, arg(metavar="DIR")],
    split: Annotated[
        tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: the files' names)")
    ] = (),
    skip_bad: Flag = False,
    speeds: Annotated[tuple[float, ...], arg(metavar="FLOAT ...")] = SPEEDS,
    subsampling: Literal[1, 2, 4] = 4,
    tokens: TokenConfig = CHARACTERS,
    features: FeatureConfig = FILTERBANK,
    corpus: Annotated[
        Literal["handwriting", "digit-strings", "grid"] | None, arg(help_behavior_hint="")
    ] = None,
    source: Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")] = None,
    set: Assignments = (),
) -> None:
    """Check a corpus and compute its features: your own from manifests, or one that is built in.
    - A manifest is a TSV file with a header and the columns id, text, path (of the audio, seen
      from the manifest) and duration in seconds; it may have speaker, start_sample, num_samples
      and word_times. docs/own-data.md shows how to write one.
    - Every row is checked. If something is wrong, all problems are listed by id and the split
      is not written.

    Examples:
      brctc prepare train.tsv dev.tsv test.tsv --out data/prepared/mine
      brctc prepare recordings.tsv --split train --out data/prepared/mine --skip-bad
      brctc prepare --corpus handwriting --out data/prepared/handwriting
      brctc prepare --corpus digit-strings --source data/audiomnist --out data/prepared/digits

    Args:
        manifests: One for each split.
        out: Gets the prepared splits.
        split: The names of the manifests' splits.
        skip_bad: Leave bad rows out, and list them.
        speeds: The split "train" is stored at each of these speeds.
        subsampling: The encoder's, to see whether a transcript fits into its frames.
        tokens: What a transcript is counted in then.
        corpus: A corpus that is built in: prepares train, dev and test.
        source: Where the recordings of digit-strings or grid are.
        set: Options of the corpus, such as train_strings=1000 or seed=1.
    """
    if bool(manifests) == (corpus is not None):
        raise ValueError("say either MANIFEST... or --corpus")
    mine = {
        "--split": split != (),
        "--skip-bad": skip_bad,
        "--speeds": speeds != SPEEDS,
        "--subsampling": subsampling != 4,
        "--tokens": tokens != CHARACTERS,
        "--features": features != FILTERBANK,
    }
    given = [name for name, is_given in mine.items() if is_given]
    if corpus is not None and given:
        raise ValueError(f"{given[0]} is for manifests: a corpus has its options in --set")
    if corpus is None and (set or source is not None):
        raise ValueError(f"{'--set' if set else '--source'} is for a --corpus, not for manifests")
    if corpus is not None:
        options: dict[str, Any] = parse_assignments(set)
        if source is not None:
            options["source"] = source
        with forgetting_origin(out), progress_bars() as bars:
            progress = partial(bars, f"preparing {corpus}")
            summaries = list(prepare_corpus(corpus, out, progress=progress, **options).values())
        show(summaries, out)
        return
    names = split or tuple(manifest.stem for manifest in manifests)
    if len(names) != len(manifests) or len(names) != len({*names}):
        raise ValueError(f"{len(manifests)} manifests need as many different splits, got {', '.join(names)}")
    found = dict(zip(names, manifests, strict=True))
    for manifest in manifests:
        if not manifest.exists() or manifest.is_dir():
            problem = "Is a directory" if manifest.is_dir() else "No such file or directory"
            raise ValueError(f"{manifest}: {problem}")
    check_speeds(speeds)
    check_others(out, names, features)
    counted_in = training_tokens(found, tokens)
    summaries, problems = [], []
    with forgetting_origin(out), progress_bars() as bars:
        for name, manifest in found.items():
            try:
                summary = prepare_manifest(
                    manifest,
                    out,
                    name,
                    features,
                    tokens=counted_in,
                    subsampling=subsampling,
                    speeds=speeds if name == "train" else (1.0,),
                    skip_bad=skip_bad,
                    progress=partial(bars, f"preparing {name}"),
                )
                summaries.append(summary)
            except PreparationError as error:
                problems.append(str(error))
    show(summaries, out)
    if problems:
        raise ValueError(
            "\n".join([*problems, "Nothing was written of these; --skip-bad leaves bad rows out."])
        )


@contextmanager
def forgetting_origin(out: Path) -> Iterator[None]:
    """What a recipe has prepared here before is no longer what is here, if the block writes a split."""
    path = out / ORIGIN
    origin = path.read_text(encoding="utf-8") if path.is_file() else None
    if origin is not None:
        path.unlink()  # first: the block may be killed
    before = _when_written(out)
    try:
        yield
    finally:
        if origin is not None and _when_written(out) == before:
            write_text(path, origin)


def check_others(out: Path, names: Sequence[str], features: FeatureConfig) -> None:
    """No model takes splits of different features."""
    for other in splits_in(out):
        if other not in names and (theirs := Prepared(out, other).feature_config) != features:
            raise ValueError(f"{out} has the split {other!r} with features {theirs}, these are {features}")


def _when_written(out: Path) -> dict[str, int]:
    return {split: (out / f"{split}.json").stat().st_mtime_ns for split in splits_in(out)}


def training_tokens(manifests: dict[str, Path], tokens: TokenConfig) -> TokenConfig | Tokenizer:
    """BPE is made from the training texts, and then counts the tokens of every split."""
    if tokens.kind != "bpe" or "train" not in manifests:
        return tokens
    return Tokenizer.train(training_texts(manifests["train"]), tokens)


def show(summaries: list[Summary], out: Path) -> None:
    """What was prepared, and what was left out."""
    if not summaries:
        return
    header = ("split", "utterances", "hours", "frames", "words", "speakers")
    rows = [
        (s.split, s.utterances, f"{s.duration_s / 3600:.2f}", s.num_frames, s.words, s.speakers or "-")
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
