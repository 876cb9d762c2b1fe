"""`ricordo memory show`, `proposals`, `approve`, `reject`, `history` and `blame`.

They do the same as the routes of users' memory. A running server does the work. Without one, a
server runs in this process while the command runs.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import typer

from ricordo.cli.client import any_server, require_database
from ricordo.cli.named_files import read_text_file
from ricordo.cli.screen import printable
from ricordo.errors import Invalid, NotFound

app = typer.Typer()
Json = dict[str, Any]
_USER = typer.Argument(help="Id or name of the user who owns the memory.")
_LABEL = typer.Argument(help="Label of the block.")
_SERVER = typer.Option(
    None, "--server", help="Address of the server.  [from RICORDO_HOST and RICORDO_PORT]"
)
_JSON = typer.Option(False, "--json", help="Print the API's answer.")
_WIDTH = 12  # digits of a version's id to show; they are enough to name it


@app.command("show")
def show_memory(
    user: str = _USER,
    label: str | None = typer.Argument(
        None, help="Label of one block; without it, the list of blocks."
    ),
    as_json: bool = _JSON,
    server: str | None = _SERVER,
) -> None:
    """Show a user's blocks, or the text of one."""
    with _memory(user, server) as ask:
        if label is None:
            waiting = [] if as_json else _all_of(ask, "diffs", "waiting")
            _print(
                ask("GET", "blocks"),
                as_json,
                lambda blocks: [*_blocks(blocks), *_new_blocks(blocks, waiting)],
            )
        else:
            _print(
                ask("GET", f"blocks/{_path(label)}"),
                as_json,
                lambda block: [block["body"].removesuffix("\n")],
            )


@app.command("proposals")
def list_proposals(
    user: str = _USER,
    label: str | None = typer.Argument(None, help="Label of one block."),
    status: str = typer.Option(
        "waiting", help="waiting, open, conflicted, approved, rejected, superseded, expired or all."
    ),
    as_json: bool = _JSON,
    server: str | None = _SERVER,
) -> None:
    """List the waiting proposals, each with its changes."""
    path = "diffs" if label is None else f"blocks/{_path(label)}/diffs"
    with _memory(user, server) as ask:
        _print(_all_of(ask, path, status), as_json, partial(_proposals, status=status))


@app.command("approve")
def approve_proposals(
    user: str = _USER,
    proposals: list[str] = typer.Argument(help="Ids of proposals, or `all` for every waiting one."),
    text: Path | None = typer.Option(
        None, help="A file with a text to store instead of the proposed one (-: stdin)."
    ),
    server: str | None = _SERVER,
) -> None:
    """Approve proposals. The proposed texts become the next versions of their blocks."""
    with _memory(user, server) as ask:
        if text is None:
            _decide(ask, "approve", proposals)
            return
        body = sys.stdin.read() if str(text) == "-" else read_text_file(text)
        _settle(ask, proposals, body)


@app.command("reject")
def reject_proposals(
    user: str = _USER,
    proposals: list[str] = typer.Argument(help="Ids of proposals, or `all` for every waiting one."),
    reason: str | None = typer.Option(None, help="The reason, which the proposing agent sees."),
    server: str | None = _SERVER,
) -> None:
    """Reject proposals: their blocks stay as they are."""
    with _memory(user, server) as ask:
        _decide(ask, "reject", proposals, **({"reason": reason} if reason else {}))


@app.command("history")
def show_history(
    user: str = _USER,
    label: str = _LABEL,
    limit: int = typer.Option(50, min=1, max=1000, help="The most versions to show."),
    as_json: bool = _JSON,
    server: str | None = _SERVER,
) -> None:
    """List a block's versions with time, author and reason."""
    with _memory(user, server) as ask:
        _print(
            ask("GET", f"blocks/{_path(label)}/history", query={"limit": limit}), as_json, _versions
        )


@app.command("blame")
def show_blame(
    user: str = _USER, label: str = _LABEL, as_json: bool = _JSON, server: str | None = _SERVER
) -> None:
    """Show each line of a block with its version and author."""
    with _memory(user, server) as ask:
        _print(_whole_blame(ask, f"blocks/{_path(label)}/blame"), as_json, _lines)


@contextmanager
def _memory(user: str, server: str | None) -> Iterator[Callable[..., Any]]:
    """Yield a function that sends requests about this user's memory to the server."""
    with any_server(
        server, lambda settings: require_database(settings, "no memory to show")
    ) as client:
        yield lambda method, path, **options: client.ask(
            method, f"/users/{quote(user, safe='')}/{path}", **options
        )


