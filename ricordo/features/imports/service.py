"""Chats and memories from an export, into the conversations and the archive of one agent, for one user.

Ids are made of those in the export, and each chat is noted when it is whole: an import that was killed goes on, the same file
again changes nothing, and a later export brings what was said since. Nothing in it is trusted.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from ricordo.agents.conversations import system_message
from ricordo.agents.lifecycle import AgentSpec, insert_agent, prepare
from ricordo.domain.agent import Conversation
from ricordo.domain.job import Report
from ricordo.domain.message import Message, ReasoningPart, TextPart
from ricordo.domain.passage import LONGEST_TAG, MOST_TAGS, Passage
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, Forbidden, Invalid, NotFound
from ricordo.features.imports import queries
from ricordo.features.imports.chat_files import TITLES, ExportedChat, SkippedMember, read_chats
from ricordo.features.imports.queries import Outcome
from ricordo.memory.step_commit import file_passages
from ricordo.runtime import Runtime
from ricordo.search.index import insert_messages
from ricordo.storage import agents, archives, blocks, conversations, messages, users
from ricordo.storage.engine.store import Transaction

_BATCH = 200  # messages of one transaction
_LETTERS = 4  # of a token, about


@dataclass(frozen=True, slots=True)
class Target:
    """Where an export goes: to an agent, for the scope's user. `source` is the name under which it is known.

    Chats and memories may come in one file: whoever may archive nothing brings the chats alone.
    """

    scope: Scope
    kind: str
    agent_id: str
    source: str
    takes_memories: bool = True


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise NotFound(f"There is no file {path}. Name the file that was exported.") from None
    except OSError as error:
        raise Invalid(
            f"{path} cannot be read: {error.strerror}. Name the file that was exported."
        ) from error


async def scope_for(runtime: Runtime, user: str | None) -> Scope:
    """Return the scope of the operator of the server, who acts for this user."""
    if user is None:
        return Scope()
    return Scope().acting_for(
        await runtime.store.write(lambda tx: users.find_or_make(tx, Scope(), user))
    )


async def target_of(runtime: Runtime, scope: Scope, kind: str, agent_id: str | None) -> Target:
    """Return where an export of this kind goes: to this agent, or to one that is made for it. Raises NotFound."""
    organization, user = scope.organization_id, scope.subject or ""
    id = agent_id or queries.made_id(organization, "agent", kind, user)
    target = Target(scope, kind, id, f"{kind}:{id}:{user}")
    if agent_id:
        await runtime.store.read(lambda tx: agents.load(tx, scope, id))
        return target
    if await runtime.store.read(lambda tx: agents.find(tx, scope, id) is not None):
        return target
    asked = AgentSpec(
        id=id,
        name=TITLES[kind],
        user=scope.subject,
        description=f"Made for what was in {TITLES[kind]}.",
    )
    spec, info = await prepare(runtime, scope, asked)

    def make(tx: Transaction) -> None:
        if agents.find(tx, scope, id) is None:
            insert_agent(tx, runtime, scope, spec, info)
            queries.forget_items(tx, organization, target.source)  # of one that was deleted

    await runtime.store.write(make)
    return target


async def import_chats(
    runtime: Runtime, target: Target, file: IO[bytes], report: Report
) -> dict[str, Any]:
    """Take what is in the file; returns the report. Raises Invalid where it cannot be read to its end, or nothing of it."""
    organization, left = target.scope.organization_id, Outcome()
    await runtime.organization_providers.of(organization)
    done = await runtime.store.read(lambda tx: queries.done_items(tx, organization, target.source))
    chats, read, what = (
        read_chats(target.kind, file),
        0,
        "memories" if target.kind == "mem0" else "chats",
    )
    unreadable: list[str] = []
    while (chat := await asyncio.to_thread(next, chats, None)) is not None:
        if isinstance(chat, SkippedMember):
            left.leave(
                "files of the export",
                chat.name,
                "there are no chats and no memories in it that can be taken",
            )
            continue
        read += 1
        if isinstance(chat, str):
            left.leave(what, f"no. {read}", chat)
            unreadable.append(chat)
        elif chat.memory is not None and not target.takes_memories:
            left.leave(
                "memories",
                "",
                "your key lacks the scope archives:write, so it can archive no memories",
            )
        elif done.get(chat.id) != _state_of(chat):
            try:
                await _take(runtime, target, chat)
            except (Invalid, Conflict, NotFound, Forbidden) as error:
                left.leave(what, chat.title, str(error))
        report(read, read + 1)
    report(read, read)
    await runtime.store.write(
        lambda tx: queries.note_refused(tx, target.scope, target.source, left)
    )
    if unreadable and len(unreadable) == read:
        reason, count = Counter(unreadable).most_common(1)[0]
        of_all = "all of it" if count == read else f"{count} of {read} parts"
        raise Invalid(
            f"Nothing in this file could be read as an export of {TITLES[target.kind]}. Of {of_all}: {reason}."
        )
    return await runtime.store.read(lambda tx: queries.report_of(tx, organization, target.source))


def _state_of(chat: ExportedChat) -> str:
    """What changes when the chat goes on."""
    return f"{len(chat.messages)}/{chat.messages[-1].id}" if chat.messages else ""


async def _take(runtime: Runtime, target: Target, chat: ExportedChat) -> None:
    if chat.memory is not None:
        await runtime.store.write(partial(_insert_memory, target=target, chat=chat))
        return
    said = _messages(target, chat, runtime.store.clock.now())
    last = max(len(said) - 1, 0) // _BATCH * _BATCH
    for start in range(0, last, _BATCH):
        some = said[start : start + _BATCH]
        await runtime.store.write(
            partial(_insert, runtime=runtime, target=target, chat=chat, said=said, some=some)
        )
    await runtime.store.write(
        partial(_finish, runtime=runtime, target=target, chat=chat, said=said, some=said[last:])
    )


def _messages(target: Target, chat: ExportedChat, now: int) -> list[Message]:
    """The messages as they are stored. A time that is missing, or goes back, is that of the message before."""
    organization, made, at = target.scope.organization_id, [], 0
    at = next((one.at for one in chat.messages if one.at), None) or chat.at or now
    for one in chat.messages:
        at = max(at + 1, one.at or 0)
        thoughts = [ReasoningPart(one.thoughts)] if one.thoughts else []
        made.append(
            Message(
                id=queries.made_id(organization, "message", target.source, chat.id, one.id),
                agent_id=target.agent_id,
                conversation_id=_conversation_id(target, chat),
                role="user" if one.role == "user" else "assistant",
                parts=(*thoughts, TextPart(one.text)) if one.text else tuple(thoughts),
                created_at=at,
                organization_id=organization,
                user_id=target.scope.subject,
                model=one.model,
                is_untrusted=True,
            )
        )
    return made


def _conversation_id(target: Target, chat: ExportedChat) -> str:
    return queries.made_id(target.scope.organization_id, "conv", target.source, chat.id)


def _insert(
    tx: Transaction,
    runtime: Runtime,
    target: Target,
    chat: ExportedChat,
    said: Sequence[Message],
    some: Iterable[Message],
) -> Conversation:
    """Store those messages that are not there yet, in their conversation, which is made where it is missing."""
    scope, id = target.scope, _conversation_id(target, chat)
    conversation = conversations.get(tx, id)
    if conversation is None:
        state, at = (
            agents.load(tx, scope, target.agent_id),
            said[0].created_at - 1 if said else tx.clock.now(),
        )
        begun = Conversation(
            id,
            scope.organization_id,
            target.agent_id,
            user_id=scope.subject,
            summary=chat.title or None,
            created_by=scope.user_id,
            created_at=at,
            updated_at=at,
            message_count=1,
        )
        seen = blocks.of_agent(
            tx, target.agent_id, scope.subject, state.agent.course, memory_id=state.agent.memory_id
        )
        prompt, key = system_message(tx, runtime, replace(state, conversation=begun, blocks=seen))
        conversation = replace(begun, window=(prompt.id,), prompt_key=key)
        conversations.insert_one(tx, conversation)
        insert_messages(tx, [replace(prompt, created_at=at)])
    there = {one.id for one in messages.by_ids(tx, [one.id for one in some])}
    new = [one for one in some if one.id not in there]
    insert_messages(tx, new)
    if new:
        conversations.add_past(tx, id, len(new), new[-1].created_at)
    return conversation


def _finish(
    tx: Transaction,
    runtime: Runtime,
    target: Target,
    chat: ExportedChat,
    said: Sequence[Message],
    some: Sequence[Message],
) -> None:
    """Store the last messages, put the newest that fit into the window, and note the chat."""
    outcome = Outcome({"chats": 1, "messages": len(said)}, chat.left.left_out)
    if said:
        conversation = _insert(tx, runtime, target, chat, said, some)
        room = (
            agents.load(tx, target.scope, target.agent_id, conversation.id).agent.context_window
            * _LETTERS
            // 2
        )
        newest: list[str] = []
        for one in reversed(said[-_BATCH:]):
            room -= len(one.text)
            if room < 0:
                break
            newest.insert(0, one.id)
        # Where the conversation went on here, its window is what it made of it.
        if {*conversation.window[1:]} <= {one.id for one in said}:
            conversations.change(tx, conversation.id, window=[conversation.window[0], *newest])
    _note(tx, target, chat, outcome)


def _insert_memory(tx: Transaction, target: Target, chat: ExportedChat) -> None:
    scope, given = target.scope, chat.memory or {}
    id = queries.made_id(scope.organization_id, "passage", target.source, chat.id)
    outcome = Outcome({"memories": 1})
    if not archives.passages_by_ids(tx, [id]):
        state, now = agents.load(tx, scope, target.agent_id), tx.clock.now()
        tags = [tag[:LONGEST_TAG] for tag in dict.fromkeys((target.kind, *given["tags"]))][
            :MOST_TAGS
        ]
        passage = Passage(
            id, scope.organization_id, "", given["text"], tuple(tags), given["metadata"]
        )
        owned = replace(passage, user_id=scope.subject, created_by=scope.user_id, is_untrusted=True)
        file_passages(tx, state, [replace(owned, created_at=chat.at or now, updated_at=now)])
    _note(tx, target, chat, outcome)


def _note(tx: Transaction, target: Target, chat: ExportedChat, outcome: Outcome) -> None:
    organization, state = target.scope.organization_id, _state_of(chat)
    queries.forget_items(tx, organization, target.source, chat.id)
    subject = target.scope.subject
    queries.insert_item(
        tx, target.scope, target.source, chat.id, outcome, state=state, user_id=subject
    )
