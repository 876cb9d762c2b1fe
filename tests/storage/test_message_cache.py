"""Cached messages of windows always agree with the database, and stay within the limit of bytes."""

import random
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
from sqlalchemy import text

from ricordo.agents.lifecycle import reset_messages
from ricordo.domain.agent import AgentState
from ricordo.domain.ids import new_id
from ricordo.domain.message import (
    EventPart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    parts_from_json,
    parts_to_json,
)
from ricordo.domain.scope import Scope
from ricordo.search.index import insert_messages, rewrite_message
from ricordo.storage import agents, conversations, messages
from ricordo.storage.engine.postgres import PostgresStore, open_postgres
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import SqlStore, Transaction, to_json
from ricordo.storage.message_cache import (
    MOST_BYTES_OF_ONE,
    MessageCache,
    read_window,
    size_of,
)
from tests.agents.conftest import open_stage, stage
from tests.seams import make
from tests.seams.stage import Hooks, Stage
from tests.seams.stores import ManualClock
from tests.support.postgres import server

__all__ = ["open_stage", "stage"]
SECRET = "The garden gate's number is 4711."
EDITED = "The garden has a gate."
Store = SqliteStore | PostgresStore


def as_another_program(store: SqlStore, sql: str, **parameters: Any) -> None:
    """Change the database through a connection that the store does not know."""
    with store.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("BEGIN")
        connection.execute(text(sql), parameters)


# --- a message that is gone or changed is in no later prompt ---


async def edit(stage: Stage, message: Message) -> None:
    changed = replace(message, parts=(TextPart(EDITED),))
    await stage.store.write(lambda tx: rewrite_message(tx, changed))


async def edit_elsewhere(stage: Stage, message: Message) -> None:
    parts = parts_to_json((TextPart(EDITED),))
    sql = "UPDATE messages SET parts = :parts WHERE id = :id"
    as_another_program(stage.store, sql, id=message.id, parts=to_json(parts))


async def delete_elsewhere(stage: Stage, message: Message) -> None:
    as_another_program(stage.store, "DELETE FROM messages WHERE id = :id", id=message.id)


async def reset(stage: Stage, message: Message) -> None:
    await reset_messages(stage.runtime, Scope(), message.agent_id)


@pytest.mark.parametrize("change", [edit, edit_elsewhere, delete_elsewhere, reset])
async def test_a_changed_message_is_in_no_later_prompt(
    stage: Stage, change: Callable[[Stage, Message], Awaitable[None]]
) -> None:
    agent = await stage.agent()
    stage.lines += ["Noted.", "Hello."]
    await stage.say(agent, SECRET)
    await stage.say(agent)
    assert SECRET in prompt(stage)
    secret = next(message for message in await stage.history(agent) if message.text == SECRET)
    await change(stage, secret)
    stage.lines += ["Hello."]
    await stage.say(agent)
    assert SECRET not in prompt(stage)
    assert (EDITED in prompt(stage)) == (change in (edit, edit_elsewhere))


def prompt(stage: Stage) -> str:
    return "\n".join(message.text for message in stage.model.requests[-1].messages)


async def test_a_change_that_is_rolled_back_leaves_the_prompt_unchanged(stage: Stage) -> None:
    agent = await stage.agent()
    stage.lines += ["Noted.", "Hello.", "Hello."]
    await stage.say(agent, SECRET)
    await stage.say(agent)
    (secret,) = [message for message in await stage.history(agent) if message.text == SECRET]

    def fail(tx: Transaction) -> None:
        rewrite_message(tx, replace(secret, parts=(TextPart(EDITED),)))
        read_window(tx, agents.load(tx, Scope(), agent))
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await stage.store.write(fail)
    await stage.say(agent)
    assert SECRET in prompt(stage)
    assert EDITED not in prompt(stage)


