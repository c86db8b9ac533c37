"""The program: its commands, which are loaded when needed, and the display of errors."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence

import click
from click.shell_completion import get_completion_class

from .._internal.hints import ArgumentError
from .._version import __version__
from .messages import one_line

_DEBUG = "--debug"
_MODULES = {
    "completion": "app",
    "demo": "fit",
    "diagnose": "calibration",
    "fit": "fit",
    "info": "calibration",
    "predict": "answers",
    "probability": "answers",
    "recalibrate": "calibration",
    "regions": "answers",
    "sample": "answers",
}
"""Where each command is defined."""


class Commands(click.Group):
    """Commands that are loaded when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        return getattr(importlib.import_module(f".{_MODULES[cmd_name]}", __package__), cmd_name)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(_DEBUG, is_flag=True, help="Show the traceback of an error.")
@click.version_option(__version__, prog_name="latentcal")
def app(debug: bool) -> None:
    """Check whether a model's predicted probabilities are calibrated, and repair them after training.

    \b
    From a table to calibrated predictions:
        latentcal fit homes.csv --targets rent,heating --out model/
        latentcal diagnose model/ test.csv
        latentcal predict model/ new.csv > predictions.csv
        latentcal demo        runs all of this on a synthetic table

    Every command shows examples with --help. Exit codes: 0 for success, 1 after an error, 2 for wrong usage,
    130 when interrupted. `latentcal completion bash` prints a script for tab completion.
    """


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script for tab completion in a shell.

    \b
    Examples:
        eval "$(latentcal completion bash)"          # in ~/.bashrc
        latentcal completion fish > ~/.config/fish/completions/latentcal.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(app, {}, "latentcal", "_LATENTCAL_COMPLETE").source())


def run(arguments: Sequence[str]) -> None:
    """Run the program; errors are one line on standard error, with a traceback on request."""
    words = [word for word in arguments if word != _DEBUG]  # wherever it stands
    debug = len(words) < len(arguments)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = _warn
            code = app.main(words, prog_name="latentcal", standalone_mode=False)
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # missing in old versions of click
            click.echo(error.format_message())
            sys.exit(error.exit_code)
        place = error.ctx.command_path if error.ctx else "latentcal"
        _fail(f"{error.format_message()} (See {place} --help.)", error.exit_code, debug)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code, debug)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted; no partial files are left.", 130, debug)
    except BrokenPipeError:  # `latentcal ... | head`
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}." if error.filename else str(error), 1, debug)
    except MemoryError:
        _fail("out of memory. Use a smaller file, or fewer rows or columns at a time.", 1, debug)
    except ArgumentError as error:
        _fail(error.as_options(), 1, debug)
    except Exception as error:
        _fail(str(error) or type(error).__name__, 1, debug)
    sys.exit(code if isinstance(code, int) else 0)


def _warn(message: Warning | str, category: type[Warning], *place: object, **more: object) -> None:
    """Print a warning as one line, without its location in the code."""
    click.echo(f"Warning: {one_line(str(message))}", err=True)


def _fail(message: str, code: int, debug: bool) -> None:
    if debug:
        import traceback

        traceback.print_exc()
    click.echo(f"Error: {one_line(message)}", err=True)
    sys.exit(code)
