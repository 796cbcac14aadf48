"""`rollbook bookie gc|compact|scrub|readonly` send requests to a running bookie over HTTP."""

from typing import TYPE_CHECKING, Any, Final

import click

from rollbook.api.cli.bookie.target import (
    API_PATH,
    Where,
    bookie_command,
    running_bookie,
    wait_for,
)
from rollbook.api.cli.output import output_option, show_facts

if TYPE_CHECKING:  # Imported when a command needs them, to keep `--help` quick.
    from rollbook.api.cli.bookie_admin_client import AdminClient

_no_wait: Final = click.option(
    "--no-wait", is_flag=True, help="Do not wait until the operation has ended."
)
_status: Final = click.option("--status", is_flag=True, help="Only show the current state.")


@bookie_command("gc", "gc --no-wait", "gc --status -o json")
@click.option(
    "--force",
    is_flag=True,
    help="Delete at once, without the wait, all ledgers that two scans have not found, even if the metadata lacks "
    "a large share of all ledgers.",
)
@_no_wait
@_status
@output_option
@running_bookie
def gc(where: Where, force: bool, no_wait: bool, status: bool, output: str) -> None:
    """Find deleted ledgers and surplus copies now, and free their space.

    A ledger is deleted on the bookie after two scans of the metadata, some time apart, have not found it. If the
    metadata lacks a large share of all ledgers, no ledger is deleted: the metadata may be lost, or belong to
    another cluster. Use --force if these ledgers were really deleted.

    Copies are surplus if their ledger is closed and its metadata names other bookies. The first scan
    about a day later (`surplus_interval_s`) drops them. `surplus` counts them, and --status lists the first few ledgers.
    """
    client = where.client()
    if status:
        space = client.get(f"{API_PATH}/space")
        shown = ("surplus", "surplus_bytes", "first_ledgers", "dropped")
        surplus = {name: space["surplus"][name] for name in shown if "surplus" in space}
        show_facts({**client.get(f"{API_PATH}/gc"), **space["garbage"], **surplus}, output)
        return
    _follow(client, client.put(f"{API_PATH}/gc", {"force": force}), no_wait, output)


@bookie_command("compact --minor", "compact --major --no-wait", "compact --suspend")
@click.option(
    "--major",
    "what",
    flag_value="major",
    help="Rewrite entry logs with less than 80 % live data, or less than the configured share.",
)
@click.option(
    "--minor",
    "what",
    flag_value="minor",
    help="Rewrite entry logs with less than 20 % live data, or less than the configured share.",
)
@click.option("--suspend", "what", flag_value="suspend", help="Stop compaction until --resume.")
@click.option("--resume", "what", flag_value="resume", help="Compact as configured again.")
@click.option("--status", "what", flag_value="status", help="Only show the current state.")
@_no_wait
@output_option
@running_bookie
def compact(where: Where, what: str | None, no_wait: bool, output: str) -> None:
    """Rewrite entry logs that contain little live data, or suspend compaction."""
    client = where.client()
    match what:
        case "major":
            answer = client.put(f"{API_PATH}/gc", {"forceMajor": True})
            _follow(client, answer, no_wait, output)
        case "minor":
            answer = client.put(f"{API_PATH}/gc", {"forceMinor": True})
            _follow(client, answer, no_wait, output)
        case "suspend":
            body = {"suspendMajor": True, "suspendMinor": True}
            show_facts(client.put(f"{API_PATH}/gc/suspend_compaction", body), output)
        case "resume":
            body = {"resumeMajor": True, "resumeMinor": True}
            show_facts(client.put(f"{API_PATH}/gc/resume_compaction", body), output)
        case "status":
            facts = client.get(f"{API_PATH}/space")["compaction"]
            show_facts({**facts, **client.get(f"{API_PATH}/gc/suspend_compaction")}, output)
        case _:
            raise click.UsageError("give one of --major, --minor, --suspend, --resume and --status")


@bookie_command("scrub", "scrub --no-wait", "scrub --suspend")
@click.option("--suspend", "what", flag_value="suspend", help="Stop the scrub until --resume.")
@click.option("--resume", "what", flag_value="resume", help="Scrub in rounds again.")
@click.option("--status", "what", flag_value="status", help="Only show the current state.")
@_no_wait
@output_option
@running_bookie
def scrub(where: Where, what: str | None, no_wait: bool, output: str) -> None:
    """Read and verify all entry logs of a running bookie.

    A bookie always scrubs in the background, slowly. This command waits for the end of the current round.
    """
    client, path = where.client(), f"{API_PATH}/scrub"
    if what == "status":
        show_facts(client.get(path), output)
    elif what:
        show_facts(client.put(f"{path}/{what}"), output)
    else:
        _follow(client, client.put(path), no_wait, output)


@bookie_command("readonly", "readonly on", "readonly off --http 127.0.0.1:8002")
@click.argument("wanted", type=click.Choice(["on", "off"]), required=False)
@output_option
@running_bookie
def readonly(where: Where, wanted: str | None, output: str) -> None:
    """Show or change whether the bookie accepts new entries."""
    client, path = where.client(), f"{API_PATH}/state/readonly"
    if wanted is None:
        show_facts(client.get(path), output)
    else:
        show_facts(client.put(path, {"readOnly": wanted == "on"}), output)


def _follow(client: "AdminClient", started: Any, no_wait: bool, output: str) -> None:
    operation = started if no_wait else wait_for(client, started)
    if output != "table":
        show_facts(operation, output)
        return
    facts = {name: operation[name] for name in ("id", "state", "started_ms", "ended_ms")}
    show_facts({**facts, **(operation["result"] or {})}, output)
