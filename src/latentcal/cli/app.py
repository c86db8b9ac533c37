"""The program: its commands, found by their files, and what becomes of their errors."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
import warnings
from collections.abc import Sequence

import click

from .._version import __version__
from . import commands
from .progress import printable

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
    """Find out whether the probabilities of a model are true, and repair them after training.

    \b
    From a table to predictions that can be trusted:
        latentcal fit homes.csv --targets rent,heating --out model/
        latentcal diagnose model/ test.csv
        latentcal predict model/ new.csv > predictions.csv
        latentcal demo        shows all of it on an artificial table

    Every command has examples in its --help. It ends with code 0, 1 after an error, 2 where it was called
    wrongly, 130 where it was interrupted. `latentcal completion bash` makes the shell complete names.
    """


def run(arguments: Sequence[str]) -> None:
    """Run the program; an error is one line on the error stream, with its traceback where asked for."""
    words = [word for word in arguments if word != _DEBUG]  # wherever it stands
    debug = len(words) < len(arguments)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = _warn
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
        _fail("interrupted; nothing half-written is left.", 130, debug)
    except BrokenPipeError:  # `latentcal ... | head`
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}." if error.filename else str(error), 1, debug)
    except MemoryError:
        _fail("out of memory. Take a smaller file, or fewer rows or columns at a time.", 1, debug)
    except Exception as error:
        _fail(str(error) or type(error).__name__, 1, debug)
    sys.exit(code if isinstance(code, int) else 0)


def _warn(message: Warning | str, category: type[Warning], *place: object, **more: object) -> None:
    """A warning as one line, without the place in the code."""
    click.echo(f"Warning: {_one_line(str(message))}", err=True)


def _fail(message: str, code: int, debug: bool) -> None:
    if debug:
        import traceback

        traceback.print_exc()
    click.echo(f"Error: {_one_line(message)}", err=True)
    sys.exit(code)


def _one_line(message: str) -> str:
    """The message on one line, with options where the library speaks of arguments."""
    line = re.sub(
        r"\b(missing|delimiter|encoding|drop)=(?:'([^']*)')?",
        lambda found: f"--{found[1]} {found[2] or ''}".rstrip(),
        printable(" ".join(line.strip() for line in message.splitlines() if line.strip())),
    )
    return line.replace("set min_rows", "set --min-rows")
