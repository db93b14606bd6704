"""The sections of the page: each a few plots or a table, and a line on how to read them."""

import time
from collections.abc import Mapping, Sequence

import yaml
from matplotlib.figure import Figure

from brctc.data import CORPORA, Prepared
from brctc.evaluate.results import Evaluation, caution, scale, title_of
from brctc.report.attention import attention_index, has_maps, plot_attention
from brctc.report.escaping import escape
from brctc.report.pictures import example_indices, has_spikes, plot_evolution, plot_posteriors
from brctc.report.plots import plot_beams, plot_curves, plot_results
from brctc.report.runs import RunFiles
from brctc.report.style import to_svg
from brctc.report.tables import metric_title, results_table, to_html

INPUTS = {
    "audio": "log-mel features of the audio",
    "features": "the columns of the input",
    "text": "the tokens of the source",
}
"""What the top of a picture shows."""
ORDER = """The map below the spikes shows where the decoder looks for each token of its translation, from top
to bottom: a diagonal where the order stays, jumps where it changes, and the first frames alone where all is
said early."""


def about(evaluation: Evaluation) -> str:
    """What this is."""
    names = ", ".join(f"<b>{escape(system.name)}</b>" for system in evaluation.systems)
    where = f"{escape(title_of(evaluation.corpus))} ({escape(evaluation.split)})"
    trimmed = """Trained to finish early, a model says all it has to say in its first frames; the rest is cut
off after half of the encoder, and everything behind it has less to do."""
    online = "Trained to emit early, an online model says each word sooner."
    effect = trimmed if any(system.trimmable for system in evaluation.systems) else online
    return f"""<p>CTC decides what a model says; Bayes-risk CTC
(<a href="https://arxiv.org/abs/2210.07499">Tian et al., ICLR 2023</a>) also decides when. {effect}</p>
<p>Compared here: {names}, on {evaluation.utterances:,} {_examples(evaluation)} of
{where}.{caution(evaluation.corpus)}</p>
"""


def _examples(evaluation: Evaluation) -> str:
    if evaluation.time_per == "sentence":
        return "sentences"
    return f"utterances ({evaluation.duration_s / 60:.1f} min)"


def results(evaluation: Evaluation) -> str:
    """Bars, and the table with the paper's figures."""
    first = escape(evaluation.systems[0].name)
    bars = figure_html(
        plot_results(evaluation),
        f"""{_better(evaluation)} Left: the thin line is the 95% bootstrap interval over utterances.
Middle: pale bars show what trimming would keep of a model that is not trimmed; no alignment fits into less
than the oracle, labels / frames. Right: one thread, without making the features.""",
    )
    of_input = " of input" if evaluation.time_per == "second" else ""
    small = "; those of this page are small-scale" if scale(evaluation.corpus) else ""
    return f"""{bars}<div class="wide">{to_html(results_table(evaluation))}</div>
{_verdicts(evaluation)}<p class="soft">
The paper's columns are its own results with large models on large corpora (times on an Intel Xeon Platinum
8255C){small}. Neither scores nor times compare across the
line, the changes do. The difference to {first} is paired: both are judged on the
same resampled utterances. Times: seconds of computation per {evaluation.time_per}{of_input}, one thread,
batch of one, medians of {evaluation.repeats} over {evaluation.rtf_utterances} utterances
({evaluation.rtf_of}), systems taking turns.{_batch_note(evaluation)}{_clock_note(evaluation)}</p>
"""


def _batch_note(evaluation: Evaluation) -> str:
    """How batches were timed."""
    if evaluation.batch == 1:
        return ""
    return f""" In batches: two of at most {evaluation.batch}, of short and of long ones. There the machine
computes, where one alone mostly waits for the next operation to be called, so what is cut off counts more."""


def _better(evaluation: Evaluation) -> str:
    """Which way the bars are to be read."""
    _, info = evaluation.main_metric
    if info.higher_is_better:
        return f"Longer bars of {info.title} are better, shorter ones of frames and time."
    return "Shorter is better everywhere."


def _verdicts(evaluation: Evaluation) -> str:
    """Who is better in what, whichever way the metric goes."""
    first, *others = evaluation.systems
    said = []
    for system in others:
        for name, info in evaluation.metrics.items():
            title, found = metric_title(evaluation, name), system.differences[name]
            share = f"better on {found.probability_better:.1%} of the resamples"
            if found.low <= 0 <= found.high:
                verdict = f"is not clearly apart from {first.name}"
            else:
                better = (found.value > 0) == info.higher_is_better
                verdict = f"is {'better' if better else 'worse'} than {first.name}"
            said.append(f"<li>{escape(f'{title}: {system.name} {verdict} ({share}).')}</li>")
    return f"<ul>{''.join(said)}</ul>\n" if said else ""


