"""The commands of `rollbook bookie`: a bookie's identity, its files, and requests to a running bookie."""

from typing import Final

import click

from rollbook.api.cli.lazy_group import LazyCommand, LazyGroup
from rollbook.api.cli.output import examples

_INSPECT: Final = {
    "info": "Show a summary of one bookie.",
    "ledgers": "List the ledgers with data on this bookie.",
    "ledger": "Show what this bookie stores of one ledger, and in which files.",
    "journal": "List the journal's files, or the records of one of them.",
    "entrylog": "List the entry logs, or the ledgers in one of them.",
    "mark": "Show where a restart would begin to replay the journal.",
    "verify": "Read and check every byte of a stopped bookie's files.",
}
_MAINTAIN: Final = {
    "gc": "Find deleted ledgers and surplus copies now, and free their space.",
    "compact": "Rewrite entry logs that contain little live data.",
    "scrub": "Read and verify all entry logs of a running bookie.",
    "readonly": "Show or change whether the bookie accepts new entries.",
}
_IDENTITY: Final = {
    "init": ("init", "Create a new bookie: its directories and its cookie."),
    "doctor": ("doctor", "Explain what keeps a bookie from starting, and how to repair it."),
    "rejoin": (
        "rejoin",
        "Rewrite the VERSION files and the cookie of a bookie that has all its files.",
    ),
    "write-off": ("write_off", "Let a bookie run without files that are permanently lost."),
    "format": ("format_bookie", "Erase a bookie and start again under the same id."),
}
_LIFECYCLE: Final = {
    "drain": ("drain", "Move all copies off bookies that will leave."),
    "undrain": ("undrain", "Cancel the drain of bookies, so that they stay."),
    "mark-drained": ("mark_drained", "Declare bookies drained although their drain failed."),
    "safe-to-remove": ("safe_to_remove", "Check whether these bookies can be removed."),
    "remove": ("remove", "Remove bookies from the cluster."),
}
_PLACES: Final = {
    name: LazyCommand(f"rollbook.api.cli.bookie.{module}", *place)
    for module, places in (
        ("inspection", {name: (name, what) for name, what in _INSPECT.items()}),
        ("gc_and_scrub", {name: (name, what) for name, what in _MAINTAIN.items()}),
        ("setup_and_repair", _IDENTITY),
        ("decommission", _LIFECYCLE),
    )
    for name, place in places.items()
}


@click.group(
    cls=LazyGroup,
    places=_PLACES,
    epilog=examples(
        "rollbook bookie doctor --config bookie.toml",
        "rollbook bookie info --http 127.0.0.1:8001",
        "rollbook bookie drain bk-2 --wait --metadata zk://zk1,zk2,zk3/ledgers",
    ),
)
def group() -> None:
    """Create, repair, inspect and remove bookies."""
