"""`brctc decode`"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from brctc.cli.shared import (
    Flag,
    OptionalDirectory,
    OptionalFile,
    Processes,
    check_file,
    check_names,
)
from brctc.data import Prepared, Row, read_manifest
from brctc.data.ctm import ctm_name
from brctc.decode import Result, write_ctm, write_jsonl, write_srt, write_textgrid
from brctc.decode.methods import RECIPE_KEYS, Method, recipe_search
from brctc.decode.pool import Recognized, RecognizerPool
from brctc.decode.recognizer import NO_ALIGNMENT
from brctc.decode.sources import Source, check_features, prepared_source
from brctc.evaluate import MetricConfig
from brctc.evaluate.defaults import metrics_of
from brctc.evaluate.metrics import ErrorRateMetric
from brctc.files import file_name
from brctc.models import Model
from brctc.runs import model_directory

MOST_NAMED = 5
FROM_RECIPE = arg(help_behavior_hint="(default: the recipe's)")


@dataclass(frozen=True, kw_only=True)
class Command:
    """Turn audio into text, or translate: files, the rows of a manifest, or a prepared split.
    - A model that translates text takes text files, with a sentence in each line.
    - A line of the output is an id, a tab and the text. Where the texts are known, the error
      rate follows (on stderr).
    - Times need a model whose spikes are where the words are: one that was trained to finish
      early has none, and says so.

    Examples:
      brctc decode exp/mine talk.wav interview.flac
      brctc decode exp/mine --manifest test.tsv --jsonl results.jsonl --ctm words.ctm
      brctc decode exp/mine --prepared data/prepared/mine --split test --method ctc-beam --beam 5
      brctc decode exp/translation news.txt --nbest 5 --jsonl news.jsonl
    """

    model: Annotated[Path, Positional, arg(metavar="MODEL")]
    """The directory of a run or of its model."""
    files: Annotated[tuple[Path, ...], Positional, arg(metavar="FILE ...", help_behavior_hint="")] = ()
    """Audio files of any format that libsndfile reads, and of any rate; or text files."""
    manifest: OptionalFile = None
    """A TSV file, as `brctc prepare` takes it."""
    prepared: OptionalDirectory = None
    """A directory that `brctc prepare` has written."""
    split: str = "test"
    """The split of --prepared."""
    method: Annotated[Method | None, FROM_RECIPE] = None
    """How to search; "auto" takes the decoder that the model has."""
    beam: Annotated[int | None, FROM_RECIPE] = None
    """Hypotheses that a search keeps; greedy ones keep one."""
    ctc_weight: Annotated[float | None, FROM_RECIPE] = None
    """Of the joint CTC/attention search."""
    length_reward: Annotated[float | None, FROM_RECIPE] = None
    """Of the joint CTC/attention search, for every token."""
    skip_blanks: Annotated[float | None, FROM_RECIPE] = None
    """Hide frames from the decoder whose CTC blank is more likely than this, such as 0.95."""
    nbest: int = 1
    """Hypotheses of each utterance that --jsonl gets."""
    transcript: Flag = False
    """Print what is said, too, behind its translation."""
    batch_size: int = 1
    """Utterances that are encoded together."""
    jobs: Processes = 1
    """Processes, where there is no GPU."""
    jsonl: OptionalFile = None
    """Gets all that is known of each result."""
    ctm: OptionalFile = None
    """Gets the times of the words; if tokens are characters, of each Chinese or Japanese one."""
    srt: OptionalDirectory = None
    """Gets subtitles, a file for each utterance."""
    textgrid: OptionalDirectory = None
    """Gets words and tokens for Praat, a file for each utterance."""

    def run(self) -> None:
        """Recognizes what can be read; what there is, is written also if that was stopped."""
        self._check()
        with RecognizerPool(model_directory(self.model), self.jobs) as pool:
            model, decoded = pool.recognizer.model, Decoded()
            if self.transcript:
                check_transcript(model)
            if self._with_times and reads_text(model):
                raise ValueError("--ctm, --srt, --textgrid: the model reads text, which has no times")
            sources, texts = self._find_sources(model, decoded.failed)
            self._check_names(texts)
            found = pool.recognize(batches(sources, self.batch_size), **self._options(model))
            decoded.collect(found, self._with_times)
        if decoded.results:
            self._write(decoded.results)
            show_scores(decoded.results, texts, metrics_of(model))
        decoded.complain()

    @property
    def _with_times(self) -> bool:
        return any(path is not None for path in (self.ctm, self.srt, self.textgrid))

    def _check(self) -> None:
        if (bool(self.files), self.manifest is not None, self.prepared is not None).count(True) != 1:
            raise ValueError("give one of FILE..., --manifest and --prepared")
        check_file(self.jsonl, "--jsonl")
        check_file(self.ctm, "--ctm")

    def _check_names(self, texts: Mapping[str, str] | None) -> None:
        """Before the work, whose results would replace one another."""
        ids = [path.stem for path in self.files] if texts is None else [*texts]
        if self.ctm is not None:
            check_names(ids, ctm_name)
        if self.srt is not None or self.textgrid is not None:
            check_names(ids)

    def _options(self, model: Model) -> dict[str, Any]:
        """Of the search: those given, the recipe's, or the defaults."""
        given = {name: getattr(self, name) for name in RECIPE_KEYS if getattr(self, name) is not None}
        times = self._with_times or self.jsonl is not None
        others = {"times": times, "nbest": self.nbest, "others": self.transcript}
        return recipe_search(model.description) | given | others

    def _find_sources(
        self, model: Model, failed: list[str]
    ) -> tuple[Iterator[Source], dict[str, str] | None]:
        """What to recognize, and the texts by id where they are known; what of a split is damaged goes to
        `failed`."""
        output = model.system.config.output
        if self.manifest is not None:
            rows = read_manifest(self.manifest, ("id", "text" if reads_text(model) else "path"))
            return iter(rows), {row.id: row.texts.get(output, "") for row in rows}
        if self.prepared is not None:
            opened = Prepared(self.prepared, self.split)
            check_features("the model", model, opened)
            texts = {example.id: example.texts.get(output, "") for example in opened.examples}
            return stored_sources(opened, failed), texts
        by_id: dict[str, Path] = {}
        for path in self.files:
            if by_id.setdefault(path.stem, path) != path:
                raise ValueError(f"{by_id[path.stem]} and {path} would both be {path.stem}: use a manifest")
        if reads_text(model):
            return chain.from_iterable(read_lines(path, failed) for path in self.files), None
        return iter(self.files), None

    def _write(self, results: Sequence[Result]) -> None:
        """The files that were asked for; who has no times is named."""
        if self.jsonl is not None:
            write_jsonl(self.jsonl, results)
        if not self._with_times:
            return
        timed = [result for result in results if result.word_times is not None]
        if self.ctm is not None:
            write_ctm(self.ctm, timed)
        write_each(self.srt, ".srt", write_srt, timed)
        write_each(self.textgrid, ".TextGrid", write_textgrid, timed)
        for result in results:
            if result.word_times is None:
                print(f"{result.id}: left out: {result.no_times}", file=sys.stderr)


