"""Sign-in links on both databases: made, used only once even by two requests, found by address."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from ricordo.domain.clock import DAY
from ricordo.domain.ids import new_id
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, Invalid, NotFound
from ricordo.features.identity.sign_in_links import queries, service
from ricordo.features.identity.sign_in_links.people_list import Person
from ricordo.features.memory_care.notifications.options import NotificationSettings
from ricordo.secret import Secret
from ricordo.storage import agent_lookup
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import SqlStore, Transaction
from ricordo.storage.schema.core_tables import agents, jobs
from tests.seams.stores import ManualClock, overlapped

KEY = b"secret-of-the-installation"
MAIL = NotificationSettings(
    smtp_host="127.0.0.1", mail_from="memory@example.org", public_url="http://memory.example.org"
)


@pytest.fixture
def secret(tmp_path: Path) -> Secret:
    return Secret(tmp_path)


def invite(tx: Transaction, secret: Secret, *people: Person) -> list[service.NewInvitation]:
    return service.invite(tx, Scope(), secret, people, DAY)


async def test_two_concurrent_uses_of_one_link_open_one_session(
    store: SqlStore, secret: Secret
) -> None:
    ada = Person("Ada", "ada@example.org")
    (invitation,) = await store.write(lambda tx: invite(tx, secret, ada))

    def accept(tx: Transaction) -> str:
        key, scope, _ = service.accept(tx, invitation.token, "invitation", KEY, seconds=60)
        assert scope.user_id == invitation.user.id
        return key

    first, second = await overlapped(store, accept, accept)
    assert isinstance(first, str)
    assert isinstance(second, Conflict)
    with pytest.raises(NotFound):
        await store.read(lambda tx: service.open_link(tx, "wrong\0", "invitation"))


async def test_a_name_without_an_address_means_the_same_user_until_the_first_sign_in(
    store: SqlStore, secret: Secret
) -> None:
    anna = Person("Anna")
    (first,) = await store.write(lambda tx: invite(tx, secret, anna))
    (again,) = await store.write(lambda tx: invite(tx, secret, anna))
    assert again.user.id == first.user.id
    with pytest.raises(Conflict, match="expired"):
        await store.read(lambda tx: service.open_link(tx, first.token, "invitation"))
    await store.write(lambda tx: service.accept(tx, again.token, "invitation", KEY, seconds=60))
    with pytest.raises(Invalid, match="another person"):
        await store.write(lambda tx: invite(tx, secret, Person("Bea"), anna))
    other = Person("Anna", user="anna-2")
    (second,) = await store.write(lambda tx: invite(tx, secret, other))
    assert second.user.id != first.user.id
    shown = await store.read(lambda tx: queries.page(tx, Scope(), Page()))
    assert len(shown) == 3


async def test_logins_are_found_by_address_and_limited_in_number(
    store: SqlStore, clock: ManualClock, secret: Secret
) -> None:
    agent = {"id": new_id("agent"), "name": "coach", "metadata": {"course": "essays"}}
    rest = {"agent_type": "letta_v1_agent", "system": "", "model": "x", "timezone": "UTC"}

    def prepare(tx: Transaction) -> tuple[str, str]:
        row = {**agent, **rest, "organization_id": Scope().organization_id}
        row |= {"created_at": 1, "updated_at": 1}
        tx.run(sa.insert(agents), row)
        person = Person("Ada", "Ada@Example.org", "teacher", course="essays")
        (invitation,) = invite(tx, secret, person)
        _, _, link = service.accept(tx, invitation.token, "invitation", KEY, seconds=60)
        return invitation.user.id, service.landing_page(tx, link)

    user_id, landing = await store.write(prepare)
    assert landing == f"/ui/agents/{agent['id']}/chat"
    assert await store.read(lambda tx: agent_lookup.of_course(tx, "org-x", "ess\0ays")) is None

    def ask(tx: Transaction) -> None:
        for address in ("ADA@example.org", "nobody@example.org", "\0"):
            service.begin_logins(tx, secret, address)

    for _ in range(5):
        await store.write(ask)
    is_mail = jobs.c.kind == service.SEND
    sent = await store.read(lambda tx: tx.all(sa.select(jobs.c.payload).where(is_mail)))
    links = [str(row[0]["link_id"]) for row in sent]
    assert len(links) == 3

    def mail(tx: Transaction) -> str:
        message = service.prepare_mail(tx, links[0], secret, MAIL)
        assert message is not None
        queries.note_mail(tx, links[0])
        assert service.prepare_mail(tx, links[0], secret, MAIL) is None
        return str(message.get_content())

    assert "http://memory.example.org/login/link?token=" in await store.write(mail)
    link = await store.read(lambda tx: queries.by_id(tx, links[1]))
    assert link is not None
    assert (link.role, link.user_id) == ("developer", user_id)
    await store.write(lambda tx: queries.note_mail(tx, links[1], "The server refuses it."))
    clock.advance(60 * 24 * 3600)
    # A new invitation deletes old logins.
    await store.write(lambda tx: invite(tx, secret, Person("Bob")))
    assert await store.read(lambda tx: queries.by_id(tx, links[1])) is None
    await store.write(lambda tx: queries.revoke_all_of(tx, user_id))
