"""`brctc decode`"""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from brctc.cli.shared import OptionalDirectory, OptionalFile, check_file, check_names, file_name
from brctc.data import Prepared, read_manifest
from brctc.decode import Recognizer, Result, write_ctm, write_jsonl, write_srt, write_textgrid
from brctc.decode.output import ctm_name
from brctc.decode.recognizer import NO_ALIGNMENT, Method
from brctc.decode.sources import Input, Source, check_features, read_source
from brctc.evaluate import error_rate
from brctc.models import Model
from brctc.runs import model_directory

FROM_RECIPE = arg(help_behavior_hint="(default: the recipe's)")


def command(
    model: Annotated[Path, Positional, arg(metavar="MODEL")],
    audio: Annotated[tuple[Path, ...], Positional, arg(metavar="AUDIO ...", help_behavior_hint="")] = (),
    *,
    manifest: OptionalFile = None,
    prepared: OptionalDirectory = None,
    split: str = "test",
    method: Annotated[Method | None, FROM_RECIPE] = None,
    beam: Annotated[int | None, FROM_RECIPE] = None,
    ctc_weight: Annotated[float | None, FROM_RECIPE] = None,
    length_reward: Annotated[float | None, FROM_RECIPE] = None,
    batch_size: int = 1,
    jsonl: OptionalFile = None,
    ctm: OptionalFile = None,
    srt: OptionalDirectory = None,
    textgrid: OptionalDirectory = None,
) -> None:
    """Turn audio into text: audio files, the rows of a manifest, or a prepared split.
    - A line of the output is an id, a tab and the text. Where the texts are known, the error
      rate follows (on stderr).
    - Times need a model whose spikes are where the words are: one that was trained to finish
      early has none, and says so.

    Examples:
      brctc decode exp/mine talk.wav interview.flac
      brctc decode exp/mine --manifest test.tsv --jsonl results.jsonl --ctm words.ctm
      brctc decode exp/mine --prepared data/prepared/mine --split test --method ctc-beam --beam 5

    Args:
        model: The directory of a run or of its model.
        audio: Audio files of any format that libsndfile reads, and of any rate.
        manifest: A TSV file, as `brctc prepare` takes it.
        prepared: A directory that `brctc prepare` has written.
        split: The split of --prepared.
        method: How to search; "auto" takes the decoder that the model has.
        beam: Hypotheses that a search keeps; greedy ones keep one.
        ctc_weight: Of the joint CTC/attention search.
        length_reward: Of the joint CTC/attention search, for every token.
        batch_size: Utterances that are encoded together.
        jsonl: Gets all that is known of each result.
        ctm: Gets the times of the words.
        srt: Gets subtitles, a file for each utterance.
        textgrid: Gets words and tokens for Praat, a file for each utterance.
    """
    if (bool(audio), manifest is not None, prepared is not None).count(True) != 1:
        raise ValueError("say one of AUDIO..., --manifest and --prepared")
    check_file(jsonl, "--jsonl")
    check_file(ctm, "--ctm")
    recognizer = Recognizer.from_directory(model_directory(model))
    given = {"method": method, "beam": beam, "ctc_weight": ctc_weight, "length_reward": length_reward}
    recipe = recognizer.model.description.get("recipe", {}).get("decode", {})
    options = recipe | {name: value for name, value in given.items() if value is not None}
    sources, texts = find_sources(recognizer.model, audio, manifest, prepared, split)
    times = any(path is not None for path in (ctm, srt, textgrid))
    ids = [path.stem for path in audio] if texts is None else [*texts]
    if ctm is not None:
        check_names(ids, ctm_name)
    if srt is not None or textgrid is not None:
        check_names(ids)

    results: list[Result] = []
    failed: list[str] = []

    def show(result: Result) -> None:
        print(f"{result.id}\t{result.text}", flush=True)
        results.append(result)
        if times and result.no_times not in (None, NO_ALIGNMENT):  # it is the model's fault, not the audio's
            raise ValueError(f"there are no times to write: {result.no_times}")

    stopped = False  # what there is, is written also then
    try:
        for batch in batches(readable(sources, recognizer.model, failed), batch_size):
            recognizer.recognize(
                batch, batch_size=batch_size, times=times or jsonl is not None, on_result=show, **options
            )
    except KeyboardInterrupt:
        stopped = True
    if jsonl is not None and results:
        write_jsonl(jsonl, results)
    if results:
        write_times(results, ctm, srt, textgrid)
    known = [result for result in results if texts and texts[result.id].strip()]
    if texts and known:
        kind = recognizer.model.tokenizer.kind
        show_errors([texts[result.id] for result in known], [result.text for result in known], kind)
    if stopped:
        raise KeyboardInterrupt(f"stopped after {len(results)} utterances")
    if failed:
        several = [f"{len(failed)} could not be recognized:"] if len(failed) > 1 else []
        raise ValueError("\n  ".join([*several, *failed]))


def readable(sources: Iterator[Source], model: Model, failed: list[str]) -> Iterator[Input]:
    """What can be recognized; what cannot goes to `failed`, and does not stop the others."""
    for source in sources:
        try:
            yield read_source(source, model)
        except ValueError as error:
            failed.append(str(error))


def find_sources(
    model: Model, audio: Sequence[Path], manifest: Path | None, prepared: Path | None, split: str
) -> tuple[Iterator[Source], dict[str, str] | None]:
    """What to recognize, and the texts by id where they are known."""
    if manifest is not None:
        rows = read_manifest(manifest)
        return iter(rows), {row.id: row.text for row in rows}
    if prepared is not None:
        opened = Prepared(prepared, split)
        check_features("the model", model, opened)
        found = ((utterance.id, opened.features(i)) for i, utterance in enumerate(opened.utterances))
        return found, {utterance.id: utterance.text for utterance in opened.utterances}
    by_id: dict[str, Path] = {}
    for path in audio:
        if by_id.setdefault(path.stem, path) != path:
            raise ValueError(f"{by_id[path.stem]} and {path} would both be {path.stem}: use a manifest")
    return iter(audio), None


def batches(sources: Iterator[Input], size: int) -> Iterator[list[Input]]:
    """So many at a time: features are in memory only while they are recognized."""
    batch: list[Input] = []
    for source in sources:
        batch.append(source)
        if len(batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch


def write_times(results: Sequence[Result], ctm: Path | None, srt: Path | None, textgrid: Path | None) -> None:
    """Writes the times of all results that have them, and names the others."""
    timed = [result for result in results if result.word_times is not None]
    if ctm is not None:
        write_ctm(ctm, timed)
    writers: list[tuple[Path | None, str, Callable[[Path, Result], None]]] = [
        (srt, ".srt", write_srt),
        (textgrid, ".TextGrid", write_textgrid),
    ]
    for directory, suffix, write in writers:
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            for result in timed:
                write(directory / (file_name(result.id) + suffix), result)
    if any(path is not None for path in (ctm, srt, textgrid)):
        for result in results:
            if result.word_times is None:
                print(f"{result.id}: left out: {result.no_times}", file=sys.stderr)


def show_errors(texts: list[str], found: list[str], kind: str) -> None:
    """Error rates of words and, for a model of characters, of characters."""
    units: list[Any] = ["char"] if kind == "char" else ["word"]
    if kind == "char" and any(" " in text for text in texts):
        units.append("word")
    for unit in units:
        print(f"{unit} error rate: {error_rate(texts, found, unit)}", file=sys.stderr)
