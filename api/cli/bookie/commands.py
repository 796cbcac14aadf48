"""The commands of `rollbook bookie`: a bookie's identity, its files, and requests to a running bookie."""

from typing import Final

import click

from rollbook.api.cli.lazy_group import LazyCommand, LazyGroup
from rollbook.api.cli.output import examples

_INSPECT: Final = {
    "info": "Show one bookie at a glance.",
    "ledgers": "List the ledgers of which this bookie has something.",
    "ledger": "Show what this bookie has of one ledger, and where.",
    "journal": "List the journal's files, or the records of one of them.",
    "entrylog": "List the entry logs, or the ledgers in one of them.",
    "mark": "Show where replay would start.",
    "verify": "Read every byte of a stopped bookie's files.",
    "gc": "Look for deleted ledgers and surplus copies now, and free what they had.",
    "compact": "Rewrite entry logs of which little is in use.",
    "scrub": "Read and verify everything that a running bookie has.",
    "readonly": "Show whether the bookie takes new entries, or change it.",
}
_IDENTITY: Final = {
    "init": ("init", "Make a new bookie: its directories, its cookie."),
    "doctor": ("doctor", "Explain what keeps a bookie from starting, and how to mend it."),
    "rejoin": ("rejoin", "Write again the files that say whose the directories are."),
    "write-off": ("write_off", "Go on without files that are permanently lost."),
    "format": ("format_bookie", "Erase a bookie and start again under its id."),
}
_LIFECYCLE: Final = {
    "drain": ("drain", "Empty bookies that are to leave."),
    "undrain": ("undrain", "Keep bookies that were to leave."),
    "mark-drained": ("mark_drained", "Call bookies drained whose drain failed."),
    "safe-to-remove": ("safe_to_remove", "Ask whether these bookies may go."),
    "remove": ("remove", "Take bookies out of the cluster."),
}
_PLACES: Final = {
    name: LazyCommand(f"rollbook.api.cli.bookie.{module}", *place)
    for module, places in (
        ("inspection", {name: (name, what) for name, what in _INSPECT.items()}),
        ("identity", _IDENTITY),
        ("lifecycle", _LIFECYCLE),
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
    """Make, mend, inspect and remove bookies."""
