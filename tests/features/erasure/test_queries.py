"""Rows of a forgotten user: what others' memory is made of stays whole without them."""

from dataclasses import replace
from pathlib import Path

import pytest

from ricordo.domain.block import Chain
from ricordo.domain.scope import LOCAL_ORGANIZATION, Actor, Scope
from ricordo.errors import NotFound
from ricordo.features.erasure import queries
from ricordo.features.erasure.receipts import Erasure
from ricordo.features.git.adoption import adopt
from ricordo.features.git.objects import GitObject
from ricordo.features.git.push import Push
from ricordo.features.git.repository import refreshed
from ricordo.memory.proposals import ProposalDraft, propose
from ricordo.storage import blobs, blocks, versions
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from tests.seams import make
from tests.support.git import commit_of, fsck

BOB = Actor("user", "user-bob", "Bob")
THEIRS, MERGED, ALONE = "Name: Ada B.", "Name: Ada Byron", "Name: Augusta"


async def pushed(store: SqliteStore, chain: Chain, tip: bytes, new: dict[bytes, GitObject]) -> Chain:
    adoption = Push(new, lambda _: None).adoption(chain.head, tip)
    return await store.write(lambda tx: adopt(tx, Scope(), chain.id, adoption, make.change_metadata()))


async def test_a_text_that_also_came_with_a_merge_of_the_owners_outlives_its_proposal(
    store: SqliteStore, tmp_path: Path
) -> None:
    chain = make.chain("user", "user-1")
    await store.write(lambda tx: versions.insert_chain(tx, chain))
    root, new = commit_of({"human": "Name: Ada"})
    after = await pushed(store, chain, root, new)

    def offer(tx: Transaction) -> list[bytes]:
        block = blocks.labelled(tx, chain.id, "human")
        metadata = replace(make.change_metadata(), author=BOB)
        made = []
        for label, text in (("human", THEIRS), ("other", ALONE)):
            propose(
                tx,
                ProposalDraft(chain.id, LOCAL_ORGANIZATION, label, text, block if label == "human" else None),
                metadata,
            )
            made.append(blobs.put(tx, chain.id, text, None)[0])
        return made

    theirs, alone = await store.write(offer)
    # She fetches his branch, and merges it with a text of her own.
    side, more = commit_of({"human": THEIRS}, root)
    tip, merge = commit_of({"human": MERGED}, root, side)
    await pushed(store, after, tip, new | more | merge)

    done = Erasure(
        id="receipt-1", user_id=BOB.id, organization_id=LOCAL_ORGANIZATION, subject="", names=[], asked_at=""
    )
    found, _ = await store.read(lambda tx: queries.find_portion(tx, queries.proposals_of(BOB.id)))
    await store.write(lambda tx: queries.purge_proposals(tx, done, found))
    assert done.removed == {"proposals": 2, "blobs": 1}
    assert await store.read(lambda tx: blobs.read(tx, chain.id, theirs)) == THEIRS
    with pytest.raises(NotFound):
        await store.read(lambda tx: blobs.read(tx, chain.id, alone))
    assert fsck(await refreshed(store, tmp_path, chain.id)) == ""
