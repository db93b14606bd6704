"""Preparing a split: shard by shard, in several processes, and on from where it was killed."""

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from brctc.data.checks import LabelCounts, LengthCheck, check_file_of, store_labels
from brctc.data.description import FORMAT, Description, seal, unseal
from brctc.data.features import features_to_store
from brctc.data.make_shard import ShardJob, ShardReport, make_shard
from brctc.data.manifest import DUPLICATE, PreparationError, Problem
from brctc.data.shards import check_file
from brctc.data.source import Source, Storage
from brctc.data.statistics import add_up
from brctc.files import json_digest, locked, read_json, remove_unfinished, sync, write_json

LEAST_ITEMS, MOST_ITEMS, USUAL_SHARDS = 50, 5000, 64
FEW_ITEMS = 2000
"""Below this a preparation is done sooner than processes start."""

Progress = Callable[[int, int], object]
"""Called with the items done and the items in all."""


@dataclass(frozen=True)
class Summary:
    """What a preparation made, and what it left out."""

    split: str
    examples: int
    num_frames: int
    duration_s: float
    words: int
    speakers: int
    skipped: tuple[Problem, ...] = ()
    resampled: tuple[int, ...] = ()
    """Rates in Hz of audio that was resampled."""


def prepare_split(
    source: Source,
    out_dir: str | Path,
    split: str,
    storage: Storage,
    *,
    check: LengthCheck | None = None,
    origin: dict[str, Any] | None = None,
    skip_bad: bool = False,
    jobs: int | None = 1,
    progress: Progress | None = None,
) -> Summary:
    """Writes a split, `Prepared(out_dir, split)`, in place of the one that may be there.

    A PreparationError lists all problems at once; the old split is untouched then. A preparation that was
    killed goes on at its shard, and the result is the same to the byte. What is prepared from the same
    source in the same way is kept. Whoever prepares the same folder at the same time waits.

    Args:
        source: where the examples come from.
        storage: what is stored of each.
        check: whether the texts fit into their frames.
        origin: what the split is made from, for whoever reads it.
        skip_bad: leave bad examples out and list them in the summary.
        jobs: processes; None is one for each core, and one for a small corpus. A script that asks for more
            than one has its work under `if __name__ == "__main__":`, as multiprocessing wants it.
        progress: called after every shard.
    """
    out = Path(out_dir)
    check_split_name(split)
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # or this would wait for its parent
        raise RuntimeError('several jobs need the script\'s work under `if __name__ == "__main__":`')
    with locked(out / ".lock", f"another process prepares {out}"):
        plan = _Plan(source, out, split, storage, check, skip_bad)
        described = _read_description(out, split)
        if described is not None and plan.is_done(described):
            now = seal(described | {"files": plan.files, "origin": origin or described["origin"]})
            if now != read_json(out / f"{split}.json"):
                write_json(out / f"{split}.json", now)
            plan.remove_others()
            return _summary(split, described)
        return _prepare(plan, origin, jobs, progress)


def files_digest(source: Source, storage: Storage) -> str:
    """Of the files behind a source as they are now: what a preparation notes of them."""
    return _Plan(source, Path(), "now", storage, None, False).files


