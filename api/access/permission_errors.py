"""Errors for principals without a right."""

from typing import Any

from rollbook.api.access.core.grants import Duty, Right, rights_for
from rollbook.logservice.messages import GetServerStats
from rollbook.proto.errors import Unauthorized


def refusal_of(principal: str, request: Any) -> Unauthorized:
    """The error that names the missing right. It is the same whether the log exists or not."""
    section = f"[principals.{principal}] of the access file"
    if rights := [each.value for each in rights_for(request)]:
        wanted = " or ".join(rights)
        return Unauthorized(
            f"{principal} has no right to {wanted} there",
            next_step=f"name the log in `{rights[0]}` of {section}; logs named in `deny` are still refused",
            log=str(request.log),
            right=wanted,
        )
    return refusal_of_duty(
        principal, Duty.LOOK if isinstance(request, GetServerStats) else Duty.REMOVE
    )


def refusal_of_right(principal: str, right: Right, log: str) -> Unauthorized:
    """The error for a log in the dashboard. It is the same whether the log exists or not."""
    section = f"[principals.{principal}] of the access file of this server"
    or_duty = "" if right is Right.READ else ", or write operate = true,"
    return Unauthorized(
        f"{principal} has no right to {right.value} there",
        next_step=f"name the log in `{right.value}`{or_duty} in {section}; "
        "logs named in `deny` are still refused",
        log=log,
        right=right.value,
    )


def refusal_of_duty(principal: str, duty: Duty) -> Unauthorized:
    section = f"[principals.{principal}] of the access file"
    wanted = "admin of all logs"
    advice = f'write admin = ["*"] and no `deny` in {section}'
    if duty is not Duty.REMOVE:
        wanted = f"{wanted}, or {duty.value}"
        advice = f"write {duty.value} = true in {section}"
    return Unauthorized(
        f"{principal} may not do this without {wanted}",
        next_step=advice,
        right=wanted,
    )
