"""Makes wide tables whose numbers are never cut."""

from __future__ import annotations

from rich.table import Table

from splatscope.app.terminal import Terminal


def console() -> Terminal:
    """Returns a terminal that is wide enough for the tables of a GPU."""
    return Terminal(width=200)


def wide_table(first: str, title: str, columns: list[str]) -> Table:
    """Returns an empty table: names on the left in the column `first`, numbers on the right in the others."""
    table = Table(first, title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table
