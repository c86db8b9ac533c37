"""The program: its commands, found by their files, and what becomes of their errors."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence

import click

from .._version import __version__
from . import commands

_DEBUG = "--debug"


class Commands(click.Group):
    """Commands that are files of the folder ``commands``, each with a ``command``; loaded when needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(commands.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{commands.__name__}.{cmd_name.replace('-', '_')}")
        return module.command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(_DEBUG, is_flag=True, help="Show the traceback of an error.")
@click.version_option(__version__, prog_name="latentcal")
def app(debug: bool) -> None:
    """Find out whether the probabilities of a model are true, and repair them after training."""


def run(arguments: Sequence[str]) -> None:
    """Run the program; an error is one line on the error stream, with its traceback where asked for."""
    words = [word for word in arguments if word != _DEBUG]  # wherever it stands
    debug = len(words) < len(arguments)
    try:
        code = app.main(words, prog_name="latentcal", standalone_mode=False)
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # which old versions of click do not have
            click.echo(error.format_message())
            sys.exit(error.exit_code)
        place = error.ctx.command_path if error.ctx else "latentcal"
        _fail(f"{error.format_message()} ({place} --help tells more.)", error.exit_code, debug)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code, debug)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted; what is recorded stays, the same command goes on from there.", 130, debug)
    except BrokenPipeError:  # `latentcal ... | head`
        sys.stderr.close()
        sys.exit(1)
    except Exception as error:
        _fail(str(error) or type(error).__name__, 1, debug)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int, debug: bool) -> None:
    if debug:
        import traceback

        traceback.print_exc()
    click.echo("Error: " + " ".join(message.split()), err=True)
    sys.exit(code)
