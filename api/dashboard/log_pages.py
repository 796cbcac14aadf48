"""Pages of logs: the list of logs, and one log with its records, segments and cursors."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from starlette.requests import Request

from rollbook.api.access.authenticator import CALLER
from rollbook.api.access.core.grants import Right
from rollbook.api.dashboard import log_screens
from rollbook.api.dashboard.core.payload_text import Form
from rollbook.api.dashboard.error_texts import error_text
from rollbook.api.dashboard.page_context import ShowPage, Visit
from rollbook.api.dashboard.page_dependencies import PageSources
from rollbook.api.dashboard.parts import Screen, with_query
from rollbook.api.rest.operation_registry import Facts
from rollbook.logservice.ids import LogName
from rollbook.proto.errors import InvalidRequest, RollbookError


class LogPages:
    """`pages` maps the path of each page, below `PREFIX`, to the function that shows the page."""

    def __init__(self, sources: PageSources, draw: Callable[[], str]) -> None:
        """`draw` returns a new text that cannot be guessed."""
        self._admin = sources.admin
        self._managing = sources.managing
        self._logs = sources.logs
        self._draw = draw
        self.pages: Mapping[str, ShowPage] = {"/logs": self._list_logs, "/log": self._log}

    async def _list_logs(self, request: Request, visit: Visit) -> Screen:
        from rollbook.api.client.caller_arguments import listed

        query, token = request.query_params, visit.session.token
        asked = {name: query[name] for name in ("prefix", "after") if query.get(name)}
        prefix, after = asked.get("prefix", ""), asked.get("after", "")
        rows, following = await visit.ask(
            visit.own(with_query("logs", **asked)),
            lambda: self._logs.logs(token, prefix, after),
        )
        where = log_screens.of_logs(*await self._where(visit), *listed(prefix, ""), after)
        grants = CALLER.get().principal.grants
        return log_screens.logs(visit.framed(), rows, following, asked, where, grants)

    async def _log(self, request: Request, visit: Visit) -> Screen:
        query, token = request.query_params, visit.session.token
        names = ("name", "from", "format", "truncate")
        asked = {name: query[name] for name in names if query.get(name)}
        name, start = str(LogName.parse(asked.get("name", ""))), asked.get("from", "")
        grants = CALLER.get().principal.grants
        if not grants.may_steer_any(name):
            self._managing.require_on_log(Right.READ, name, "Read")
        if asked.get("format", Form.TEXT) not in list(Form):
            raise InvalidRequest(f"format has to be one of {', '.join(Form)}")
        found = await visit.ask(visit.own(f"log {name}"), lambda: self._logs.log(token, name))
        is_news = visit.after is not None and not start
        records: Facts | None = None
        if not grants.may(Right.READ, name):
            is_news = False
        elif is_news:
            records = await self._logs.records(token, name, str(visit.after))
        else:
            records = await visit.ask(
                visit.own(f"records {name} {start}"),
                lambda: self._logs.records(token, name, start),
            )
        plan: Facts | str | None = None
        if before := asked.get("truncate", ""):
            try:
                self._managing.require_on_log(Right.ADMIN, name, "Truncate")
                plan = await self._logs.truncation(token, name, before)
            except RollbookError as error:
                plan = error_text(error)
        rows = await visit.ask("servers", self._admin.log_servers)
        others = [row["name"] for row in rows if row["server_id"] != found["owner_id"]]
        ensembles = await self._ensembles(visit, found["segments"]) if records else {}
        where = await self._where(visit)
        view = log_screens.LogView(
            asked, found, records, is_news, plan, ensembles, others, where, self._draw()
        )
        return log_screens.log(visit.framed(), view, grants)

    async def _ensembles(
        self, visit: Visit, segments: Sequence[Facts]
    ) -> Mapping[int, Sequence[str]]:
        """The bookies of each segment's last fragment, by ledger. Ledgers that cannot be read are left out."""
        found: dict[int, Sequence[str]] = {}
        for each in segments:
            ledger_id = each["ledger_id"]
            ask = partial(self._admin.ledger, ledger_id)
            try:
                ledger = await visit.ask(f"ledger {ledger_id}", ask)
            except RollbookError:
                continue  # The ledger was deleted in the meantime, or the store is unavailable.
            found[ledger_id] = ledger["fragments"][-1]["ensemble"] if ledger["fragments"] else ()
        return found

    async def _where(self, visit: Visit) -> tuple[str, str]:
        """The URLs of a log server and of its REST API, for the commands on a page."""
        rows = await visit.ask("servers", self._admin.log_servers)
        if not rows:
            return "log://127.0.0.1:7400", ""
        scheme = "log+tls" if self._logs.uses_tls else "log"
        return f"{scheme}://{rows[0]['address']}", rows[0]["http"]
