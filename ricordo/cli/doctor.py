"""`ricordo doctor`: the state of this installation and its problems.

It shows no key, and changes nothing without `--repair`. That option repairs conversations that stop
their agents from answering, and wrong sizes of histories. On SQLite no server may have the file
open then. On PostgreSQL servers may run, and conversations with a running turn are not changed.
"""

import asyncio
import os
import platform
import shutil
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import closing, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple

import typer

from ricordo import __version__
from ricordo.agents.repair import Repair, repair, restore_default_conversation
from ricordo.api.models.jobs import QueueResponse
from ricordo.app import open_models
from ricordo.cli.client import Client, Json, require_database, running_server
from ricordo.cli.screen import as_typed
from ricordo.cli.settings_list import listed_settings
from ricordo.cli.sockets import address_of, addresses_of
from ricordo.domain.model import LIBRARIAN, ModelInfo
from ricordo.domain.quotas import MEGABYTE
from ricordo.errors import Invalid, NotFound, RicordoError, Unavailable
from ricordo.features import FEATURES
from ricordo.plugins import Plugins, load_plugins
from ricordo.sandbox.service import examine_sandbox
from ricordo.secret import FILE, load_secret, require_unneeded
from ricordo.settings import LOOPBACK, ProviderSettings, Settings, load_settings
from ricordo.storage import damage, history_size, keys
from ricordo.storage.engine import file_mark
from ricordo.storage.engine.database import DatabaseStatus, address, check, open_store, read_beside
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.jobs import read_queue
from ricordo.storage.migrations import MIGRATIONS

Level = Literal["ok", "warning", "wrong"]
_COLOURS = {"ok": "green", "warning": "yellow", "wrong": "red"}
# Free bytes on a disk. A message with its index takes some kilobytes.
_LITTLE_SPACE = 500 * 1024**2
_NO_SPACE = 16 * 1024**2
_SHOWN_CONVERSATIONS = 10
_NEARLY_FULL = 0.9
LOST = "the agent had no default conversation, and has a new one"
_LONG_WAIT = 60  # seconds
# Providers that need a package: the setting of their key, the package, and the extra that installs
# it.
_EXTRAS = (
    ("anthropic_api_key", "anthropic", "anthropic"),
    ("gemini_api_key", "google-genai", "google"),
)
_SMALL_WINDOW = 16_384  # tokens: prompt, tools and memory take a third of it


class DoctorFinding(NamedTuple):
    """One line of the table."""

    name: str
    text: str
    level: Level = "ok"


_warning = partial(DoctorFinding, level="warning")
_wrong = partial(DoctorFinding, level="wrong")


