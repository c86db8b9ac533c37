"""``latentcal completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script by which a shell completes commands and options.

    \b
    Examples:
        eval "$(latentcal completion bash)"          # in ~/.bashrc
        latentcal completion fish > ~/.config/fish/completions/latentcal.fish
    """
    from ..app import app

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(app, {}, "latentcal", "_LATENTCAL_COMPLETE").source())
