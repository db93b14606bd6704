"""One description, three kinds of table; the numbers are those of the evaluation."""

import dataclasses
from html.parser import HTMLParser

import pytest
from rich.console import Console

from brctc.evaluate import Difference, DownSampling, Evaluation, MetricInfo, RealTime, Score, SystemResult
from brctc.report import results_table, to_html, to_markdown, to_rich

VANILLA = SystemResult(
    name="plain | CTC",
    method="transducer",
    beam=10,
    parameters=1_234_567,
    risk="none",
    trims=False,
    trimmable=True,
    steps=6000,
    train_s=1500.0,
    scores={"error-rate": Score(0.0083, 0.0061, 0.0109, "83 / 10,000")},
    differences={},
    down_sampling=DownSampling(0.9241, 0.0512),
    real_time=RealTime("plain | CTC", 100.0, 3.0, 9.0, 0.03, 0.09, 0.12, 1.0),
)
BRCTC = dataclasses.replace(
    VANILLA,
    name="brctc",
    risk="early-finish 6",
    trims=True,
    steps=None,
    scores={"error-rate": Score(0.0095, 0.0072, 0.012, "95 / 10,000")},
    differences={"error-rate": Difference(0.0012, -0.0004, 0.0028, 0.1)},
    down_sampling=DownSampling(0.1412, 0.0512),
    real_time=RealTime("brctc", 100.0, 2.0, 3.5, 0.02, 0.035, 0.055, 0.055 / 0.12),
)
FOUND = Evaluation(
    corpus="digit-strings",
    split="test",
    utterances=1100,
    duration_s=5000.0,
    metrics={"error-rate": MetricInfo("error rate", "%", 100.0, False, "errors / words")},
    rtf_utterances=20,
    sweep_utterances=5,
    repeats=3,
    systems=(VANILLA, BRCTC),
    sweep=(),
    machine={},
)


class Cells(HTMLParser):
    """The text of every cell, row by row."""

    def __init__(self):
        super().__init__()
        self.rows, self.spans = [], []

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.spans.append(int(dict(attrs).get("colspan", 1)))

    def handle_data(self, data):
        if self.rows and self.rows[-1] and data != "\n":
            self.rows[-1][-1] += data


def rows_of(table):
    return {title: cells for title, *cells in table.rows}


def test_cells():
    rows = rows_of(results_table(FOUND, paper=False))
    assert rows == {
        "error rate, % (95% interval)": ["0.83 (0.61 to 1.09)", "0.95 (0.72 to 1.20)"],
        "errors / words": ["83 / 10,000", "95 / 10,000"],
        "difference to plain | CTC, points": ["-", "+0.12 (-0.04 to +0.28)"],
        "down-sampling factor": ["0.924 if trimmed", "0.141"],
        "its oracle": ["0.051", "0.051"],
        "real-time factor, RTF": ["0.120", "0.0550"],
        "  of the encoder": ["0.0300", "0.0200"],
        "  of the decoder": ["0.0900", "0.0350"],
        "RTF against plain | CTC": ["-", "-54%"],
        "search": ["transducer, beam 10"] * 2,
        "risk at the end": ["none", "early-finish 6"],
        "parameters": ["1.23 M"] * 2,
        "training": ["6,000 steps, 25.0 min", "-"],
    }


def test_a_system_alone_is_compared_with_nothing():
    rows = rows_of(results_table(dataclasses.replace(FOUND, systems=(VANILLA,)), paper=False))
    assert len(rows) == 11
    assert not [title for title in rows if VANILLA.name in title]


def test_what_cannot_be_trimmed_has_no_factor():
    systems = (dataclasses.replace(VANILLA, trimmable=False), BRCTC)
    rows = rows_of(results_table(dataclasses.replace(FOUND, systems=systems), paper=False))
    assert rows["down-sampling factor"] == ["-", "0.141"]


