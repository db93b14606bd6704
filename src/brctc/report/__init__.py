"""Drawing what was measured: tables, plots and pages (the extra `asr`)."""

from brctc.extras import check_extra

check_extra()


from brctc.report.page import make_report, name_runs, open_split, write_report
from brctc.report.tables import Table, results_table, to_html, to_markdown, to_rich
from brctc.report.trade_off_page import plot_trade_off, write_trade_off
from brctc.report.trade_off_table import trade_off_table

__all__ = [
    "Table",
    "make_report",
    "name_runs",
    "open_split",
    "plot_trade_off",
    "results_table",
    "to_html",
    "to_markdown",
    "to_rich",
    "trade_off_table",
    "write_report",
    "write_trade_off",
]
