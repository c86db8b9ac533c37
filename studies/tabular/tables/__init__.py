"""Tables of the study: functions from records to tables, and from tables to text, CSV, LaTeX and HTML."""

from .decomposition import decomposition_table
from .html import as_html
from .latex import as_latex
from .metric import metric_table
from .ranking import paired_table, rank_table
from .registry import FORMATS, OF_SUITES, TABLES, tables_of, written
from .summary import claims, claims_table
from .table import Cell, Column, Table
from .text import as_csv, as_text
from .times import times_table

__all__ = [
    "FORMATS",
    "OF_SUITES",
    "TABLES",
    "Cell",
    "Column",
    "Table",
    "as_csv",
    "as_html",
    "as_latex",
    "as_text",
    "claims",
    "claims_table",
    "decomposition_table",
    "metric_table",
    "paired_table",
    "rank_table",
    "tables_of",
    "times_table",
    "written",
]