def test_the_papers_own_figures():
    table = results_table(FOUND)
    assert [len(group.columns) for group in table.groups] == [2, 4]
    assert "small scale" in table.groups[0].title
    assert table.groups[1].title == "the paper, appendix G, transducer: CTC → BRCTC"
    rows = rows_of(table)
    assert rows["error rate, % (95% interval)"][2:] == [
        "4.92 → 4.73",
        "5.47 → 5.35",
        "8.61 → 8.87",
        "7.79 → 7.41",
    ]
    assert rows["real-time factor, RTF"][3] == "0.42 → 0.22"
    assert rows["RTF against plain | CTC"][3] == "-48%"  # 47.6%; the paper writes 47
    assert rows["down-sampling factor"][2:] == ["0.20", "0.29", "0.40", "0.36"]


@pytest.mark.parametrize(
    ("methods", "kinds"),
    [
        (("attention", "attention"), ["attention"]),
        (("attention", "transducer"), ["attention", "transducer"]),
        (("transducer-greedy", "ctc-beam"), ["transducer"]),
        (("ctc-greedy", "ctc-greedy"), ["transducer"]),
    ],
)
def test_the_paper_has_the_same_kinds_of_system(methods, kinds):
    systems = tuple(
        dataclasses.replace(system, method=method)
        for system, method in zip(FOUND.systems, methods, strict=True)
    )
    groups = results_table(dataclasses.replace(FOUND, systems=systems)).groups[1:]
    assert [kind for kind in ("attention", "transducer") for group in groups if kind in group.title] == kinds


def test_html_has_the_same_cells():
    table = results_table(FOUND)
    cells = Cells()
    cells.feed(to_html(table))
    groups, columns, *rows = cells.rows
    assert groups[1:] == [group.title for group in table.groups]
    assert columns[1:] == [column for group in table.groups for column in group.columns]
    assert rows == [list(row) for row in table.rows]
    assert sum(cells.spans[: len(groups)]) == len(columns)


def test_markdown_has_the_same_cells():
    table = results_table(FOUND)
    head, rule, *rows = to_markdown(table).splitlines()
    width = len(table.rows[0])
    assert rule.count("---") == width
    cells = [cell.strip().replace("\\|", "|") for cell in head.replace("\\|", "\0").split("|")[1:-1]]
    assert cells[1].replace("\0", "|") == "plain | CTC"
    for line, row in zip(rows, table.rows, strict=True):
        found = [cell.replace("\0", "|") for cell in line.replace("\\|", "\0").split("|")[1:-1]]
        assert [cell.strip() for cell in found] == [cell.strip() for cell in row]


def with_metrics(**infos):
    """The same systems, measured with these metrics: their scores are 0.25 and 0.5."""
    systems = [
        dataclasses.replace(
            system,
            scores={name: Score(0.25 * (i + 1), 0.1, 0.9, f"{i + 1} / 4") for name in infos},
            differences={name: Difference(0.25, 0.1, 0.4, 0.9) for name in infos} if i else {},
        )
        for i, system in enumerate(FOUND.systems)
    ]
    return dataclasses.replace(FOUND, metrics=infos, systems=tuple(systems))


def test_metrics_of_ones_own():
    """All of them, in order; the paper's error rates stand beside the first error rate."""
    bleu, words = MetricInfo("fluency", "", 100.0, True), FOUND.metrics["error-rate"]
    rows = rows_of(results_table(with_metrics(bleu=bleu, wer=words)))
    assert list(rows)[:5] == [
        "fluency (95% interval)",
        "fluency: difference to plain | CTC, points",
        "error rate, % (95% interval)",
        "errors / words",
        "error rate: difference to plain | CTC, points",
    ]
    assert rows["fluency (95% interval)"][:2] == ["25.00 (10.00 to 90.00)", "50.00 (10.00 to 90.00)"]
    assert rows["fluency (95% interval)"][2:] == ["-"] * 4
    assert rows["fluency: difference to plain | CTC, points"] == ["-", "+25.00 (+10.00 to +40.00)", *"----"]
    assert rows["error rate, % (95% interval)"][2] == "4.92 → 4.73"
    assert rows["error rate: difference to plain | CTC, points"][2] == "-0.19"


