"""The action of `rollbook log transfer`, which hands a log over to another log server."""

from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.output import tell


def transfer_log(access: LogAccess, log: str, to: str, output: str) -> None:
    owner = access.run(lambda client: client.transfer(log, to), log)
    facts = {"log": str(owner.log), "to": to, "address": owner.address}
    tell(facts, output, "address")
