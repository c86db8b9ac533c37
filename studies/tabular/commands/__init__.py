"""``latentcal bench``: the study on real data."""

from __future__ import annotations

import click

from .figures import figures
from .run import run
from .status import status
from .table import table


@click.group()
def command() -> None:
    """Run the study on real data, and see its tables and figures beside the published ones.

    \b
    The data lie in the folder that the variable LATENTCAL_DATA names. For a first look:
        latentcal bench run quick
        latentcal bench table quick --metric nll
    """


for _part in (run, status, table, figures):
    command.add_command(_part)
