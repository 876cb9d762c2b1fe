"""A user's memory with a remote, for tests of every kind of remote.

Owners and agents change the memory, and it is synced.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

from ricordo.domain.remote import Access, Remote
from ricordo.domain.scope import Actor, Scope, User
from ricordo.domain.version import BlockVersion, Proposal
from ricordo.errors import RicordoError
from ricordo.features.sync.remotes import service
from ricordo.memory import approval, user_memory
from ricordo.memory.remote_kind import RemoteKind
from ricordo.memory.user_memory import ProposalOptions, PutOptions, UserMemory
from ricordo.settings import Settings
from ricordo.storage import blocks, history, proposals, remotes, users
from ricordo.storage.engine.store import Store, Transaction

ADA, NINA = Actor("administrator", "user-1", "Ada"), Actor("agent", "agent-1", "Nina")


TUTORS = [Actor("agent", f"agent-{number}", f"Tutor {number}") for number in range(3)]


def set_email(address: str) -> Callable[[Transaction, UserMemory], User]:
    """Give the owner of the memory this e-mail address; return the user."""
    write = users.ROWS.updates("email")

    def work(tx: Transaction, owned: UserMemory) -> User:
        users.lock(tx, owned.user.id)
        user = replace(owned.user, email=address)
        write(tx, user)
        return user

    return work


class Killed(BaseException):
    """The syncing server is killed at this point."""


class SyncedMemory:
    """A user's memory (by default `ada`'s), and its remote once `add` made one."""

    remote: Remote
    user = "ada"

    def __init__(self, store: Store, settings: Settings, kind: RemoteKind, access: Access) -> None:
        self.store, self.settings, self.kind, self.access = store, settings, kind, access

    async def do(
        self, work: Callable[[Transaction, UserMemory], Any], user: str | None = None
    ) -> Any:
        name = user or self.user
        return await self.store.write(
            lambda tx: work(tx, user_memory.open_memory(tx, Scope(), name, makes=True))
        )

    async def put(self, label: str, text: str, user: str | None = None, **options: Any) -> None:
        await self.do(
            lambda tx, owned: user_memory.put(tx, owned, label, text, ADA, PutOptions(**options)),
            user,
        )

    async def propose(
        self, label: str, old: str, new: str, by: Actor = NINA, **options: Any
    ) -> Proposal:
        given = ProposalOptions(**options)
        made: Proposal = await self.do(
            lambda tx, owned: user_memory.propose_edit(tx, owned, label, old, new, by, given)
        )
        return made

    async def approve(self, id: str, body: str | None = None) -> Any:
        return await self.do(
            lambda tx, owned: approval.approve(tx, owned.scope, id, ADA, body=body)
        )

    async def reject(self, id: str) -> Any:
        return await self.do(
            lambda tx, owned: approval.reject(tx, owned.scope, id, ADA, reason="No.")
        )

    async def texts(self) -> dict[str, str]:
        found = await self.do(lambda tx, owned: blocks.of_user(tx, Scope(), owned.user.id))
        return {one.label: one.value for one in found}

    async def text(self, label: str = "human") -> str | None:
        return (await self.texts()).get(label)

    async def versions(self) -> list[BlockVersion]:
        found: list[BlockVersion] = await self.do(
            lambda tx, owned: history.page(tx, owned.chain.id, limit=10_000)
        )
        return found[::-1]

    async def waiting(self) -> list[Proposal]:
        return list(await self.do(lambda tx, owned: proposals.waiting(tx, owned.chain.id)))

    async def add(self, access: Access | None = None, user: str | None = None) -> Remote:
        """Add a remote; the first one becomes the attribute `remote`."""
        name = user or self.user
        made = await service.add(
            self.store, self.settings, Scope(), name, self.kind, access or self.access
        )
        if not hasattr(self, "remote"):
            self.remote = made
        return made

    async def noted(self) -> Remote:
        return await self.store.read(lambda tx: remotes.get(tx, Scope(), self.remote.id))

    async def sync(self, store: Store | None = None) -> Remote:
        if not hasattr(self, "remote"):
            await self.add()
        return await service.sync(store or self.store, self.settings, self.kind, await self.noted())

    async def act(self, chance: Random, labels: Sequence[str]) -> None:
        """Do something random that an owner or an agent can do.

        If it is impossible now, nothing happens.
        """
        label, other = chance.sample(labels, 2)
        number, by, lines = (
            chance.randrange(10**6),
            chance.choice(TUTORS),
            (await self.text(label) or "a\nb\nc").split("\n"),
        )
        waiting = await self.waiting()
        with suppress(RicordoError):
            match chance.randrange(8):
                case 0 | 1:
                    lines[chance.randrange(len(lines))] = f"line {number} 'é\\'"
                    await self.put(
                        label, "\n".join(lines), message=chance.choice([None, f"Say {number}"])
                    )
                case 2 | 3:
                    old, new = chance.choice(lines), f"proposed {number}"
                    await self.propose(
                        label, old, new, by, reasoning="So.", confidence=0.5, replace_all=True
                    )
                case 4 | 5 if waiting:
                    await self.approve(
                        chance.choice(waiting).id, chance.choice([None, None, "settled\nb\nc"])
                    )
                case 6 if waiting:
                    await self.reject(chance.choice(waiting).id)
                case 7 if chance.random() < 0.5:
                    await self.do(lambda tx, owned: user_memory.delete(tx, owned, label, ADA))
                case 7:
                    await self.do(
                        lambda tx, owned: user_memory.rename(tx, owned, label, other, ADA)
                    )
