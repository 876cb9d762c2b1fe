"""The tables of notifications: recipients, sent messages, links and visits."""

import sqlalchemy as sa

from ricordo.domain.clock import DAY
from ricordo.domain.ids import new_id
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.features.memory_care.notifications import queries
from ricordo.features.memory_care.notifications.queries import DecisionLink, Preferences
from ricordo.storage import proposals as stored_proposals
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.schema.core_tables import organizations, users
from ricordo.storage.schema.memory_tables import chains, proposals
from tests.seams.stores import ManualClock


class Owners:
    """Writes users with proposals that wait for them."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._now = tx.clock.now()

    def add(self, count: int = 1, organization_id: str = LOCAL_ORGANIZATION, **user: object) -> str:
        """Write a user with this many proposals, and return the user's id."""
        owner_id = new_id("user")
        chain_id = new_id("chain")
        of_organization = {"organization_id": organization_id, "created_at": self._now}
        row = {"id": owner_id, "name": "Ada", "email": "ada@example.org", "updated_at": self._now}
        self._tx.run(sa.insert(users), {**of_organization, **row, **user})
        chain = {"id": chain_id, "owner_kind": "user", "owner_id": owner_id}
        self._tx.run(sa.insert(chains), {**of_organization, **chain})
        texts = {"label": "student", "status": "open", "reasoning": ""}
        author = {"author_kind": "agent", "author_id": "agent-1", "author_name": "Nina"}
        rows = [
            {"id": new_id("proposal"), "chain_id": chain_id, **of_organization, **texts, **author}
            for _ in range(count)
        ]
        self._tx.run(sa.insert(proposals), rows)
        self._now += 1
        return owner_id

    def choose(self, owner_id: str, **choice: object) -> None:
        row = Preferences(LOCAL_ORGANIZATION, owner_id, user_id=owner_id, **choice)  # type: ignore[arg-type]
        queries.save(self._tx, row)


async def test_owners_with_a_disabled_channel_do_not_delay_others(
    store: Store, clock: ManualClock
) -> None:
    def write(tx: Transaction) -> tuple[str, str]:
        owners = Owners(tx)
        for _ in range(60):
            owners.add(count=100)
        owners.choose(owners.add(), email="off")
        owners.choose(owners.add(disabled_at=1), email="immediate")
        owners.choose(owners.add(), email="immediate", retry_at=clock.now() + DAY)
        on = owners.add(count=3)
        owners.choose(on, email="immediate")
        tx.run(sa.insert(organizations), {"id": "org-other", "name": "Other", "created_at": 1})
        member = owners.add(organization_id="org-other")
        queries.save(tx, Preferences("org-other", "org-other", email="daily"))
        return on, member

    on, member = await store.write(write)

    def told(tx: Transaction, default: queries.When = "off") -> list[str]:
        return [owner.owner_id for owner in queries.untold_owners(tx, "email", default)]

    assert await store.read(told) == [on, member]
    assert await store.read(lambda tx: queries.untold_owners(tx, "webhook", "off")) == []
    by_default = await store.read(lambda tx: told(tx, "daily"))
    assert len(by_default) == 62
    first, *_ = await store.read(lambda tx: queries.untold_of(tx, "email", on, 10))

    def tell(tx: Transaction) -> None:
        ids = [row.id for row in queries.untold_of(tx, "email", on, 10)]
        queries.mark_told(tx, "email", on, [*ids, "proposal-gone"])
        queries.mark_told(tx, "email", on, ids)
        queries.note_visit(tx, on)
        queries.note_visit(tx, on)

    clock.advance(1)
    await store.write(tell)
    assert await store.read(told) == [member]
    assert await store.read(lambda tx: stored_proposals.count_waiting_for(tx, on)) == 3

    link = DecisionLink(LOCAL_ORGANIZATION, on, first.id, "hash", clock.now(), clock.now() + DAY)

    def use(tx: Transaction) -> tuple[bool, bool]:
        queries.add_link(tx, link)
        queries.add_link(tx, link)
        return queries.use_link(tx, link), queries.use_link(tx, link)

    assert await store.write(use) == (True, False)
    figures = await store.read(queries.figures)
    assert figures.never_seen == 6004
