"""Pages of processes: log servers, and the settings and metrics of each process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request

from rollbook.api.access.authenticator import CALLER
from rollbook.api.dashboard import server_and_process_screens
from rollbook.api.dashboard.core.markup import Child
from rollbook.api.dashboard.error_texts import error_text, sentence
from rollbook.api.dashboard.page_context import ShowPage, Visit
from rollbook.api.dashboard.page_dependencies import PageSources
from rollbook.api.dashboard.parts import Screen
from rollbook.api.rest.operation_registry import Facts
from rollbook.proto.errors import BookieFailed, Missing, RollbookError


class ProcessPages:
    """`pages` maps the path of each page, below `PREFIX`, to the function that shows the page."""

    def __init__(self, sources: PageSources) -> None:
        self._admin = sources.admin
        self._logs = sources.logs
        self._own = sources.own
        self.pages: Mapping[str, ShowPage] = {
            "/servers": self._servers,
            "/server": self._server,
            "/process": self._process,
        }

    async def _servers(self, _: Request, visit: Visit) -> Screen:
        rows = await visit.ask("servers", self._admin.log_servers)
        health = await visit.ask("health", self._admin.health)
        return server_and_process_screens.servers(
            rows,
            {each["id"]: each["state"] for each in health["members"] if each["kind"] != "bookie"},
            server_and_process_screens.others(
                await visit.ask("bookies", self._admin.bookies),
                (await visit.ask("recovery", self._admin.recovery))["processes"],
                self._own.name,
            ),
        )

    async def _server(self, request: Request, visit: Visit) -> Screen:
        name, token = request.query_params.get("name", ""), visit.session.token
        for row in await visit.ask("servers", self._admin.log_servers):
            if row["name"] == name:
                break
        else:
            raise Missing(f"no log server {name[:80]} is registered")
        metrics: Mapping[str, float] | str
        try:
            metrics = await self._logs.server(token, row["address"])
        except RollbookError as error:
            metrics = error_text(error)
        settings: Sequence[Facts] | str = "The server does not serve HTTP (--rest)."
        if url := row["http"]:
            try:
                settings = await self._logs.settings(token, url)
            except RollbookError as error:
                settings = error_text(error)
        grants = CALLER.get().principal.grants
        return server_and_process_screens.server(visit.framed(), row, metrics, settings, grants)

    async def _process(self, request: Request, visit: Visit) -> Screen:
        """The page of a bookie or a recovery server. A bookie's facts are read from the bookie. The facts of a
        recovery server are known only if it is this process.
        """
        kind, name = (request.query_params.get(each, "") for each in ("kind", "name"))
        counted: Mapping[str, Child] | str
        found: Sequence[Facts] | str
        if kind == "bookie":
            found = await self._shown(
                visit, name, "/api/v1/settings", server_and_process_screens.rows_of_settings
            )
            counted = await self._shown(
                visit, name, "/api/v1/bookie/status", server_and_process_screens.of_status
            )
        elif kind == "recovery" and name == self._own.name:
            found = self._own.settings
            text = (await self._own.metrics.page()).decode()
            counted = server_and_process_screens.of_exposition(text)
        elif kind == "recovery" and name in await self._recovery_servers(visit):
            found = counted = (
                "A recovery server shows them only at its own address: open the dashboard there, if it has --http."
            )
        else:
            raise Missing(
                "there is no such process", next_step="choose a process on the Servers screen"
            )
        return server_and_process_screens.process(visit.framed(), kind, name, found, counted)

    async def _recovery_servers(self, visit: Visit) -> set[str]:
        """The recovery servers that run a part of recovery. Servers that run only HTTP are not among them."""
        found = await visit.ask("recovery", self._admin.recovery)
        return {str(each.get("process")) for each in found["processes"]}

    async def _shown(self, visit: Visit, bookie: str, page: str, read: Callable[[Any], Any]) -> Any:
        """Returns the contents of one of the bookie's pages, or the reason why they are not known. Raises
        `Missing` if the bookie does not exist."""
        row = await visit.ask(f"bookie {bookie}", lambda: self._admin.bookie(bookie))
        try:
            return read(
                await visit.ask(
                    f"page {page} of {bookie}",
                    lambda: self._admin.ask_pages(bookie, "GET", page, None),
                )
            )
        except Missing:
            why = server_and_process_screens.without_pages(row["state"])
            return f"It shows no pages here: {why}."
        except BookieFailed:  # The response is not from a Rollbook bookie.
            return "Its own pages do not show this: it is a Java bookie, or of an earlier release."
        except (RollbookError, ValueError) as error:
            return error_text(error) if isinstance(error, RollbookError) else sentence(str(error))
