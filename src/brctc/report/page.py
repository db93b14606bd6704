"""One HTML page that shows what trainings have reached: no network, no scripts, no other files."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from brctc.data import Prepared
from brctc.evaluate.decoding import Progress
from brctc.evaluate.offline import EvaluationOptions, evaluate_models
from brctc.evaluate.results import Evaluation, title_of
from brctc.files import write_text
from brctc.report import sections
from brctc.report.escaping import escape
from brctc.report.runs import RunFiles, read_run
from brctc.runs import RunDirectory
from brctc.train import read_recipe

CSS = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --soft: #5a626c; --line: #d5d9df;
  --band: #f4f6f8; --mark: #0067a3; }
@media (prefers-color-scheme: dark) { :root { --back: #15181c; --text: #e4e7eb; --soft: #a0a8b2;
  --line: #363c44; --band: #1e2328; --mark: #6cb8ea; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1.25rem 4rem; max-width: 1120px; background: var(--back);
  color: var(--text); font: 16px/1.55 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.25rem; margin: 2.8rem 0 .5rem; padding-top: .7rem; border-top: 1px solid var(--line); }
p { max-width: 46rem; margin: .5rem 0; }
a { color: var(--mark); }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: .9rem 0 0; font-size: .95rem; }
.soft, figcaption { color: var(--soft); font-size: .92rem; }
figure { margin: 1.2rem 0 1.8rem; }
figcaption { max-width: 54rem; margin-top: .35rem; }
.wide { overflow-x: auto; }
.wide svg { display: block; height: auto; max-width: none; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .32rem .65rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th[scope=col] { white-space: normal; vertical-align: bottom; }
th[scope=row] { text-align: left; font-weight: 500; white-space: pre; position: sticky; left: 0;
  background: var(--back); }
th.group { text-align: left; color: var(--soft); font-weight: 500; border-bottom: 0; }
th.group, .begins { border-left: 1px solid var(--line); }
td.note { text-align: left; white-space: normal; color: var(--soft); border-bottom: 0; }
tbody tr:nth-child(even) > * { background: var(--band); }
code, pre { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: .85rem; }
pre { overflow: auto; max-height: 24rem; padding: .8rem; background: var(--band); border-radius: 4px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; font-size: .95rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--mark); }
"""


def make_report(
    runs: Sequence[str | Path],
    out: str | Path,
    *,
    split: str = "test",
    others: Sequence[str] = (),
    examples: int = 3,
    command: str | None = None,
    options: EvaluationOptions | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluates finished runs, the baseline first, and writes the page, its numbers beside it as JSON;
    `others` are test sets whose scores stand in the table, too."""
    named = name_runs(runs)
    prepared, *further = (open_split(named, name) for name in (split, *others))
    _check_examples(examples)
    read = [read_run(name, run) for name, run in named.items()]  # what is broken is named before all work
    models = {name: RunDirectory(run).model for name, run in named.items()}
    evaluation = evaluate_models(models, prepared, options, others=further, progress=progress)
    evaluation.save(Path(out).with_suffix(".json"))
    _write_page(read, Path(out), evaluation, prepared, examples, command)
    return evaluation


def write_report(
    runs: Sequence[str | Path],
    out: str | Path,
    evaluation: Evaluation,
    *,
    prepared: Prepared | None = None,
    examples: int = 3,
    command: str | None = None,
) -> None:
    """Writes the page of an evaluation of these runs.

    Args:
        runs: directories of the finished trainings that were evaluated; they are shown in the evaluation's
            order.
        out: the HTML file.
        evaluation: what `evaluate_models` has found.
        prepared: the split that was evaluated; by default, where the first run's recipe says.
        examples: utterances of it whose posteriors are shown.
        command: what made the page; by default, the command of this process.
    """
    named = _of_evaluation(name_runs(runs), evaluation)
    _check_examples(examples)
    prepared = prepared or open_split(named, evaluation.split)
    read = [read_run(name, run) for name, run in named.items()]
    _write_page(read, Path(out), evaluation, prepared, examples, command)


def _check_examples(examples: int) -> None:
    if examples < 1:
        raise ValueError(f"examples is {examples}, expected at least 1")


def _write_page(
    read: Sequence[RunFiles],
    out: Path,
    evaluation: Evaluation,
    prepared: Prepared,
    examples: int,
    command: str | None,
) -> None:
    command = command or shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    contents = {
        "results": ("Results", sections.results(evaluation)),
        "posteriors": ("Where the spikes are", sections.posteriors(read, prepared, examples)),
        "evolution": ("How they come about", sections.evolution(read, prepared)),
        "attention": ("Where the encoder looks", sections.attention(read, prepared)),
        "curves": ("Training curves", sections.curves(read)),
        "speed": ("Speed and beam", sections.speed(evaluation)),
        "made": ("How this page was made", sections.made(read, evaluation, command)),
    }
    title = f"Bayes-risk CTC on {title_of(evaluation.corpus)}"
    write_text(out, html_page(title, sections.about(evaluation), contents))


def _of_evaluation(named: Mapping[str, Path], evaluation: Evaluation) -> dict[str, Path]:
    """The runs in the order of an evaluation's systems; others than these are refused."""
    systems = list(dict.fromkeys(system.run for system in evaluation.systems))
    if set(systems) != set(named):
        raise ValueError(f"the runs are {', '.join(named)}, but the evaluation is of {', '.join(systems)}")
    return {name: named[name] for name in systems}


def name_runs(runs: Sequence[str | Path]) -> dict[str, Path]:
    """Runs by the ends of their paths, as short as tells them apart."""
    paths = [Path(run) for run in runs]
    if not paths:
        raise ValueError("there are no runs: name at least one")
    whole = [(path.parent if path.name == "model" else path).resolve().parts for path in paths]
    for depth in range(1, max(map(len, whole)) + 1):
        names = ["/".join(parts[-depth:]) for parts in whole]
        if len(set(names)) == len(names):
            return dict(zip(names, paths, strict=True))
    raise ValueError(f"a run is named twice: {', '.join(map(str, paths))}")


def open_split(named: Mapping[str, Path], split: str) -> Prepared:
    """The split of the corpus that all runs were trained on."""
    places = {name: Path(read_recipe(run).corpus.prepared) for name, run in named.items()}
    first, directory = next(iter(places.items()))
    for name, place in places.items():
        if place != directory:
            raise ValueError(f"{first} was trained on {directory}, but {name} on {place}")
    return Prepared(directory, split)


def html_page(title: str, about: str, contents: Mapping[str, tuple[str, str]]) -> str:
    """A page of sections: their headings and HTML by the names that links go to."""
    title = escape(title)
    links = "".join(f'<a href="#{name}">{escape(heading)}</a>\n' for name, (heading, _) in contents.items())
    body = "".join(
        f'<section id="{name}"><h2>{escape(heading)}</h2>\n{content}</section>\n'
        for name, (heading, content) in contents.items()
    )
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{CSS}</style></head>
<body>
<header id="about"><h1>{title}</h1>
{about}<nav>{links}</nav></header>
{body}</body></html>
"""