@dataclass
class Decoded:
    """What became of the sources."""

    results: list[Result] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Why others could not be read, with their names."""
    stopped: bool = False
    """By Ctrl-C."""

    def collect(self, recognized: Iterable[Recognized], times: bool) -> None:
        """Takes results as they come, and prints their texts. A model that has no `times` is refused with its
        first result."""
        try:
            for found in recognized:
                self.failed += found.failed
                for result in found.results:
                    self.results.append(result)  # first: what is printed is also written
                    print("\t".join([result.id, result.text, *result.others.values()]), flush=True)
                    if times and result.no_times not in (None, NO_ALIGNMENT):  # not for want of the audio
                        raise ValueError(f"there are no times to write: {result.no_times}")
        except KeyboardInterrupt:
            self.stopped = True
        except ChildProcessError as error:  # what others have recognized is written all the same
            self.failed.append(f"{error}; {len(self.results)} utterances were recognized before")

    def complain(self) -> None:
        """Raises what the command ends with, if not all was recognized."""
        if self.stopped:
            raise KeyboardInterrupt(f"stopped after {len(self.results)} utterances")
        if self.failed:
            several = [f"{len(self.failed)} could not be recognized:"] if len(self.failed) > 1 else []
            raise ValueError("\n  ".join([*several, *self.failed]))


def read_lines(path: Path, failed: list[str]) -> Iterator[Row]:
    """The sentences of a text file, named by it and their lines; what cannot be read goes to `failed`."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        failed.append(f"{path}: {error.strerror}")
        return
    if not lines or any(b"\0" in line for line in lines):
        failed.append(
            f"{path}: " + ("it is not text, which the model translates" if lines else "it is empty")
        )
        return
    for number, line in enumerate(lines, start=1):
        id = f"{path.stem}:{number}"
        try:
            yield Row(id, " ".join(line.decode("utf-8-sig" if number == 1 else "utf-8").split()))
        except UnicodeDecodeError as error:
            failed.append(f"{id}: not UTF-8: {error.reason} at byte {error.start}")


def reads_text(model: Model) -> bool:
    """Whether it translates text."""
    return model.system.config.encoder.input == "tokens"


def check_transcript(model: Model) -> None:
    """Refuses --transcript for a model that says one text only."""
    if set(model.system.config.heads) <= {model.system.config.output}:
        raise ValueError("--transcript: the model has no CTC output but that of its text")


def stored_sources(prepared: Prepared, failed: list[str]) -> Iterator[Source]:
    """A split's features, one after the other; what cannot be read goes to `failed`."""
    for index, example in enumerate(prepared.examples):
        try:
            yield prepared_source(prepared, index)
        except ValueError as error:
            failed.append(f"{example.id}: {error}")


def batches(sources: Iterator[Source], size: int) -> Iterator[list[Source]]:
    """So many at a time: features are in memory only while they are recognized."""
    if size < 1:
        raise ValueError(f"batch_size is {size}, expected at least 1")
    batch: list[Source] = []
    for source in sources:
        batch.append(source)
        if len(batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch


def write_each(
    directory: Path | None, ending: str, write: Callable[[Path, Result], None], results: Sequence[Result]
) -> None:
    """A file for each result, if there is a directory for them."""
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        for result in results:
            write(directory / (file_name(result.id) + ending), result)


def show_scores(
    results: Sequence[Result], texts: Mapping[str, str] | None, metrics: Mapping[str, MetricConfig]
) -> None:
    """What the metrics say of those whose text is known; errors of characters with those of words."""
    known = [result for result in results if texts and texts.get(result.id, "").strip()]
    if not texts or not known:
        return
    references, found = [texts[result.id] for result in known], [result.text for result in known]
    asked = list(metrics.values())
    if ErrorRateMetric(unit="char") in asked and any(" " in text for text in references):
        asked.append(ErrorRateMetric(unit="word"))
    for metric in asked:
        print(metric.describe(references, found), file=sys.stderr)
    without = [result.id for result in results if result not in known]
    if without:
        named = ", ".join(without[:MOST_NAMED]) + (", ..." if len(without) > MOST_NAMED else "")
        print(f"of {len(known)} of {len(results)}; no reference: {named}", file=sys.stderr)
