"""Management routes for recovery: show its state, request an audit, and set its switch, delay and rate."""

from fastapi import APIRouter

from rollbook.api.access.core.grants import Duty
from rollbook.api.access.management_rights import Managing
from rollbook.api.rest.cluster_admin_interface import ACTS, AWAY, ClusterAdmin
from rollbook.api.rest.cluster_models import (
    Audited,
    Delay,
    Rate,
    Recovery,
    Switch,
    WantedAudit,
    WantedRate,
)
from rollbook.api.rest.problems import describe_problems


def recovery(admin: ClusterAdmin) -> APIRouter:
    routes = APIRouter(tags=["recovery"])

    @routes.get("/recovery", responses=describe_problems(*AWAY))
    async def get_recovery() -> Recovery:
        """The state of recovery: auditor, steward, workers, tasks, switch, delay and rate."""
        return Recovery.model_validate(await admin.recovery())

    return routes


def recovery_acts(admin: ClusterAdmin, managing: Managing) -> APIRouter:
    routes = APIRouter(tags=["recovery"])

    @routes.post("/recovery:audit", responses=describe_problems(*ACTS))
    async def audit(wanted: WantedAudit | None = None) -> Audited:
        """Makes the auditor look for missing bookies and run all its checks now."""
        anyway = wanted is not None and wanted.anyway
        duty = Duty.REMOVE if anyway else Duty.OPERATE
        with managing.act(duty, "Audit", anyway=anyway):
            return Audited.model_validate(await admin.audit(anyway=anyway))

    @routes.put("/recovery/switch", responses=describe_problems(*ACTS))
    async def set_switch(wanted: Switch) -> Switch:
        """Switches repair on or off in the whole cluster. BookKeeper's autorecovery obeys the switch, too."""
        with managing.act(Duty.OPERATE, "SetRecoverySwitch", enabled=wanted.enabled):
            await admin.set_switch(enabled=wanted.enabled)
        return wanted

    @routes.put("/recovery/delay", responses=describe_problems(*ACTS))
    async def set_delay(wanted: Delay) -> Delay:
        """Sets how long a bookie must be missing before its entries are copied to other bookies."""
        with managing.act(Duty.OPERATE, "SetLostBookieDelay", delay_s=wanted.delay_s):
            return Delay.model_validate(await admin.set_delay(wanted.delay_s))

    @routes.put("/recovery/rate", responses=describe_problems(*ACTS))
    async def set_rate(wanted: WantedRate) -> Rate:
        """Sets the copying rate of each worker. All workers adopt it within moments."""
        with managing.act(Duty.OPERATE, "SetRecoveryRate", bytes_per_s=wanted.bytes_per_s):
            return Rate.model_validate(await admin.set_rate(wanted.bytes_per_s))

    return routes
