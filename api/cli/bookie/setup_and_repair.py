"""`rollbook bookie init|format|rejoin|write-off|doctor` create, check and repair a bookie's identity.

They take the flags and the configuration file of `rollbook server bookie`. The bookie must be stopped, except for
`doctor`.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rollbook.api.cli.bookie.options import bookie_options
from rollbook.api.cli.output import examples, output_option, show_facts, show_rows
from rollbook.bookie.core.suggested_commands import FORMAT, INIT, REJOIN, WRITE_OFF
from rollbook.proto.printable import harmless

if TYPE_CHECKING:  # Imported when a command needs them, to keep `--help` quick.
    from rollbook.bookie.bookie import Settings
    from rollbook.bookie.core.identity import Diagnosis
    from rollbook.bookie.identity import Formatted, Identity

T = TypeVar("T")

_yes_option: Final = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
_PATIENCE_S: Final = 15.0  # The longest wait for the session of a killed process to expire.


@click.command(
    epilog=examples(
        f"{INIT} --config bookie.toml",
        f"{INIT} --metadata zk://zk1/ledgers --journal-dir /ssd/j --ledger-dir /disk1/l",
        f"{INIT} --config /etc/bookkeeper/bk_server.conf",
    )
)
@bookie_options
@output_option
def init(output: str, **flags: Any) -> None:
    """Create a new bookie: its directories and its cookie.

    `rollbook server bookie` also creates a bookie that does not exist yet. An existing bookie stays
    unchanged.
    """

    async def make(identity: "Identity") -> dict[str, Any]:
        for lock in await identity.establish():
            await lock.release()
        return {"bookie_id": identity.bookie_id, "incarnation": identity.incarnation}

    show_facts(_run_with_identity(flags, make), output)


@click.command(
    "format",
    epilog=examples(
        f"{FORMAT} --config bookie.toml",
        f"{FORMAT} --config bookie.toml --yes",
        f"{FORMAT} --metadata zk://zk1/ledgers --journal-dir /ssd/j --ledger-dir /disk1/l",
    ),
)
@bookie_options
@_yes_option
@output_option
def format_bookie(output: str, yes: bool, **flags: Any) -> None:
    """Erase a bookie and start again under the same id.

    After this command, the bookie answers UNKNOWN for entries that it may have had in unclosed ledgers. A missing
    entry then does not prove that the entry never existed. The command reads the metadata of all ledgers.
    """
    bookie_id, directories = _who_and_where(flags)
    from rollbook.api.cli.confirm import ask_whether

    ask_whether(f"erase bookie {bookie_id} in {', '.join(directories)}, with all its entries", yes)

    async def erase(identity: "Identity") -> dict[str, Any]:
        return _facts(identity, await identity.format(_PATIENCE_S))

    show_facts(_run_with_identity(flags, erase), output)


@click.command(
    epilog=examples(
        f"{REJOIN} --config bookie.toml",
        f"{REJOIN} --config bookie.toml --ledger-dir /disk1/l --ledger-dir /disk2/l",
        f"{REJOIN} --config /etc/bookkeeper/bk_server.conf",
    )
)
@bookie_options
@output_option
def rejoin(output: str, **flags: Any) -> None:
    """Rewrite the VERSION files and the cookie of a bookie that has all its files.

    Use it after the cookie was removed from the metadata store, a directory was moved, a ledger
    directory was added at the end, or a VERSION file was lost.
    """

    async def mend(identity: "Identity") -> dict[str, Any]:
        return {"bookie_id": identity.bookie_id, "incarnation": await identity.rejoin()}

    show_facts(_run_with_identity(flags, mend), output)


@click.command(
    "write-off",
    epilog=examples(
        f"{WRITE_OFF} --config bookie.toml",
        f"{WRITE_OFF} --config bookie.toml --yes",
        f"{WRITE_OFF} --config /etc/bookkeeper/bk_server.conf",
    ),
)
@bookie_options
@_yes_option
@output_option
def write_off(output: str, yes: bool, **flags: Any) -> None:
    """Let a bookie run without files that are permanently lost.

    Use it also after directories were restored from an older copy. After this command, the bookie answers UNKNOWN
    for entries that it may have lost, until they are copied back from other bookies. The command reads
    the metadata of all ledgers.
    """
    bookie_id, _ = _who_and_where(flags)
    from rollbook.api.cli.confirm import ask_whether

    ask_whether(f"give up the files that bookie {bookie_id} has lost", yes)

    async def give_up(identity: "Identity") -> dict[str, Any]:
        from rollbook.proto.runtime.clock import SystemClock

        return _facts(identity, await identity.write_off(SystemClock()))

    show_facts(_run_with_identity(flags, give_up), output)


@click.command(
    epilog=examples(
        "rollbook bookie doctor --config bookie.toml",
        "rollbook bookie doctor --config /etc/bookkeeper/bk_server.conf",
        "rollbook bookie doctor --config bookie.toml -o json | jq -r '.[].remedy'",
    )
)
@bookie_options
@output_option
@click.pass_context
def doctor(context: click.Context, /, output: str, **flags: Any) -> None:
    """Explain what keeps a bookie from starting, and how to repair it.

    It changes nothing, and exits with 8 if something is wrong.
    """

    from rollbook.api.cli.server.flags_in_suggested_commands import with_flags

    async def look(identity: "Identity") -> tuple[str, "Diagnosis"]:
        return identity.bookie_id, await identity.diagnose()

    bookie_id, diagnosis = _run_with_identity(flags, look)
    problems = [
        {"what": each.what, "path": each.path or None, "remedy": with_flags(each.remedy, flags)}
        for each in diagnosis.problems
    ]
    if output != "table":
        show_rows(["what", "path", "remedy"], problems, output)
    elif not problems:
        running = ", and running" if diagnosis.is_running else ""
        click.echo(f"bookie {bookie_id} is fine: {_JUDGED[diagnosis.standing.value]}{running}")
    for problem in problems if output == "table" else ():
        where = f" ({problem['path']})" if problem["path"] else ""
        line = f"wrong: {problem['what']}{where}\n  try: {problem['remedy']}"
        click.echo(harmless(line, keeps="\n"))
    if problems:
        context.exit(_DEGRADED)


_DEGRADED: Final = 8
_JUDGED: Final = {
    "new": "it is new, and can be started",
    "joined": "it was just created, and can be started",
    "member": "a member of the cluster, with all its directories",
}


def _run_with_identity(flags: Mapping[str, Any], use: Callable[["Identity"], Awaitable[T]]) -> T:
    import asyncio

    from rollbook.api.cli.server.bookie_settings import load_settings
    from rollbook.api.cli.server.flags_in_suggested_commands import advising
    from rollbook.proto.runtime.logging_setup import configure_logs

    configure_logs(level="error", as_json=False)
    with advising(flags):
        return asyncio.run(_with_identity(load_settings(**flags), use))


async def _with_identity(settings: "Settings", use: Callable[["Identity"], Awaitable[T]]) -> T:
    from rollbook.api.cli.server.bookie_settings import open_store
    from rollbook.api.cli.system_ports import RealMachine
    from rollbook.bookie.bookie import addresses_of
    from rollbook.bookie.identity import Identity
    from rollbook.proto.cluster.cluster_root import open_cluster
    from rollbook.proto.metastore.url import MetadataUrl

    url = MetadataUrl.parse(settings.bookie.metadata)
    _, _, bookie_id = addresses_of(settings.bookie)
    machine = RealMachine()
    async with await open_store(settings.bookie, serve=False) as store:
        cluster = await open_cluster(store, url.ledgers_root, url=url)
        return await use(
            Identity(machine.disk, settings.storage, machine.randomness, store, cluster, bookie_id)
        )


def _who_and_where(flags: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Returns the bookie's id and its directories."""
    from rollbook.api.cli.server.bookie_settings import load_settings
    from rollbook.bookie.bookie import addresses_of

    settings = load_settings(**flags)
    _, _, bookie_id = addresses_of(settings.bookie)
    return bookie_id, (settings.storage.journal_dir, *settings.storage.ledger_dirs)


def _facts(identity: "Identity", formatted: "Formatted") -> dict[str, Any]:
    return {
        "bookie_id": identity.bookie_id,
        "incarnation": formatted.incarnation,
        "ledgers": formatted.ledgers,
        "ledgers_unknown": formatted.doubted,
        "everything_unknown": formatted.doubts_everything,
    }