def _all_of(ask: Callable[..., Any], path: str, status: str) -> list[Json]:
    proposals: list[Json] = []
    query: Json = {"status": status, "limit": 100}
    while page := ask("GET", path, query=query):
        proposals += page
        query["after"] = page[-1]["id"]
    return proposals


def _decide(ask: Callable[..., Any], decision: str, ids: Sequence[str], **body: str) -> None:
    """Decide on proposals, print each outcome, and exit.

    The exit code is 1 if one of them could not be decided.
    """
    waiting = list(ids)
    if waiting == ["all"]:
        waiting = [proposal["id"] for proposal in _all_of(ask, "diffs", "waiting")]
    failed = False
    for begin in range(0, len(waiting), 100):
        for outcome in ask(
            "POST", f"diffs/{decision}", body={"ids": waiting[begin : begin + 100], **body}
        ):
            version = f", version {outcome['version'][:_WIDTH]}" if outcome["version"] else ""
            typer.echo(f"{outcome['id']}: {outcome['status']}{version}")
            if outcome["detail"]:
                typer.echo(f"  {outcome['detail']}")
            failed |= outcome["status"] in ("failed", "conflicted")
    if not waiting:
        typer.echo("Nothing waits.")
    raise typer.Exit(1 if failed else 0)


def _settle(ask: Callable[..., Any], ids: Sequence[str], body: str) -> None:
    if len(ids) != 1 or ids[0] == "all":
        raise Invalid("--text gives the text for one proposal. Name one proposal.")
    waiting = {proposal["id"]: proposal for proposal in _all_of(ask, "diffs", "waiting")}
    proposal = waiting.get(ids[0])
    if proposal is None:
        raise NotFound(f"No proposal {ids[0]} waits. List them with `ricordo memory proposals`.")
    path = f"blocks/{_path(proposal['label'])}/diffs/{ids[0]}/approve"
    outcome = ask("POST", path, body={"body": body})
    typer.echo(
        f"{outcome['id']}: {outcome['status']}, version {(outcome['version'] or '')[:_WIDTH]}"
    )


def _print(answer: Any, as_json: bool, lines: Callable[[Any], Sequence[str]]) -> None:
    if as_json:
        typer.echo(json.dumps(answer, ensure_ascii=False, indent=2))
        return
    # Texts of agents and users must not control the terminal.
    typer.echo("\n".join(printable(line) for line in lines(answer)))


def _blocks(blocks: Sequence[Json]) -> list[str]:
    width = max((len(block["label"]) for block in blocks), default=0)
    return [
        f"{block['label']:<{width}}  {block['policy']:<9}  {len(block['body']):>6,} characters"
        + (f"  {block['pending']} waiting" if block["pending"] else "")
        for block in blocks
    ] or ["No blocks."]


def _new_blocks(blocks: Sequence[Json], waiting: Sequence[Json]) -> list[str]:
    labels = {block["label"] for block in blocks}
    new = Counter(proposal["label"] for proposal in waiting if proposal["label"] not in labels)
    return [f"{label}  not made yet  {count} waiting" for label, count in sorted(new.items())]


def _proposals(proposals: Sequence[Json], status: str) -> list[str]:
    lines: list[str] = []
    for proposal in proposals:
        lines.append(
            f"{proposal['id']}  {proposal['label']}  {proposal['status']}  "
            f"by {proposal['author']}  {proposal['created_at']}"
        )
        if proposal["reasoning"]:
            lines.append(f"  Reason: {proposal['reasoning']}")
        lines += [f"  {line}" for line in proposal["diff"].splitlines()]
    return lines or ["Nothing waits." if status == "waiting" else "No such proposals."]


def _versions(versions: Sequence[Json]) -> list[str]:
    return [
        f"{version['sha'][:_WIDTH]}  {version['timestamp']}  "
        f"{version['author']} ({version['author_kind']})  {version['message']}"
        for version in versions
    ]


def _whole_blame(ask: Callable[..., Any], path: str) -> Json:
    """Return all lines; for a long text the API gives several answers."""
    blame: Json = ask("GET", path)
    while blame["next"] is not None:
        more = ask("GET", path, query={"after": blame["next"]})
        hashes = {version["sha"] for version in blame["versions"]}
        new = [version for version in more["versions"] if version["sha"] not in hashes]
        blame = {
            **more,
            "lines": [*blame["lines"], *more["lines"]],
            "versions": [*blame["versions"], *new],
        }
    return blame


def _lines(blame: Json) -> list[str]:
    authors = {version["sha"]: version["author"] for version in blame["versions"]}
    width = max(map(len, authors.values()), default=0)
    return [
        f"{line['version'][:_WIDTH]}  {authors[line['version']]:<{width}}  {line['text']}"
        for line in blame["lines"]
    ]


def _path(label: str) -> str:
    return quote(label, safe="/")
