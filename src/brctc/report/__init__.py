"""Tables, plots and the page that show what systems reach (the extra `asr`)."""

from brctc.report.evaluate import evaluate
from brctc.report.evaluation import BeamPoint, Evaluation, SystemResult, describe_machine
from brctc.report.online import OnlineEvaluation, evaluate_online
from brctc.report.page import make_report, name_runs, open_split, write_report
from brctc.report.tables import Table, results_table, to_html, to_markdown, to_rich
from brctc.report.trade_off import (
    TradeOff,
    Trial,
    choose,
    evaluate_runs,
    evaluate_trials,
    pareto_front,
    trade_off_table,
)
from brctc.report.trade_off_page import plot_trade_off, write_trade_off

__all__ = [
    "write_trade_off",
    "trade_off_table",
    "plot_trade_off",
    "pareto_front",
    "evaluate_trials",
    "evaluate_runs",
    "choose",
    "Trial",
    "TradeOff",
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