_WRITER = """
import sys
address, id, commits = sys.argv[1:]
if address.startswith("postgresql"):
    import psycopg
    connection = psycopg.connect(address)
    connection.execute("DELETE FROM messages WHERE id = %s", (id,))
else:
    import sqlite3
    connection = sqlite3.connect(address)
    connection.execute("DELETE FROM messages WHERE id = ?", (id,))
if commits == "yes":
    connection.commit()
print("done", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("commits", ["yes", "no"])
async def test_a_process_killed_while_it_deletes_has_deleted_all_or_nothing(
    stage: Stage, tmp_path: Path, commits: str
) -> None:
    agent = await stage.agent()
    stage.lines += ["Noted.", "Hello.", "Hello."]
    await stage.say(agent, SECRET)
    await stage.say(agent)
    (secret,) = [message for message in await stage.history(agent) if message.text == SECRET]
    is_file = isinstance(stage.store, SqliteStore)
    address = str(tmp_path / "ricordo.db") if is_file else server().shared_database()
    command = [sys.executable, "-c", _WRITER, address, secret.id, commits]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: ASYNC220 - nothing else runs
        assert process.stdout
        assert process.stdout.readline() == b"done\n"
        process.send_signal(signal.SIGKILL)
    await stage.say(agent)
    assert (SECRET in prompt(stage)) == (commits == "no")


# --- the cached window and the database, whatever happens ---


class Shared:
    """Agents with conversations that several stores change and read at random."""

    def __init__(self, seed: int, stores: list[SqlStore]) -> None:
        self.random = random.Random(seed)  # noqa: S311 - not for keys
        self.stores = stores
        self.states: list[AgentState] = []
        self.windows: dict[str, list[str]] = {}
        self.count = 0

    async def open(self) -> "Shared":
        """Store three agents with two conversations each."""
        for number in range(3):
            state = await make.stored_agent(self.stores[0], make.agent(str(number)))
            window = state.conversation.window
            other = make.conversation(state.agent, id=new_id("conv"), window=window)
            await self.stores[0].write(lambda tx, new=other: conversations.insert_one(tx, new))
            for conversation in (state.conversation, other):
                self.states.append(replace(state, conversation=conversation))
                self.windows[conversation.id] = list(window)
        return self

    async def step(self) -> None:
        """Change something, by one of the stores or by another program."""
        state = self.random.choice(self.states)
        window = self.windows[state.conversation.id]
        action = self.random.choice((self.say, self.say, self.edit, self.remove, self.compact))
        await action(state, window)
        ids = list(window)
        await self.random.choice(self.stores).write(
            lambda tx: conversations.save_window(tx, state.conversation.id, ids, "", added=0)
        )

    async def say(self, state: AgentState, window: list[str]) -> None:
        self.count += 1
        role = self.random.choice(("user", "assistant"))
        new = make.message(
            state.agent,
            f"Text {self.count}",
            role,  # type: ignore[arg-type]
            conversation_id=state.conversation.id,
        )
        await self.random.choice(self.stores).write(lambda tx: insert_messages(tx, [new]))
        window.append(new.id)

    async def edit(self, _state: AgentState, window: list[str]) -> None:
        for id in self.random.sample(window[1:], k=min(2, len(window) - 1)):
            self.count += 1
            parts = to_json(parts_to_json((TextPart(f"Edit {self.count}"),)))
            sql = "UPDATE messages SET parts = :parts WHERE id = :id"
            as_another_program(self.random.choice(self.stores), sql, id=id, parts=parts)

    async def remove(self, _state: AgentState, window: list[str]) -> None:
        if len(window) > 1:
            sql = "DELETE FROM messages WHERE id = :id"
            as_another_program(self.stores[0], sql, id=self.random.choice(window[1:]))

    async def compact(self, _state: AgentState, window: list[str]) -> None:
        if self.random.random() < 0.3:
            del window[1 : len(window) // 2]
        else:
            # A fork's window has messages of another conversation, here also of another agent.
            others = self.random.choice(list(self.windows.values()))
            window += [id for id in others[1:3] if id not in window]

    async def require_equal(self) -> None:
        for store in self.stores:
            for state in self.states:
                cached, stored = await store.read(partial(read_twice, state=state))
                assert cached == stored


def read_twice(tx: Transaction, state: AgentState) -> tuple[list[Message], list[Message]]:
    """Return the window from the cache, and from the database alone."""
    now = agents.load(tx, Scope(), state.agent.id, state.conversation.id)
    return read_window(tx, now), messages.by_ids(tx, now.conversation.window)


async def test_a_window_from_the_cache_equals_the_stored_one_after_any_change(
    store: Store, clock: ManualClock, tmp_path: Path
) -> None:
    stores: list[SqlStore] = [store]
    if isinstance(store, PostgresStore):
        url = server().shared_database()
        stores.append(open_postgres(url, connections=2, clock=clock, backups=tmp_path))
    try:
        for seed in range(2):
            shared = await Shared(seed, stores).open()
            for _ in range(40):
                await shared.step()
                if shared.random.random() < 0.4:
                    await shared.require_equal()
            await shared.require_equal()
    finally:
        for other in stores[1:]:
            await other.close()


@pytest.fixture
async def second(stage: Stage, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Stage | None]:
    """Another server on the same PostgreSQL."""
    if not isinstance(stage.store, PostgresStore):
        yield None
        return
    url = server().shared_database()
    store = open_postgres(url, connections=2, clock=clock, backups=tmp_path)
    other = await Stage(store, tmp_path, Hooks()).open()
    yield other
    await other.close()
    await store.close()


async def test_two_servers_see_each_others_changes(stage: Stage, second: Stage | None) -> None:
    if second is None:
        pytest.skip("SQLite has one server")
    agent = await stage.agent()
    servers = (stage, second)
    for number in range(4):
        writer, reader = servers[number % 2], servers[1 - number % 2]
        canary = f"{SECRET} {number}"
        writer.lines += ["Noted."]
        await writer.say(agent, canary)
        reader.lines += ["Hello."]
        await reader.say(agent)
        assert canary in prompt(reader)
        (secret,) = [row for row in await stage.history(agent) if row.text == canary]
        await edit(writer, secret)
        for server_stage in servers:
            server_stage.lines += ["Hello."]
            await server_stage.say(agent)
            assert canary not in prompt(server_stage)


# --- the count of changes ---


async def test_every_statement_that_changes_messages_is_counted(store: Store) -> None:
    state = await make.stored_agent(store)
    other = await make.stored_agent(store, make.agent("Other"))
    new = [make.message(state.agent, f"Text {n}") for n in range(3)]
    await store.write(lambda tx: insert_messages(tx, new))
    counts = [await changes(store, state)]
    for sql in (
        "UPDATE messages SET text = 'Another.' WHERE role = 'user'",
        "UPDATE messages SET user_id = NULL WHERE id = :id",
        "DELETE FROM messages WHERE id = :id",
        "DELETE FROM messages WHERE role = 'user'",
    ):
        as_another_program(store, sql, **({"id": new[0].id} if ":id" in sql else {}))
        counts.append(await changes(store, state))
    assert counts == sorted(set(counts))
    assert await changes(store, other) == 0


async def changes(store: SqlStore, state: AgentState) -> int:
    loaded = await store.read(lambda tx: agents.load(tx, Scope(), state.agent.id))
    return loaded.message_changes


async def test_system_messages_are_not_counted_and_not_cached(store: Store) -> None:
    state = await make.stored_agent(store)
    as_another_program(store, "UPDATE messages SET text = 'Other.' WHERE role = 'system'")
    assert await changes(store, state) == 0
    window = await store.write(lambda tx: read_window(tx, state))
    assert [message.role for message in window] == ["system"]
    cache = await store.read(lambda tx: tx.cache[MessageCache])
    assert cache.size == 0


# --- the bounds ---


def long_message(seed: int) -> Message:
    """A message of random parts and lengths."""
    chance = random.Random(seed)  # noqa: S311 - not for keys
    letters = chance.choice(("a", "ä", "Ж", "🐝"))
    word = letters * chance.choice((1, 30, 2_000))
    parts: dict[str, tuple[Part, ...]] = {
        "text": (TextPart(word),),
        "event": (EventPart(word),),
        "call": (TextPart(word), ToolCallPart(f"call-{seed}", "roll_dice", word)),
        "result": (ToolReturnPart(f"call-{seed}", "roll_dice", "success", word, sources=(word,)),),
        "picture": (ImagePart("image/png", data=word),),
    }
    stored = parts_to_json(chance.choice(list(parts.values())))
    agent = make.agent()
    # Parts that are read from the database have separate texts, so these do too.
    return make.message(agent, parts=parts_from_json(stored), id=f"message-{seed}")


def test_the_cache_stays_within_its_limit_and_keeps_the_newest_entry() -> None:
    bound = 400_000
    cache = MessageCache(bound)
    chance = random.Random(7)  # noqa: S311 - not for keys
    kept: dict[str, list[Message]] = {}
    for seed in range(1_500):
        id = f"conv-{chance.randrange(40)}"
        window = kept.setdefault(id, [])
        window.append(long_message(seed))
        cache.add(id, (0, 0), window)
        assert cache.size <= bound
        if seed % 100 == 0:
            entries = [cache.get(name, (0, 0)) for name in kept]
            assert cache.size == sum(size_of(one) for entry in entries for one in entry.values())
    assert len(cache.get(id, (0, 0)))
    assert cache.size > bound // 2


def test_the_counted_bytes_roughly_equal_the_memory_used() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        held = [long_message(seed) for seed in range(500)]
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    counted = sum(map(size_of, held))
    assert taken * 0.9 <= counted <= taken * 2.5


def test_a_very_large_message_is_not_cached() -> None:
    agent = make.agent()
    small, large = make.message(agent, "a"), make.message(agent, "a" * MOST_BYTES_OF_ONE)
    cache = MessageCache()
    cache.add("conv-1", (0, 0), [small, large])
    assert list(cache.get("conv-1", (0, 0))) == [small.id]


def test_an_entry_of_another_version_is_dropped_completely() -> None:
    cache = MessageCache()
    message = make.message(make.agent())
    for version in ((0, 1), (1, 0)):
        cache.add("conv-1", (0, 0), [message])
        assert cache.get("conv-1", version) == {}
        assert cache.size == 0
        assert cache.get("conv-1", (0, 0)) == {}


def test_an_entry_does_not_keep_everything_that_left_its_window() -> None:
    cache = MessageCache()
    agent = make.agent()
    for n in range(1_000):
        cache.add("conv-1", (0, 0), [make.message(agent, str(n)), make.message(agent, str(-n))])
    assert len(cache.get("conv-1", (0, 0))) < 300


def test_cached_messages_are_immutable() -> None:
    kinds = [Message, *get_args(Part)]
    for kind in kinds:
        assert is_dataclass(kind)
        assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
        for part_field in fields(kind):
            assert "list" not in str(part_field.type).lower()
            assert "dict" not in str(part_field.type).lower()
