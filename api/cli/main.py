"""The command `rollbook`. It imports a group when the group is called, to keep `--help` quick.

Groups raise `RollbookError`; only this module prints it and turns it into an exit code:

    0 done · 1 failed · 2 wrong usage · 3 not found · 4 conflict · 5 unavailable or timed out ·
    6 denied · 7 damaged data · 8 degraded · 130 interrupted
"""

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click

from rollbook import __version__
from rollbook.api.cli.error_output import explain, explain_error
from rollbook.api.cli.lazy_group import LazyCommand, LazyGroup
from rollbook.api.cli.output import examples
from rollbook.proto import errors

FAILED: Final = 1
DENIED: Final = 6
INTERRUPTED: Final = 130
# The variable that the shell sets while it completes a command.
_COMPLETE: Final = "_ROLLBOOK_COMPLETE"

_GROUPS: Final = {
    "demo": "Test Rollbook's promises on a small cluster, within seconds",
    "dev": "Run a whole cluster on this machine, in one process",
    "server": "Run a bookie, a log server, a recovery server or all of them",
    "bookie": "Create, repair, inspect and remove bookies",
    "access": "Manage principals and their rights on logs",
    "cluster": "Initialise and inspect a cluster",
    "log": "Create, append to, read, follow and truncate logs",
    "cursor": "Show, move and remove a log's cursors",
    "explain": "Explain the state of a log",
    "bench": "Measure how fast records are appended, read and followed",
    "ledger": "Show, write, read, recover and verify ledgers",
    "spark": "Archive, audit, mirror and restore logs with Spark",
    "recovery": "Restore lost entries, and control recovery servers",
    "apply": "Create logs or update their settings from a file",
    "context": "Name clusters, and select the current one",
    "debug": "Collect diagnostics into a bundle for support",
}


# Modules with another name than `commands`, because they have a single command or a single subject.
_MODULES: Final = {
    "access": "access.principal_commands",
    "apply": "apply.apply_command",
    "bookie": "bookie.command_table",
    "context": "context_commands",
    "debug": "debug.bundle_command",
    "demo": "demo.self_test_command",
    "explain": "explain.explain_log",
}


def module_of(name: str) -> str:
    return f"rollbook.api.cli.{_MODULES.get(name, f'{name}.commands')}"


_PLACES: Final = {
    name: LazyCommand(module_of(name), "group", what) for name, what in _GROUPS.items()
}

_EXIT_CODES: Final[tuple[tuple[type[errors.RollbookError], int], ...]] = (
    (errors.Interrupted, INTERRUPTED),
    (errors.Unauthorized, DENIED),
    (errors.Missing, 3),
    (errors.Superseded, 4),
    (errors.WrongCluster, 4),
    (errors.WrongBookie, 4),
    (errors.OlderMetadata, 4),
    (errors.Unavailable, 5),
    (errors.OutcomeUnknown, 5),
    (errors.Corrupt, 7),
    (errors.Invalid, 2),
)

# Next steps for errors of the operating system.
_ADVICE: Final = {
    errno.EACCES: "run it as the user who owns that",
    errno.EPERM: "run it as the user who owns that",
    errno.EROFS: "mount that for writing, or name another place",
    errno.ENOTDIR: "name a directory there",
    errno.EISDIR: "name a file there, not a directory",
    errno.ENOSPC: "make room on that disk, and type it again",
    errno.EDQUOT: "make room within the quota, and type it again",
    errno.EMFILE: "allow more open files: ulimit -n 65536",
}

# Python modules that do not exist on Windows.
_NOT_ON_WINDOWS: Final = ("fcntl", "grp", "pwd", "resource")