def examine() -> Iterator[DoctorFinding]:
    """Check everything, and yield one finding after the other."""
    yield DoctorFinding("version", __version__)
    yield DoctorFinding(
        "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    )
    try:
        settings, providers = load_settings()
    except Invalid as error:
        for fault in str(error).splitlines():
            yield _wrong("settings", fault)
        return
    yield _data_folder(settings.data_dir)
    yield from _remote_folders(settings)
    database = check(settings)
    yield _database(settings, database)
    yield from _conversations(settings, database)
    yield from _histories(settings, database)
    yield from _jobs(settings, database)
    try:
        addresses_of(settings.host)
    except Unavailable as error:
        yield _wrong("host", str(error))
    else:
        yield _keys(settings, database)
    named = [
        listed.variable for listed in listed_settings(ProviderSettings) if listed.value is not None
    ]
    yield DoctorFinding("providers", f"set: {', '.join(named)}" if named else "none set")
    for key, package, extra in _EXTRAS:
        if getattr(providers, key) and not _is_installed(package):
            yield _warning(
                "providers",
                f"{key.upper()} is set, but its extra is missing. "
                f"Install it: pip install 'ricordo[{extra}]'",
            )
    try:
        plugins = load_plugins(FEATURES)
    except Invalid as error:
        yield _wrong("plugins", str(error))
        return
    yield from asyncio.run(_models(settings, providers, plugins))
    for name, text in (("sandbox", examine_sandbox(settings)), *plugins.findings(settings)):
        yield DoctorFinding(
            name, text.removeprefix("!"), "warning" if text.startswith("!") else "ok"
        )
    yield DoctorFinding("plugins", ", ".join(plugins.names))


def show(findings: Iterator[DoctorFinding]) -> bool:
    """Print the findings; return True if nothing is wrong, even if there are warnings.

    Args:
        findings: The findings. Each is printed before the next one is computed.
    """
    faults = warnings = 0
    for finding in findings:
        mark = typer.style(f"{finding.level:<8}", fg=_COLOURS[finding.level])
        typer.echo(f"{mark} {finding.name:<14} {as_typed(finding.text)}")
        faults += finding.level == "wrong"
        warnings += finding.level == "warning"
    if faults:
        typer.echo(f"\nWrong: {faults}. Nothing was changed.")
    else:
        typer.echo(f"\nNothing is wrong. Warnings: {warnings}." if warnings else "\nAll is well.")
    return faults == 0


def _data_folder(folder: Path) -> DoctorFinding:
    if folder.exists() and not folder.is_dir():
        return _wrong("data folder", f"{folder} is a file. Choose another RICORDO_DATA_DIR.")
    # A missing folder will be created below the nearest existing one.
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        return _wrong(
            "data folder", f"{nearest} cannot be written. Choose another RICORDO_DATA_DIR."
        )
    free = shutil.disk_usage(nearest).free
    state = "" if folder.exists() else ", created at the first start"
    text = f"{folder}{state}, {_size(free)} free"
    if free < _LITTLE_SPACE:
        level: Level = "wrong" if free < _NO_SPACE else "warning"
        return DoctorFinding(
            "data folder", f"{text}. Free some space: without it nothing can be stored.", level
        )
    return DoctorFinding("data folder", text)


def _remote_folders(settings: Settings) -> Iterator[DoctorFinding]:
    data = settings.data_dir
    for folder in settings.folders_of_remotes if settings.remote_folders else ():
        if not folder.is_dir():
            yield _warning(
                "remote folder",
                f"{folder} does not exist. Create it, or correct RICORDO_REMOTE_FOLDERS.",
            )
        elif not os.access(folder, os.W_OK | os.X_OK):
            yield _warning(
                "remote folder", f"{folder} cannot be written, so remotes there cannot be synced."
            )
        elif folder in (data, *data.parents) or (
            data in folder.parents and folder != data / "remotes"
        ):
            yield _warning(
                "remote folder",
                f"{folder} overlaps the data folder {data}, so a remote could be among Ricordo's "
                "own files. Choose a separate folder.",
            )


def _database(settings: Settings, database: DatabaseStatus) -> DoctorFinding:
    path = settings.database_path
    match database.state:
        case "absent":
            return _absent(path)
        case "in use":
            return _running_server(settings)
        case "broken":
            return _wrong("database", database.reason)
        case "sound":
            return _schema(str(path), database.schema, f"{_size(database.size)}, sound")
        case "shared":
            name = f"{database.name} on PostgreSQL {database.version}"
            return _schema(name, database.schema, f"{_size(database.size)}, {database.vectors}")


def _absent(path: Path) -> DoctorFinding:
    """Report a database that does not exist, or no longer exists."""
    try:
        notice = file_mark.look_for_absent(path)
    except RicordoError as error:
        return _wrong("database", str(error))
    if notice:
        return _wrong(
            "database",
            f"{path} was used before, and now it is missing or empty. The next start would create "
            "a new one. If you did not remove it, put it back with its -wal file, or restore a "
            "backup.",
        )
    return DoctorFinding("database", f"{path}, created at the first start")


def _schema(name: str, schema: int, rest: str) -> DoctorFinding:
    newest = len(MIGRATIONS)
    if schema > newest:
        reason = f"has schema {schema}, this Ricordo knows up to {newest}. Start the newer one."
        return _wrong("database", f"{name} {reason}")
    state = f"schema {schema}"
    if schema == 0:
        state = "tables created at the first start"
    elif schema < newest:
        state += f", will become {newest} at the next start, after a backup"
    return DoctorFinding("database", f"{name}, {state}, {rest}")


def _is_current(database: DatabaseStatus) -> bool:
    return database.state in ("sound", "shared") and database.schema == len(MIGRATIONS)


def _conversations(settings: Settings, database: DatabaseStatus) -> Iterator[DoctorFinding]:
    """Report conversations that stop their agents from answering.

    Nothing is reported if the database is in use.
    """
    if not _is_current(database):
        return
    try:
        with read_beside(settings) as tx:
            count, damaged = examine_all(tx, is_alone=database.state == "sound")
    except RicordoError as error:
        yield _warning("conversations", f"not examined: {error}")
        return
    if not damaged:
        yield DoctorFinding("conversations", f"{count:,}, all sound")
        return
    yield DoctorFinding(
        "conversations",
        f"{len(damaged):,} of {count:,} need repair: stop the server, then "
        "`ricordo doctor --repair`",
        "warning",
    )
    for conversation in damaged[:_SHOWN_CONVERSATIONS]:
        faults = "; ".join(conversation.faults)
        yield _warning(
            "conversation",
            f"{conversation.conversation_id}, what --repair will say: {faults}",
        )


def _histories(settings: Settings, database: DatabaseStatus) -> Iterator[DoctorFinding]:
    """Report histories of memory that are nearly full, or whose stored size is wrong."""
    if not _is_current(database):
        return
    try:
        with read_beside(settings) as tx:
            wrong = len(history_size.wrong_ids(tx))
            limit = settings.max_history_mb * MEGABYTE
            full = history_size.count_nearly_full(tx, int(limit * _NEARLY_FULL))
    except RicordoError as error:
        yield _warning("histories", f"not examined: {error}")
        return
    if wrong:
        yield _warning(
            "histories",
            f"the stored size of {wrong:,} is wrong: stop the server, then "
            "`ricordo doctor --repair`",
        )
    if full:
        yield _warning(
            "histories",
            f"{full:,} nearly full, at {settings.max_history_mb:,} MB each: raise "
            "RICORDO_MAX_HISTORY_MB, or that memory will accept no new text",
        )


def _running_server(settings: Settings) -> DoctorFinding:
    at = address_of(settings.host, settings.port)
    with closing(Client(at)) as client:
        try:
            if version := client.version():
                text = f"in use by a running server, which answers at {at} (version {version})"
                return DoctorFinding("database", text)
            reason = f"no server answers at {at}"
        except RicordoError as error:
            reason = str(error)
    return _warning("database", f"in use by a running server; {reason}")


def _jobs(settings: Settings, database: DatabaseStatus) -> Iterator[DoctorFinding]:
    try:
        queue, is_served = _queue(settings, database)
    except RicordoError as error:
        yield _warning("jobs", str(error))
        return
    if queue is None:
        return
    late = queue["oldest_wait_seconds"]
    waiting = f"{queue['waiting']} waiting" + (f" (one for {late:.0f} s)" if late >= 1 else "")
    # If no server runs, a killed server left these jobs. The next server will run them again.
    running = f"{queue['running']} {'running' if is_served else 'interrupted'}"
    if not is_served and not queue["running"]:
        running = "0 running"
    text = f"{waiting}, {running}, {queue['failed']} failed recently"
    yield DoctorFinding("jobs", text, "warning" if is_served and late > _LONG_WAIT else "ok")
    for job in queue["errors"]:
        tries = f"{job['attempts']} of {job['most_attempts']} tries"
        yield _warning("job error", f"{job['kind']} ({tries}): {job['type']}: {job['message']}")


def _keys(settings: Settings, database: DatabaseStatus) -> DoctorFinding:
    """Report the callers that may use a server with these settings."""
    has_stored_keys = False
    needing = ""
    if database.state == "broken":
        return _warning("keys", "not known: the database cannot be read")
    if _is_current(database) or database.state == "in use":
        try:
            with read_beside(settings) as tx:
                has_stored_keys = keys.are_any(tx)
                needing = keys.needing_secret(tx)
        except RicordoError as error:
            return _warning("keys", f"not examined: {error}")
    try:
        if (settings.data_dir / FILE).exists():
            load_secret(settings.data_dir)
        else:
            require_unneeded(settings.data_dir, needing)
    except RicordoError as error:
        return _wrong("secret key", str(error))
    kinds = []
    if settings.api_key:
        kinds.append("RICORDO_API_KEY")
    if has_stored_keys:
        kinds.append("stored keys")
    if kinds:
        return DoctorFinding("keys", f"every request needs one: {' and '.join(kinds)}")
    if settings.host in LOOPBACK and settings.oidc_issuer:
        return DoctorFinding("keys", "none, but RICORDO_OIDC_ISSUER: every request needs a login")
    if settings.host in LOOPBACK:
        return DoctorFinding("keys", "none: everybody on this machine is the administrator")
    return _wrong(
        "keys",
        f"none, and RICORDO_HOST={settings.host} can be reached from other machines, so the server "
        "does not start. Create one with `ricordo key create --user NAME --role admin`, or set "
        "RICORDO_API_KEY.",
    )


def _queue(settings: Settings, database: DatabaseStatus) -> tuple[Json | None, bool]:
    """Return the job queue (None if unknown), and whether a server runs the jobs."""
    if database.state == "in use":
        with running_server(settings) as client:
            return client.ask("GET", "/v1/jobs/queue") if client else None, True
    if not _is_current(database):
        return None, False
    with read_beside(settings) as tx:
        queue = read_queue(tx, None)
    return QueueResponse.of(queue), database.servers > 0


async def _models(
    settings: Settings, providers: ProviderSettings, plugins: Plugins
) -> list[DoctorFinding]:
    models = open_models(settings, providers, plugins)
    try:
        default = await models.find_default()
        local_models = await models.find_local()
        listed = await models.list() if local_models or providers.ollama_base_url else []
        local = _local_models(settings, [model.handle for model in local_models])
        windows = _small_windows([model for model in listed if model.endpoint_type == "ollama"])
        handle = default.handle
        embedding = models.embedders.default_handle()
        source = (
            "built in, stores and finds, not a language model"
            if handle == LIBRARIAN
            else default.reason
        )
        if default.fault:
            chosen = [_wrong("default model", line) for line in default.lines]
        else:
            chosen = [
                await _required("default model", f"{handle}: {source}", models.require(handle))
            ]
            chosen += [_warning("better model", line) for line in default.lines]
        if embedding is None:
            reason = "pip install 'ricordo[embeddings]' adds meaning"
            if settings.embedding:
                reason = "RICORDO_EMBEDDING"
            search = DoctorFinding("embedding", f"none: search uses words only ({reason})")
        else:
            search = await _required("embedding", embedding, models.embedders.require(embedding))
        return [local, *windows, *chosen, search]
    finally:
        await models.close()


async def _required(name: str, text: str, check: Awaitable[object]) -> DoctorFinding:
    try:
        await check
    except RicordoError as error:
        return _wrong(name, str(error))
    return DoctorFinding(name, text)


def _local_models(settings: Settings, handles: list[str]) -> DoctorFinding:
    if not settings.find_local_models:
        return DoctorFinding("local models", "not looked for (RICORDO_FIND_LOCAL_MODELS)")
    counts = Counter(handle.partition("/")[0] for handle in handles)
    counted = [f"{server} ({count})" for server, count in sorted(counts.items())]
    return DoctorFinding(
        "local models", ", ".join(counted) or "no model server found on this machine"
    )


def _small_windows(models: list[ModelInfo]) -> Iterator[DoctorFinding]:
    small = [
        f"{model.handle} ({model.context_window:,} tokens)"
        for model in models
        if model.context_window < _SMALL_WINDOW
    ]
    advice = (
        f"Start Ollama with OLLAMA_CONTEXT_LENGTH={_SMALL_WINDOW * 2} or more, "
        "and set it for Ricordo too."
    )
    if small:
        yield _warning("windows", f"small for an agent: {', '.join(small)}. {advice}")


def _is_installed(package: str) -> bool:
    with suppress(PackageNotFoundError):
        return bool(version(package))
    return False


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def repair_database() -> bool:
    """Repair damaged conversations and sizes of histories; return True if all are now sound.

    The result is False if a conversation has a running turn and was left as it is.

    Raises:
        NotFound: There is no database.
        Conflict: On SQLite, a server has the database open.
        Unavailable: The database cannot be used.
    """
    settings, _ = load_settings()
    require_database(settings, "nothing to repair")
    count, repairs, corrected_sizes = asyncio.run(_repair(settings))
    for conversation in repairs:
        state = " (busy, left as it is)" if conversation.is_busy else ""
        typer.echo(f"{conversation.conversation_id}{state}")
        for fault in conversation.faults:
            typer.echo(f"    {fault}")
    busy = sum(conversation.is_busy for conversation in repairs)
    outcome = "nothing to repair"
    if repairs:
        outcome = f"{len(repairs) - busy:,} repaired, {busy:,} busy"
    noun = "conversation" if count == 1 else "conversations"
    typer.echo(f"{count:,} {noun} in {address(settings)}: {outcome}.")
    if corrected_sizes:
        typer.echo(
            f"The sizes of {corrected_sizes:,} histories of memory were wrong, and are right now."
        )
    if busy:
        typer.echo("A turn is running in the busy ones. Repeat this when it has ended.")
    return not busy


def examine_all(tx: Transaction, *, is_alone: bool) -> tuple[int, list[Repair]]:
    """Return the number of conversations and the damaged ones; change nothing.

    Args:
        tx: The transaction, or a read.
        is_alone: No server uses the database, so no open run is alive.
    """
    damaged = [Repair(agent_id, (LOST,)) for agent_id in damage.agents_without_conversation(tx)]
    count = 0
    after = 0
    while portion := damage.some_conversations(tx, after):
        count += len(portion)
        after = portion[-1][0]
        for _, conversation_id in portion:
            conversation = repair(tx, conversation_id, is_alone=is_alone, is_dry=True)
            if conversation.faults:
                damaged.append(conversation)
    return count, damaged


async def repair_all(store: Store, *, is_alone: bool) -> tuple[int, list[Repair]]:
    """Repair every damaged conversation, each in a separate transaction.

    Agents and conversations that a server deletes meanwhile are left out.

    Args:
        store: The database.
        is_alone: No server uses the database, so no open run is alive.

    Returns:
        The number of conversations, and those that were damaged.
    """
    count, damaged = await store.read(lambda tx: examine_all(tx, is_alone=is_alone))
    repairs: list[Repair] = []
    for examined in damaged:
        with suppress(NotFound):
            repairs.append(
                await store.write(partial(_repair_one, examined=examined, is_alone=is_alone))
            )
    return count + sum(repair.faults == (LOST,) for repair in repairs), repairs


def _repair_one(tx: Transaction, examined: Repair, *, is_alone: bool) -> Repair:
    if examined.faults == (LOST,):
        # With this fault, the id is that of an agent without a conversation.
        return Repair(restore_default_conversation(tx, examined.conversation_id), (LOST,))
    return repair(tx, examined.conversation_id, is_alone=is_alone)


async def _repair(settings: Settings) -> tuple[int, list[Repair], int]:
    store = await asyncio.to_thread(open_store, settings)
    try:
        count, repairs = await repair_all(store, is_alone=not settings.postgres_url)
        return count, repairs, await store.write(history_size.recount_all)
    finally:
        await store.close()
