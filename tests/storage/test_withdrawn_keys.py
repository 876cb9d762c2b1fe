"""Keys whose work may no longer be done: revoked and expired ones, and the makers of tokens."""

from dataclasses import replace

from sqlalchemy import update

from ricordo.domain.clock import SECOND
from ricordo.domain.ids import new_id
from ricordo.domain.scope import Scope
from ricordo.storage import access_tokens, keys
from ricordo.storage.engine.store import SqlStore, Transaction
from ricordo.storage.keys import ApiKey, KeyDraft
from ricordo.storage.schema.core_tables import api_keys
from tests.seams.stores import ManualClock

SECRET = b"s" * 32


async def test_a_token_is_withdrawn_with_the_key_that_created_it(
    store: SqlStore, scope: Scope, clock: ManualClock
) -> None:
    def make(tx: Transaction) -> tuple[ApiKey, ApiKey, ApiKey]:
        key, _ = keys.create(tx, scope, SECRET, KeyDraft("app", "service", None, ()))
        session, _ = keys.create(
            tx,
            scope,
            SECRET,
            KeyDraft("login", "user", "ada", (), clock.now() + SECOND, kind="session"),
        )
        token = replace(
            key,
            id=new_id("token"),
            kind="token",
            hash="the hash of the token",
            created_by=key.id,
            expires_at=clock.now() + SECOND,
        )
        access_tokens.insert_one(tx, token)
        return key, session, token

    key, session, token = await store.write(make)

    async def withdrawn() -> list[bool]:
        ids = (key.id, session.id, token.id, "key-of-nobody")
        return [await store.read(lambda tx, id=id: keys.is_withdrawn(tx, scope, id)) for id in ids]

    assert await withdrawn() == [False] * 4
    clock.advance(2)  # the login and the token have ended
    assert await withdrawn() == [False] * 4
    revoked = update(api_keys).where(api_keys.c.id == key.id).values(revoked_at=clock.now())
    await store.write(lambda tx: tx.run(revoked))
    assert await withdrawn() == [True, False, True, False]