def _drop_output() -> None:
    """Discards all further output. Otherwise Python would fail again when it flushes standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _until_the_reader_leaves() -> Iterator[None]:
    """Ends the command without an error if the reader of standard output has closed it (`| head`). Without this
    context, click would report an error.
    """
    try:
        yield
    except BrokenPipeError:
        _drop_output()
        raise click.exceptions.Exit(0) from None


class _Root(LazyGroup):
    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        # `--help` prints here, and the program that reads its output may exit early.
        with _until_the_reader_leaves():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _until_the_reader_leaves():
            return super().invoke(ctx)


@click.group(
    cls=_Root,
    places=_PLACES,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "rollbook demo",
        "rollbook dev",
        "rollbook log append orders 'one record' --create",
        "rollbook log tail orders",
    ),
)
@click.version_option(__version__, prog_name="rollbook")
def rollbook() -> None:
    """Durable, replicated, append-only logs for people who work in Python."""


@rollbook.command(
    epilog=examples(
        "rollbook version",
        "rollbook version > deployed-version",
        "rollbook version | diff - deployed-version",
    )
)
def version() -> None:
    """Print the version."""
    click.echo(__version__)


@rollbook.command(
    epilog=examples(
        "rollbook completion bash >> ~/.bashrc",
        "rollbook completion zsh > ~/.zfunc/_rollbook",
        "rollbook completion fish > ~/.config/fish/completions/rollbook.fish",
    )
)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print a script that makes a shell complete commands, flags and names."""
    from click.shell_completion import get_completion_class

    from rollbook.api.cli.completion_scripts import add_shells

    add_shells()
    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(rollbook, {}, "rollbook", _COMPLETE).source())


def exit_code(error: errors.RollbookError) -> int:
    return next((code for family, code in _EXIT_CODES if isinstance(error, family)), FAILED)


def main() -> None:
    if not __debug__:
        sys.exit("rollbook checks its invariants with assert: run Python without -O")
    if _COMPLETE in os.environ:
        from rollbook.api.cli.completion_scripts import add_shells

        add_shells()
    try:
        _require_utf8(sys.argv[1:])
        result = rollbook(prog_name="rollbook", complete_var=_COMPLETE, standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(INTERRUPTED)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.UsageError as error:
        _explain_usage(error)
        sys.exit(error.exit_code)
    # Errors that are not about usage, for example about an unreadable file.
    except click.ClickException as error:
        explain(error.format_message(), "", errors.Outcome.NOT_APPLIED)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        # For example, the disk for the output is full, or a directory belongs to another user.
        where = f" ({error.filename})" if error.filename else ""
        number = error.errno or 0
        explain(
            f"{error.strerror or error}{where}",
            errno.errorcode.get(number, ""),
            errors.Outcome.UNKNOWN,  # The command may have made its change before the error.
            _ADVICE.get(number, ""),
        )
        _drop_output()
        sys.exit(DENIED if isinstance(error, PermissionError) else FAILED)
    except ModuleNotFoundError as error:
        if error.name not in _NOT_ON_WINDOWS:
            raise
        explain(
            "this command runs a server or opens its files, which takes Linux or macOS",
            "",
            errors.Outcome.NOT_APPLIED,
            "run it on Linux or macOS; commands that call log servers (--server) also run here",
        )
        sys.exit(FAILED)
    except errors.RollbookError as error:
        error.next_step = error.next_step or f"{_command_that_was_typed()} --help"
        explain_error(error)
        sys.exit(exit_code(error))
    if isinstance(result, int):  # `ctx.exit(code)` returns the exit code.
        sys.exit(result)


def _require_utf8(words: Sequence[str]) -> None:
    if all(map(str.isascii, words)):
        return
    from rollbook.api.cli.utf8_arguments import require_utf8

    require_utf8(rollbook, words)


def _explain_usage(error: click.UsageError) -> None:
    what = " ".join(error.format_message().split()).removesuffix(".")
    command = error.ctx.command_path if error.ctx else _command_that_was_typed()
    explain(what, "USAGE", errors.Outcome.NOT_APPLIED, f"{command} --help")


def _command_that_was_typed() -> str:
    """Returns the command that the user typed. Click does not name the command if an option lacks its value."""
    command: click.Command | None = rollbook
    path = ["rollbook"]
    for word in sys.argv[1:]:
        if not isinstance(command, click.Group):
            break
        if (command := command.get_command(click.Context(command), word)) is None:
            break
        path.append(word)
    return " ".join(path)


if __name__ == "__main__":
    main()
