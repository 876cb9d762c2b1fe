"""The blocks of a memory, each with its text in a form for people."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from ricordo.domain.block import NEVER_REMEMBER, Block, Chain, OwnerKind
from ricordo.domain.block_schema import BlockSchema
from ricordo.domain.scope import Scope, User
from ricordo.domain.version import ChangeMetadata, PolicyDecision
from ricordo.features.web.pages import queries
from ricordo.features.web.pages.block_address import BlockAddress
from ricordo.features.web.pages.memory_text import TextPiece, pieces_of
from ricordo.memory.schemas import Schemas
from ricordo.pages.filters import MOST_MARKDOWN
from ricordo.pages.memory_owner import MemoryOwner
from ricordo.pages.titles import title_of
from ricordo.storage import blocks, conversation_overviews
from ricordo.storage.engine.store import Transaction

# The most pieces of one block on the page of a whole memory; the block's page shows more.
MOST_ON_OVERVIEW = 40
MOST_ON_PAGE = 1_000
# Characters of all texts on one page; later blocks are only named.
_MOST_CHARACTERS = 100_000


@dataclass(frozen=True, slots=True)
class BlockRights:
    """A caller's rights in a block.

    `decision` says if a change is applied, proposed or refused.
    """

    decision: PolicyDecision
    owns: bool
    may_write: bool


@dataclass(frozen=True, slots=True)
class MemorySection:
    """A block on a page of memory.

    `pieces` are empty and `is_long` is set if the text is too long to be shown in pieces. `more` is
    the number of pieces that the page leaves out. `reader` is the name of the only agent or course
    that reads the block; None: all do.
    """

    block: Block
    title: str
    page: str
    line_page: str
    pieces: Sequence[TextPiece]
    more: int
    is_long: bool
    rights: BlockRights
    reader: str | None
    schema: BlockSchema | None

    @property
    def may_edit(self) -> bool:
        return self.rights.may_write and self.rights.decision != "refuse"

    @property
    def decision(self) -> PolicyDecision:
        return self.rights.decision

    @property
    def name(self) -> str:
        """Return the name of the block's elements in a page."""
        return f"block-{self.block.id[-12:]}"

    @property
    def forget_page(self) -> str:
        """Return the page that lists the items that mention a line of a user's block.

        Returns "" for other blocks.
        """
        person, _, _ = self.line_page.partition("/line/")
        return f"{person}/forget-one" if person.startswith("/ui/people/") else ""

    @property
    def version(self) -> str:
        """Return the id of the version that the page shows."""
        return self.block.head.hex() if self.block.head else ""


def sections_of_user(
    tx: Transaction, scope: Scope, user: User, chain: Chain, schemas: Schemas
) -> list[MemorySection]:
    """Return the sections of a user's blocks, without the rules.

    Sections whose titles begin with "About" come first, then the others by label. After 100,000
    characters of text, later blocks have no pieces.

    Args:
        tx: The transaction.
        scope: The caller.
        user: The user whose memory it is.
        chain: The user's chain.
        schemas: Finds the schema of a block.
    """
    owner = MemoryOwner("user", user.id, user.name)
    own_blocks = [
        block for block in blocks.of_user(tx, scope, user.id) if block.label != NEVER_REMEMBER
    ]
    readers = conversation_overviews.names_of_agents(
        tx, scope, [block.agent_id for block in own_blocks if block.agent_id]
    )
    edit = ChangeMetadata(scope.acting_for(user).actor)
    room = _MOST_CHARACTERS
    sections = []
    for block in own_blocks:
        room -= len(block.value)
        sections.append(
            section_of(
                block,
                owner,
                schemas,
                rights=_rights_in(scope, edit, block, chain),
                reader=block.course or readers.get(block.agent_id or ""),
                is_self=scope.user_id == user.id,
                most=MOST_ON_OVERVIEW if room >= 0 else 0,
            )
        )
    return sorted(sections, key=lambda section: not section.title.startswith("About"))


def sections_of_agent(
    tx: Transaction, scope: Scope, block_ids: Sequence[str], schemas: Schemas
) -> list[MemorySection]:
    """Return the sections of an agent's blocks, in their order.

    Args:
        tx: The transaction.
        scope: The caller.
        block_ids: The ids of the agent's blocks.
        schemas: Finds the schema of a block.

    Raises:
        NotFound: if a block does not exist, or the caller may not see it.
    """
    own_blocks = blocks.by_ids(tx, scope, block_ids)
    owners = queries.owners_of(tx, {block.chain_id for block in own_blocks})
    edit = ChangeMetadata(scope.actor)
    sections = []
    for block in own_blocks:
        owner = owners[block.chain_id]
        chain = Chain(block.chain_id, block.organization_id, owner.kind, owner.id)
        sections.append(
            section_of(
                block,
                owner,
                schemas,
                rights=_rights_in(scope, edit, block, chain),
                is_self=owner.id == scope.user_id,
                most=MOST_ON_OVERVIEW,
            )
        )
    return sections


def section_of(
    block: Block,
    owner: MemoryOwner,
    schemas: Schemas,
    *,
    rights: BlockRights,
    is_self: bool,
    most: int,
    reader: str | None = None,
) -> MemorySection:
    """Return the section of one block.

    Args:
        block: The block.
        owner: The owner of the block's chain.
        schemas: Finds the schema of the block.
        rights: The caller's rights in the block.
        is_self: The caller is the owner, so titles address the caller.
        most: The most pieces of the text; 0 counts the text as too long to be shown.
        reader: The name of the only agent or course that reads the block; None: all do.
    """
    page, line_page = f"/ui/blocks/{block.id}", f"/ui/blocks/{block.id}/line"
    if owner.kind == "user":
        label = quote(block.label)
        page, line_page = f"{owner.path}/blocks/{label}", f"{owner.path}/line/{label}"
    schema = schemas(block.schema_ref) if block.schema_ref else None
    is_long = len(block.value) > MOST_MARKDOWN or not most
    pieces = [] if is_long else pieces_of(block.value, schema)
    if owner.kind == "user":
        title = title_of(block.label, block.title, owner.name, is_self=is_self)
    else:
        title = block.title or block.label.replace("_", " ").capitalize()
    return MemorySection(
        block=block,
        title=title,
        page=page,
        line_page=line_page,
        pieces=pieces[:most],
        more=max(0, len(pieces) - most),
        is_long=is_long,
        rights=rights,
        reader=reader,
        schema=schema,
    )


def rights_at(scope: Scope, address: BlockAddress) -> BlockRights:
    """Return the caller's rights in the block of an address.

    Args:
        scope: The caller.
        address: The block, as the caller opened it.
    """
    may_write = _may_write(scope, address.owner.kind)
    return BlockRights(address.decision, owns=address.owns, may_write=may_write)


def _rights_in(scope: Scope, edit: ChangeMetadata, block: Block, chain: Chain) -> BlockRights:
    """Return the rights of an edit's author in a block of this chain."""
    return BlockRights(
        edit.policy_decision(block.rule, chain),
        owns=edit.is_owners_of(chain),
        may_write=_may_write(scope, chain.owner_kind),
    )


def _may_write(scope: Scope, owner_kind: OwnerKind) -> bool:
    return scope.may("memory:write" if owner_kind == "user" else "agents:write")


def titles_of(sections: Sequence[MemorySection]) -> Mapping[str, str]:
    """Return the sections' titles by the labels of their blocks.

    Args:
        sections: The sections of one memory.
    """
    return {section.block.label: section.title for section in sections}