class _Plan:
    """What is to be written where."""

    def __init__(
        self,
        source: Source,
        out: Path,
        split: str,
        storage: Storage,
        check: LengthCheck | None,
        skip_bad: bool,
    ) -> None:
        self.source, self.out, self.split = source, out, split
        self.storage, self.check, self.skip_bad = storage, check, skip_bad
        self.size = source.size()
        self.items_per_shard = min(MOST_ITEMS, max(LEAST_ITEMS, -(-self.size // USUAL_SHARDS)))
        # what is left out depends on the check; what is all there does not
        dropped = check.digest() if check is not None and skip_bad else None
        self.source_digest = source.digest()
        content = [FORMAT, self.source_digest, self.storage_json(), dropped, skip_bad, self.items_per_shard]
        # other files behind the same items: another folder, so that the old split stays whole meanwhile
        prints = [source.fingerprint(items) for items in self._groups([])]
        self.files = json_digest(prints)
        content.append(prints)
        self.key = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        self.folder = out / f"{split}-{self.key[:12]}"
        self.reports = out / f".{split}-{self.key[:12]}"

    def storage_json(self) -> dict[str, Any]:
        """As plain data."""
        features = self.storage.features
        return asdict(self.storage) | {"features": None if features is None else features_to_store(features)}

    def items(self, problems: list[Problem]) -> Iterator[Any]:
        """The source's items; what is wrong with others, and with ids, goes to `problems`."""
        copies = tuple(f"_sp{speed:g}" for speed in self.storage.speeds if speed != 1)
        seen: set[bytes] = set()
        for item in self.source.items():
            if isinstance(item, Problem):
                problems.append(item)
                continue
            key = hashlib.blake2b(item.id.encode(), digest_size=12).digest()  # millions fit into memory
            if key in seen:
                problems.append(Problem(item.id, DUPLICATE))
            elif copies and item.id.endswith(copies):
                problems.append(Problem(item.id, "the id ends like that of a copy at another speed"))
            else:
                yield item
            seen.add(key)

    def shards(self, problems: list[Problem]) -> Iterator[ShardJob]:
        """The work, in the order of the items."""
        return (self.job(number, items) for number, items in enumerate(self._groups(problems)))

    def _groups(self, problems: list[Problem]) -> Iterator[list[Any]]:
        """The items of each shard."""
        items: list[Any] = []
        for item in self.items(problems):
            items.append(item)
            if len(items) == self.items_per_shard:
                yield items
                items = []
        if items:
            yield items

    def job(self, number: int, items: Sequence[Any]) -> ShardJob:
        """One shard of these items."""
        return ShardJob(number, items, self.source, self.storage, self.check, self.skip_bad, self.folder)

    def report_file(self, number: int) -> Path:
        """What a shard that is done holds."""
        return self.reports / f"{number:06d}.json"

    def finished(self, job: ShardJob) -> ShardReport | None:
        """The report of a shard that was written before."""
        try:
            report = ShardReport.from_json(unseal(read_json(self.report_file(job.number))))
        except (FileNotFoundError, ValueError):  # a damaged one is none: its shard is made again
            return None
        return None if any(check_file(self.folder, file) for file in report.files) else report

    def is_done(self, described: dict[str, Any]) -> bool:
        """Whether the split that is there is what would be written."""
        if (described["key"], described["folder"]) != (self.key, self.folder.name):
            return False
        files = (file for shard in described["shards"] for file in shard["files"])
        return not any(check_file(self.folder, file) for file in files)

    def remove_others(self) -> None:
        """Takes away what other preparations of the split have left, and the notes of this one."""
        shutil.rmtree(self.reports, ignore_errors=True)
        for folder in (self.out, self.out / f"{self.split}.checks"):
            remove_unfinished(folder)
        for old in (*self.out.glob(f"{self.split}-*"), *self.out.glob(f".{self.split}-*")):
            if old.is_dir() and old != self.folder and _is_of(self.split, old.name.lstrip(".")):
                shutil.rmtree(old)

    def remove_empty(self) -> None:
        """Takes away the folders of a preparation that has written nothing."""
        for folder in (self.folder, self.reports):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def _prepare(
    plan: _Plan, origin: dict[str, Any] | None, jobs: int | None, progress: Progress | None
) -> Summary:
    plan.folder.mkdir(parents=True, exist_ok=True)
    plan.reports.mkdir(exist_ok=True)
    try:
        remove_unfinished(plan.folder)
        finished, problems = _make_shards(plan, jobs, progress)
        if problems and not (plan.skip_bad and any(report.examples for report in finished)):
            raise PreparationError(plan.source.name, problems)
        if not finished:
            raise ValueError(f"{plan.source.name} has no rows")
    except BaseException:
        plan.remove_empty()
        raise
    remove_unfinished(plan.folder)  # of processes that have outlived a killed preparation by a moment
    sync(plan.folder)
    description = _describe(plan, finished, problems, origin)
    write_json(plan.out / f"{plan.split}.json", seal(description))  # last: with it the new split is there
    if plan.check is not None:
        labels = LabelCounts()
        for report in finished:
            labels.merge(report.labels)
        store_labels(check_file_of(plan.out, plan.split, plan.check), plan.key, labels)
    plan.remove_others()
    return _summary(plan.split, description)


def _make_shards(
    plan: _Plan, jobs: int | None, progress: Progress | None
) -> tuple[list[ShardReport], list[Problem]]:
    """The reports of all shards in their order, and what is wrong with items, each problem once."""
    problems: list[Problem] = []
    finished: dict[int, ShardReport] = {}
    done = 0
    for job, report in _run(plan.shards(problems), plan, _processes(jobs, plan.size)):
        if report.files:
            write_json(plan.report_file(job.number), seal(report.to_json()))
        finished[job.number] = report
        done += len(job.items)
        if progress is not None:
            progress(done, plan.size)
    in_order = [finished[number] for number in sorted(finished)]
    problems += [problem for report in in_order for problem in report.problems]
    return in_order, list(dict.fromkeys(problems))


def _is_of(split: str, folder: str) -> bool:
    """Whether a folder is one of this split's, and not of one whose name begins alike."""
    name, _, key = folder.rpartition("-")
    return name == split and len(key) == 12


def _run(jobs: Iterable[ShardJob], plan: _Plan, processes: int) -> Iterator[tuple[ShardJob, ShardReport]]:
    """Each job with its report, those that were finished before at once."""
    if processes == 1:
        for job in jobs:
            yield job, plan.finished(job) or make_shard(job)
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["brctc.data.make_shard", "lhotse", "scipy.signal"])
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin_worker)
    waiting: dict[Future[ShardReport], ShardJob] = {}
    try:
        for job in jobs:
            if (before := plan.finished(job)) is not None:
                yield job, before
                continue
            waiting[pool.submit(make_shard, job)] = job
            if len(waiting) >= 2 * processes:
                yield from _completed(waiting)
        while waiting:
            yield from _completed(waiting)
    except BrokenProcessPool:
        raise ChildProcessError(
            "a process that prepared a shard has died, perhaps for lack of memory: the same command goes on "
            "where it was, and --jobs 1 needs the least memory"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _completed(waiting: dict[Future[ShardReport], ShardJob]) -> Iterator[tuple[ShardJob, ShardReport]]:
    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
        yield waiting.pop(future), future.result()


def _begin_worker() -> None:
    """Ctrl-C is for the process that waits for these; and none of them outlives it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has a parent"
    parent.join()
    os._exit(1)  # it was killed: nobody waits for what is written here


def _processes(jobs: int | None, items: int) -> int:
    if jobs is None:
        return 1 if items <= FEW_ITEMS else len(os.sched_getaffinity(0))
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}, expected at least 1")
    return jobs


def _describe(
    plan: _Plan, finished: Sequence[ShardReport], problems: Sequence[Problem], origin: dict[str, Any] | None
) -> dict[str, Any]:
    """What `Prepared` reads: everything that is known of the split without its shards."""
    reports = [report for report in finished if report.files]
    statistics = add_up(report.statistics for report in reports if report.statistics is not None)
    return {
        "format": FORMAT,
        "key": plan.key,
        "folder": plan.folder.name,
        "source": plan.source_digest,
        "files": plan.files,
        "storage": plan.storage_json(),
        "examples": sum(report.examples for report in reports),
        "num_frames": sum(report.num_frames for report in reports),
        "duration_s": round(sum(report.duration_s for report in reports), 6),
        "words": sum(report.words for report in reports),
        "speakers": len({speaker for report in reports for speaker in report.speakers}),
        "resampled": sorted({rate for report in reports for rate in report.resampled}),
        "longest": max((report.longest for report in reports), key=lambda found: found[1]),
        "statistics": None if statistics is None else statistics.to_json(),
        "skipped": [list(problem) for problem in problems],
        "origin": origin,
        "shards": [{"examples": report.examples, "files": report.files} for report in reports],
    }


def _summary(split: str, described: dict[str, Any]) -> Summary:
    counts = {name: described[name] for name in ("examples", "num_frames", "duration_s", "words", "speakers")}
    skipped = tuple(Problem(*problem) for problem in described["skipped"])
    return Summary(split, **counts, skipped=skipped, resampled=tuple(described["resampled"]))


def _read_description(out: Path, split: str) -> dict[str, Any] | None:
    """Of the split that is there; None if it cannot be used any more."""
    try:
        described = read_json(out / f"{split}.json")
        Description.of(described)
    except (FileNotFoundError, ValueError):
        return None
    return {key: value for key, value in described.items() if key != "digest"}


def check_split_name(split: str) -> None:
    """Letters, digits, - and _ only: it becomes a file's name."""
    if not split or not split.replace("-", "").replace("_", "").isalnum():
        raise ValueError(f"split is {split!r}, expected a name of letters, digits, - and _")