def test_translations_stand_beside_the_papers():
    """Text by the sentence beside appendix I, speech by the second beside table 1."""
    found = with_metrics(bleu=MetricInfo("BLEU", "", 1.0, True))
    speech = rows_of(results_table(found))
    text = rows_of(results_table(dataclasses.replace(found, time_per="sentence")))
    assert speech["BLEU (95% interval)"][2:] == ["29.30 → 29.10", "28.50 → 28.70"]
    assert speech["RTF against plain | CTC"][2:] == ["-27%", "-27%"]
    assert text["BLEU (95% interval)"][2:] == ["31.90 → 31.70", "37.90 → 38.00"]
    assert text["time against plain | CTC"][2:] == ["-27%", "-27%"]
    assert text["down-sampling factor"][2:] == ["0.63", "0.63"]
    assert "seconds per sentence" in text


SIGNATURES = {
    "bleu": MetricInfo("BLEU", "", 1.0, True, "brevity penalty", "BLEU by sacreBLEU: nrefs:1|tok:13a"),
    "chrf": MetricInfo("chrF", "", 1.0, True, note="chrF by sacreBLEU: nrefs:1|nc:6"),
    "wer": FOUND.metrics["error-rate"],
}


def test_notes_stand_below_the_table_once():
    table = results_table(with_metrics(**SIGNATURES))
    assert table.notes == ("BLEU by sacreBLEU: nrefs:1|tok:13a", "chrF by sacreBLEU: nrefs:1|nc:6")
    cells = Cells()
    cells.feed(to_html(table))
    assert cells.rows[-2:] == [[note] for note in table.notes]
    assert cells.spans[-1] == len(table.rows[0])
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(to_rich(table))
    shown = console.export_text()
    markdown = to_markdown(table)
    for text in (shown, markdown):
        assert [text.count(note) for note in table.notes] == [1, 1]
    assert markdown.endswith("|\n\n" + "\n\n".join(table.notes))
    assert results_table(FOUND).notes == ()


def test_metrics_of_one_title_have_their_names():
    words = FOUND.metrics["error-rate"]
    characters = dataclasses.replace(words, detail_title="errors / characters")
    rows = rows_of(results_table(with_metrics(wer=words, cer=characters)))
    assert "error rate (wer), % (95% interval)" in rows
    assert rows["error rate (cer), % (95% interval)"][2:] == ["-"] * 4
    assert rows["error rate (wer), % (95% interval)"][2] == "4.92 → 4.73"


@pytest.mark.parametrize("name", ["run[/red]", "[bold]", ":smile:", "a\\"])
def test_names_are_no_markup(name):
    systems = (dataclasses.replace(VANILLA, name=name), BRCTC)
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(
        to_rich(results_table(dataclasses.replace(FOUND, corpus=name, systems=systems), paper=False))
    )
    text = console.export_text()
    assert f"difference to {name}, points" in text
    assert text.count(name) == 4  # the title, the column, and two comparisons


def test_a_terminal_shows_it():
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(to_rich(results_table(FOUND, paper=False)))
    text = console.export_text()
    assert "0.95 (0.72 to 1.20)" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("corpus", "title"),
    [
        ("spoken-text", "small scale: synthetic speech (espeak-ng) test, "),
        ("multi30k", "small scale: Multi30k test, "),
        ("grid", "small scale: grid test, "),
        ("my-folder", "my-folder test, "),
    ],
)
def test_corpora_by_their_titles(corpus, title):
    (group,) = results_table(dataclasses.replace(FOUND, corpus=corpus), paper=False).groups
    assert group.title.startswith(title)