def posteriors(runs: Sequence[RunFiles], prepared: Prepared, examples: int) -> str:
    """Spikes over the input, for a few utterances."""
    if names := [run.name for run in runs if not has_spikes(run.model)]:
        return f"<p>No CTC head predicts what they give out: {escape(', '.join(names))}.</p>\n"
    what = INPUTS[prepared.storage.kind if prepared.feature_config is None else "audio"]
    order = ORDER if prepared.storage.kind == "text" else ""
    note = f"""Top: {what}; bars mark where each word, digit or Chinese character really is, if the
corpus says so. Below: the probability of each token, frame by frame, {_output(runs)}, in the colours of the
bars; grey bars are tokens that are not said, the thin grey line is the blank. {_ends(runs)} {order}"""
    plots = [plot_posteriors(runs, prepared, index) for index in example_indices(prepared, examples)]
    return "".join(figure_html(plot, note if i == 0 else "") for i, plot in enumerate(plots))


def _output(runs: Sequence[RunFiles]) -> str:
    online = {run.recipe.model.streaming for run in runs}
    if online == {True}:
        return "at the CTC output"
    between = "at the CTC output between the two halves of the encoder"
    return between if online == {False} else f"{between}, online at the only one"


def _ends(runs: Sequence[RunFiles]) -> str:
    """What else is to be seen."""
    online = {run.recipe.model.streaming for run in runs}
    cut = "Behind the dashed line nothing but certain blanks is left, and trimming cuts it off."
    drift = """Online, the bars are repeated as bands behind the spikes: the drift is the time from the start
of a word's band to the end of its spike, on average over the words that are said."""
    return " ".join(text for text, shown in ((cut, False in online), (drift, True in online)) if shown)


def evolution(runs: Sequence[RunFiles], prepared: Prepared) -> str:
    """Posteriors and gradients over training."""
    without = [run.name for run in runs if not run.snapshots]
    if without:
        names = escape(", ".join(without))
        return f"<p>No snapshots were asked for (<code>monitor.snapshot_steps</code>) in: {names}.</p>\n"
    return figure_html(
        plot_evolution(runs, Prepared(prepared.directory, "dev")),
        """One utterance of the development set, from the first step (top) to the last. For each system,
left: the posterior of the intermediate CTC, online of the only one; right: minus the gradient of its loss,
the share of the weighed alignments that stand on a token in a frame, which is where the loss pulls it. λ is
the risk factor of the moment; without one, the loss is plain CTC. Colours as in the input on top; the thin
grey line is the blank.""",
    )


def attention(runs: Sequence[RunFiles], prepared: Prepared) -> str:
    """Self-attention of every layer and head."""
    if online := [run.name for run in runs if run.model.system.config.streaming]:
        return f"<p>Online, frames attend to their chunk alone: {escape(', '.join(online))}.</p>\n"
    if names := [run.name for run in runs if not has_maps(run.model)]:
        return f"<p>There are no maps of attention, or no spikes, of: {escape(', '.join(names))}.</p>\n"
    return figure_html(
        plot_attention(runs, prepared, attention_index(runs, prepared)),
        """A row of a map is one output frame, bright where it looks; looking at itself is the diagonal.
Triangles mark the frames of the spikes, boxes what each of them must fetch: the frames in which its token
really is. The number is the share of the spikes' attention inside the boxes. A model that finishes early has
all boxes in its first rows. White dashes: the rows above go on to the second half, whose maps are as small as
what is left. An utterance that all models read right, where there is one.""",
    )


def curves(runs: Sequence[RunFiles]) -> str:
    """Training curves."""
    return figure_html(
        plot_curves(runs),
        """A dotted line begins a new stage. Losses under different risks are not comparable: a risk adds its
own nats. The CTCs are decoded greedily on the development set at every checkpoint.""",
    )


def speed(evaluation: Evaluation) -> str:
    """The sweep over beams."""
    if not evaluation.sweep:
        return "<p>No beams were measured.</p>\n"
    return figure_html(
        plot_beams(evaluation),
        f"""Whole system (solid) and encoder alone (dashed), one thread, {evaluation.sweep_utterances}
utterances, medians of {evaluation.repeats}; all sizes and systems take turns in one run. The gap between the
two lines of a system is its decoder.{_clock_note(evaluation)}""",
    )


def made(runs: Sequence[RunFiles], evaluation: Evaluation, command: str) -> str:
    """Where the page comes from."""
    recipes = "".join(
        details(
            f"Recipe of {run.name} ({run.directory})",
            yaml.safe_dump(run.recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
        )
        for run in runs
    )
    numbers = details("All numbers of this page (JSON)", evaluation.to_json())
    return provenance(command, evaluation.machine) + recipes + numbers


def provenance(command: str, machine: Mapping[str, str]) -> str:
    """What made a page, when and where."""
    known = {"command": command, "written": time.strftime("%Y-%m-%d %H:%M"), **machine}
    listed = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in known.items())
    return f"<dl>{listed}</dl>\n"


def _clock_note(evaluation: Evaluation) -> str:
    if evaluation.corpus not in CORPORA:
        return ""
    corpus = CORPORA[evaluation.corpus]
    if corpus.input != "columns":
        return ""
    return f" A column of {evaluation.corpus} counts as {1000 * corpus.frame_shift_s:g} ms."


def details(title: str, text: str) -> str:
    """A long text that is shown on demand."""
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>\n"


def figure_html(figure: Figure, note: str) -> str:
    """A plot with a line on how to read it."""
    caption = f"<figcaption>{escape(note)}</figcaption>" if note else ""
    return f'<figure><div class="wide">{to_svg(figure)}</div>{caption}</figure>\n'
