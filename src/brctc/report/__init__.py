"""Tables, plots and the page that show what systems reach (the extra `asr`)."""

from brctc.report.evaluate import evaluate
from brctc.report.evaluation import BeamPoint, Evaluation, SystemResult, describe_machine
from brctc.report.online import OnlineEvaluation, evaluate_online
from brctc.report.page import make_report, name_runs, open_split, write_report
from brctc.report.tables import Table, results_table, to_html, to_markdown, to_rich

__all__ = [
    "BeamPoint",
    "Evaluation",
    "OnlineEvaluation",
    "SystemResult",
    "Table",
    "describe_machine",
    "evaluate",
    "evaluate_online",
    "make_report",
    "name_runs",
    "open_split",
    "results_table",
    "to_html",
    "to_markdown",
    "to_rich",
    "write_report",
]
