"""The table of results: described once, shown in a terminal, on the page and in Markdown."""

from collections.abc import Callable
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from brctc.evaluate.metrics import BLEU, ERROR_RATE, Difference, MetricInfo, Score
from brctc.evaluate.results import Evaluation, SystemResult, scale, title_of
from brctc.report.escaping import escape
from brctc.report.paper import PAPER, PaperResult

NOTHING = "-"


class Measure(NamedTuple):
    """A row of the table: what it says of a system of ours, and of a pair of the paper's."""

    title: str
    of_system: Callable[[SystemResult], str]
    of_paper: Callable[[PaperResult], str] = lambda paper: NOTHING
    compares: bool = False
    """With the first system."""


class Group(NamedTuple):
    """Columns that belong together."""

    title: str
    columns: tuple[str, ...]


class Table(NamedTuple):
    """A table with a head of two lines; the first cell of a row is its title."""

    groups: tuple[Group, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    """Lines below it."""


def results_table(evaluation: Evaluation, *, paper: bool = True) -> Table:
    """What the systems reach; with the paper's figures for the same kinds of system beside it."""
    groups = [Group(_of_ours(evaluation), tuple(system.name for system in evaluation.systems))]
    measures = [m for m in _measures(evaluation) if len(evaluation.systems) > 1 or not m.compares]
    columns = [[measure.of_system(system) for measure in measures] for system in evaluation.systems]
    for kind in _kinds(evaluation) if paper else ():
        place, results = PAPER[kind]
        names = tuple(f"{p.corpus} {p.test_set}, {p.size}" for p in results)
        groups.append(Group(f"the paper, {place}: CTC → BRCTC", names))
        columns += [[measure.of_paper(result) for measure in measures] for result in results]
    rows = zip([measure.title for measure in measures], *columns, strict=True)
    notes = dict.fromkeys(info.note for info in evaluation.metrics.values() if info.note)
    notes |= dict.fromkeys(
        f"CTC weight and length reward: the best of a grid on {system.search.tuned_on}"
        for system in evaluation.systems
        if system.search and system.search.tuned_on
    )
    return Table(tuple(groups), tuple(rows), tuple(notes))


def to_rich(table: Table) -> RichTable:
    """For a terminal: `rich.print(to_rich(table))`. No cell is markup: a run may be called run[/red]."""
    title = Text("; ".join(group.title for group in table.groups), style="table.title")
    rich = RichTable(
        title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    if table.notes:
        rich.caption, rich.caption_justify = Text("\n".join(table.notes), style="table.caption"), "left"
    rich.add_column("", no_wrap=True)  # a title that is cut is none
    for group in table.groups:
        for column in group.columns:
            head = Text(column.replace(" + ", " +\n"))  # or it would not fit in 80
            rich.add_column(head, justify="right")
    for row in table.rows:
        rich.add_row(*map(Text, row))
    return rich


def to_markdown(table: Table) -> str:
    """For a README; the groups' titles stand in the columns'."""
    first, *others = table.groups
    head = ["", *first.columns]
    for group in others:
        head += [f"{column} ({group.title})" for column in group.columns]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *table.rows]
    written = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    notes = [part for note in table.notes for part in ("", note)]  # a paragraph each
    return "\n".join(written + notes)


def to_html(table: Table) -> str:
    """For the page."""
    first_line = "<td></td>" + "".join(
        f'<th colspan="{len(group.columns)}" scope="colgroup" class="group">{escape(group.title)}</th>'
        for group in table.groups
    )
    starts = _starts(table)
    second_line = "<td></td>" + "".join(
        f'<th scope="col"{_class(i in starts)}>{escape(column)}</th>'
        for i, column in enumerate(column for group in table.groups for column in group.columns)
    )
    body = "".join(
        f'<tr><th scope="row">{escape(title)}</th>'
        + "".join(f"<td{_class(i in starts)}>{escape(cell)}</td>" for i, cell in enumerate(cells))
        + "</tr>\n"
        for title, *cells in table.rows
    )
    width = 1 + sum(len(group.columns) for group in table.groups)
    notes = "".join(
        f'<tr><td colspan="{width}" class="note">{escape(note)}</td></tr>\n' for note in table.notes
    )
    foot = f"<tfoot>{notes}</tfoot>" if notes else ""
    head = f"<thead><tr>{first_line}</tr>\n<tr>{second_line}</tr></thead>"
    return f"<table>{head}\n<tbody>{body}</tbody>{foot}</table>"


def _class(begins_group: bool) -> str:
    return ' class="begins"' if begins_group else ""


def _starts(table: Table) -> set[int]:
    """The columns that begin a group."""
    starts, column = set(), 0
    for group in table.groups:
        starts.add(column)
        column += len(group.columns)
    return starts


def _of_ours(evaluation: Evaluation) -> str:
    where = f"{title_of(evaluation.corpus)} {evaluation.split}, {evaluation.utterances:,} utterances"
    return scale(evaluation.corpus) + where


def _kinds(evaluation: Evaluation) -> list[str]:
    """The paper's systems to compare with; a CTC system of ours is shown beside its transducers."""
    if evaluation.main_metric[1].title == BLEU:
        return ["text translation" if evaluation.time_per == "sentence" else "speech translation"]
    methods = {system.method.removesuffix("-greedy") for system in evaluation.systems}
    kinds = [kind for kind in ("attention", "transducer") if kind in methods]
    return kinds or ["transducer"]


def _measures(evaluation: Evaluation) -> list[Measure]:
    first, unit = evaluation.systems[0].name, evaluation.time_unit
    papers = BLEU if evaluation.main_metric[1].title == BLEU else ERROR_RATE
    of_paper = [name for name, info in evaluation.metrics.items() if info.title == papers][:1]
    scores = [
        measure
        for name in evaluation.metrics
        for measure in _score_measures(evaluation, name, of_paper=name in of_paper)
    ]
    return [
        *scores,
        *_other_measures(evaluation),
        Measure(
            "down-sampling factor",
            lambda s: _factor(s) if s.trimmable else NOTHING,
            lambda p: f"{p.factor:.2f}",
        ),
        Measure(
            "its oracle",
            lambda s: f"{s.down_sampling.oracle:.3f}",
            lambda p: f"{p.oracle:.2f}",
        ),
        Measure(unit.title, lambda s: _rtf(s.real_time.rtf), lambda p: _pair(p.time)),
        Measure("  of the encoder", lambda s: _rtf(s.real_time.encoder_rtf)),
        Measure("  of the decoder", lambda s: _rtf(s.real_time.decoder_rtf)),
        Measure(
            f"{unit.short} against {first}",
            lambda s: f"{s.real_time.ratio - 1:+.0%}" if s.differences else NOTHING,
            lambda p: f"{p.time[1] / p.time[0] - 1:+.0%}",
            compares=True,
        ),
        *_batch_measures(evaluation),
        Measure("search", _search, lambda p: f"beam {p.beam}"),
        *_joint_measures(evaluation),
        Measure("risk at the end", lambda s: s.risk, lambda p: f"early-finish {p.risk:g}"),
        Measure("parameters", lambda s: f"{s.parameters / 1e6:.2f} M"),
        Measure("training", _training, lambda p: f"{p.epochs} epochs"),
    ]


def _other_measures(evaluation: Evaluation) -> list[Measure]:
    """The most important score on further test sets, and what trimming keeps there."""
    name, info = evaluation.main_metric
    names = [system.name for system in evaluation.systems]
    unit = f", {info.unit}" if info.unit else ""
    rows = []
    for other in evaluation.others:
        found = dict(zip(names, other.systems, strict=True))
        title = f"{metric_title(evaluation, name)} on {other.split}{unit} ({other.utterances:,} utterances)"
        rows += [
            Measure(title, lambda s, found=found: _score(found[s.name].scores[name], info)),
            Measure(
                f"  difference to {names[0]}, points",
                lambda s, found=found: _difference(found[s.name].differences.get(name), info),
                compares=True,
            ),
            Measure(
                "  down-sampling factor",
                lambda s, found=found: f"{found[s.name].down_sampling.factor:.3f}" if s.trims else NOTHING,
            ),
        ]
    return rows


def _batch_measures(evaluation: Evaluation) -> list[Measure]:
    """Of systems that were timed in batches."""
    if any(system.batch_time is None for system in evaluation.systems):
        return []
    first, unit = evaluation.systems[0].name, evaluation.time_unit

    def seconds(system: SystemResult) -> str:
        return _rtf(system.batch_time.rtf) if system.batch_time else NOTHING

    def change(system: SystemResult) -> str:
        timed = system.batch_time
        return f"{timed.ratio - 1:+.0%}" if timed and system.differences else NOTHING

    return [
        Measure(f"{unit.short} in batches of {evaluation.batch}", seconds),
        Measure(f"  against {first}", change, compares=True),
    ]


def _joint_measures(evaluation: Evaluation) -> list[Measure]:
    """The weights of systems that search with CTC and attention."""
    if all(system.search is None for system in evaluation.systems):
        return []

    def weights(system: SystemResult) -> str:
        found = system.search
        return f"{found.ctc_weight:g}, {found.length_reward:g}" if found else NOTHING

    return [Measure("  CTC weight, length reward", weights)]


def metric_title(evaluation: Evaluation, name: str) -> str:
    """Metrics that are called the same are told apart by their names."""
    title = evaluation.metrics[name].title
    alike = [other for other in evaluation.metrics.values() if other.title == title]
    return title if len(alike) == 1 else f"{title} ({name})"


def _score_measures(evaluation: Evaluation, name: str, of_paper: bool) -> list[Measure]:
    """The rows of a metric; the paper has error rates, or BLEU. Differences are told apart by their
    metrics."""
    info, first = evaluation.metrics[name], evaluation.systems[0].name
    title = metric_title(evaluation, name)
    of_which = f"{title}: " if len(evaluation.metrics) > 1 else ""

    def score(system: SystemResult) -> str:
        return _score(system.scores[name], info)

    def difference(system: SystemResult) -> str:
        return _difference(system.differences.get(name), info)

    paper = (lambda p: _pair(p.score), lambda p: f"{p.score[1] - p.score[0]:+.2f}")
    shown, changed = paper if of_paper else (Measure._field_defaults["of_paper"],) * 2
    unit = f", {info.unit}" if info.unit else ""
    rows = [Measure(f"{title}{unit} (95% interval)", score, shown)]
    if info.detail_title:
        rows.append(Measure(info.detail_title, lambda s: s.scores[name].detail))
    rows.append(Measure(f"{of_which}difference to {first}, points", difference, changed, compares=True))
    return rows


def _score(found: Score, info: MetricInfo) -> str:
    return f"{info.show(found.value)} ({info.show(found.low)} to {info.show(found.high)})"


def _difference(found: Difference | None, info: MetricInfo) -> str:
    if found is None:
        return NOTHING
    bounds = f"{info.show_signed(found.low)} to {info.show_signed(found.high)}"
    return f"{info.show_signed(found.value)} ({bounds})"


def _factor(system: SystemResult) -> str:
    return f"{system.down_sampling.factor:.3f}" + ("" if system.trims else " if trimmed")


def _search(system: SystemResult) -> str:
    return system.method if system.beam is None else f"{system.method}, beam {system.beam}"


def _training(system: SystemResult) -> str:
    if system.steps is None or system.train_s is None:
        return NOTHING
    return f"{system.steps:,} steps, {system.train_s / 60:.1f} min"


def _rtf(value: float) -> str:
    return f"{value:#.3g}"


def _pair(values: tuple[float, float]) -> str:
    return f"{values[0]:.2f} → {values[1]:.2f}"
