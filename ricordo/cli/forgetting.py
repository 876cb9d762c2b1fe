"""`ricordo memory forget` and `ricordo memory receipt`: erasing a user, and checking the receipt of it.

The server does it where one runs. Where none does, this process opens the database and works until all is done.
"""

import asyncio
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import typer

from ricordo.agents.erasing import find_receipt, forget
from ricordo.app import open_runtime
from ricordo.cli.client import Client, Json, refusal, running_server
from ricordo.domain.scope import Scope
from ricordo.errors import NotFound, Unavailable
from ricordo.logs import set_up_logs
from ricordo.memory import receipts
from ricordo.secret import FILE, Secret
from ricordo.settings import ProviderSettings, Settings, load_settings

_LOOK_EVERY = 0.2  # seconds
_QUESTION = (
    'Forget "{name}"? Her memory with all its versions, her conversations and what was kept about her go for good.'
)
_AGENTS_TOO = f"{_QUESTION} So do the agents that are hers alone."


def forget_user(name: str, *, is_sure: bool = False, with_agents: bool = False, server: str | None = None) -> None:
    """Forget the user, wait until all is done, and print what the receipt says.

    `with_agents` deletes those too that are hers alone. Raises NotFound, Conflict, Unavailable."""
    settings, providers = load_settings()
    if not is_sure:
        typer.confirm((_AGENTS_TOO if with_agents else _QUESTION).format(name=name), abort=True)
    with running_server(_Client, settings, server) as client:
        if client:
            receipt = client.forget(name, with_agents=with_agents)
        else:
            receipt = asyncio.run(_forget_here(settings, providers, name, with_agents=with_agents))
    typer.echo(account(receipt))
    if (path := receipts.path_of(settings.data_dir, receipt["id"])).exists():
        typer.echo(f"Receipt: {path}")


def check_receipt(file: Path) -> bool:
    """Print what the receipt says and who signed it; tells whether it is as it was signed. Raises NotFound, Invalid."""
    receipt = receipts.read(file)
    if receipt is None:
        raise NotFound(f"There is no file {file}. Name a receipt.")
    settings, _ = load_settings()
    has_secret = (settings.data_dir / FILE).exists()
    if not receipts.verify(receipt):
        typer.echo("This receipt was changed after it was signed. Do not rely on it.")
        return False
    typer.echo(account(receipt))
    if not has_secret:
        typer.echo(
            f"It is as it was signed. Whose key that was cannot be told here: {settings.data_dir} has no secret key."
        )
        return True
    is_ours = receipts.verify(receipt, Secret(settings.data_dir))
    typer.echo("It is as this installation signed it." if is_ours else "It was signed, but not by this installation.")
    return is_ours


def account(receipt: Json) -> str:
    """The receipt in lines for people."""
    lines = [f"{receipt['id']}: asked {receipt['asked_at']}, done {receipt['finished_at']}", "Removed:"]
    lines += _counted(receipt["removed"])
    for title, name in (("Changed in what is others':", "changed"), ("Still there, since it cannot go:", "remaining")):
        if receipt[name]:
            lines += [title, *_counted(receipt[name])]
    if receipt["files"]:
        lines += ["Files:", *(f"  {file}: {what}" for file, what in receipt["files"].items())]
    if stay := [agent for agent in receipt["agents"] if agent.get("stays")]:
        lines += ["Agents that stay, since they are not hers alone:"]
        lines += [f"  {agent['id']}: {agent['stays']}" for agent in stay]
    if seen := [agent for agent in receipt["agents"] if agent["versions"] and not agent.get("is_deleted")]:
        lines += ["Agents whose own memory has versions that came of her turns; look at them:"]
        lines += [f"  {agent['id']}: {agent['versions']:,}" for agent in seen]
    if receipt["elsewhere"]:
        lines += ["What lies elsewhere, or stays:", *(f"  {sentence}" for sentence in receipt["elsewhere"])]
    return "\n".join(lines)


def _counted(counts: dict[str, Any]) -> list[str]:
    return [f"  {name}: {count:,}" for name, count in counts.items()] or ["  nothing"]


class _Client(Client):
    def forget(self, name: str, *, with_agents: bool) -> Json:
        """Have the server forget the user, and wait for the receipt."""
        query = "?with_agents=true" if with_agents else ""
        told = self._told("DELETE", f"/users/{quote(name, safe='')}{query}")
        while told["status"] != "done":
            time.sleep(_LOOK_EVERY)
            told = self._told("GET", f"/v1/receipts/{told['id']}")
        return told

    def _told(self, method: str, path: str) -> Json:
        try:
            response = self._http.request(method, path)
        except httpx2.TransportError as error:
            raise Unavailable(
                f"The server at {self.address} does not answer: {error or type(error).__name__}. It goes on with what it began; "
                "repeat the command to hear how it ended."
            ) from None
        if response.status_code not in (200, 202):
            raise refusal(response)
        told: Json = response.json()
        return told


async def _forget_here(settings: Settings, providers: ProviderSettings, name: str, *, with_agents: bool) -> Json:
    if settings.postgres_url is None and not settings.database_path.exists():
        raise NotFound(f"There is no database at {settings.database_path}, so nobody is there to be forgotten.")
    set_up_logs("error" if settings.log_level == "info" else settings.log_level, settings.log_format)
    async with open_runtime(settings, providers) as runtime:
        told = await forget(runtime, Scope(), name, with_agents=with_agents)
        while told["status"] != "done":
            await asyncio.sleep(_LOOK_EVERY)
            told = await find_receipt(runtime, Scope(), told["id"])
    return told
