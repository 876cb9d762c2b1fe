"""The state of an erasure as its job saves it, and the response models of the HTTP API."""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema

from ricordo import __version__
from ricordo.api.models.base import ResponseModel

Receipt = dict[str, Any]
Date = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]


class ErasureFacts(BaseModel):
    """What an erasure tells in its receipt as it is. `subject` and `names` are hashes."""

    model_config = ResponseModel.model_config

    id: str
    subject: str
    names: list[str]
    organization_id: str
    asked_at: Date
    asked_by: str = ""
    finished_at: Date | None = None
    # The version of Ricordo that began it.
    ricordo: str = __version__
    database: str = ""
    removed: Counter[str] = Field(default_factory=Counter, description="Deleted rows, by table.")
    changed: Counter[str] = Field(default_factory=Counter, description="What was covered or blanked in others' rows.")
    files: dict[str, str] = {}
    remaining: Counter[str] = Field(default_factory=Counter, description="Rows that name the user and cannot go.")
    elsewhere: list[str] = []


class Erasure(ErasureFacts):
    """How far the erasure of a user is, so that whoever finishes it knows what others have done."""

    # Empty once nothing needs it.
    user_id: str
    # When the user was first heard of, in microseconds.
    began_at: int | None = None
    # Whether all rows are erased, so that only the database's files are left to rewrite.
    is_erased: bool = False
    # Conversations of others in which the user spoke, or that go on from one of theirs; and agents' default ones about them.
    shown_in: set[str] = set()
    defaults: set[str] = set()
    # The agents they talked with, each with the number of versions of its own memory that came of their turns.
    agents: dict[str, int] = {}
    # Partitions of the search index that held words of theirs, by owner, with the kind of what they hold.
    partitions: dict[str, str] = {}
    # The last version of each chain that goes, and the number of versions.
    chains: dict[str, dict[str, Any]] = {}
    # Agents and archives that are deleted with the user, and agents that are not, each with the reason.
    own_agents: list[str] = []
    own_archives: list[str] = []
    kept_agents: dict[str, str] = {}
    # Addresses of the memory's remotes, each with its kind, until it is known which of them are in the data folder.
    remotes: dict[str, str] = {}

    def note_elsewhere(self, sentences: Iterable[str]) -> None:
        self.elsewhere = list(dict.fromkeys((*self.elsewhere, *sentences)))


class ChainReceipt(ResponseModel):
    """A chain of versions that was deleted: the id of its last version, and the number of versions."""

    chain: str
    head: str | None
    versions: int


class AgentReceipt(ResponseModel):
    """An agent the user talked with, how many versions of its own memory came of their turns, and whether it was deleted.

    Where the user's own agents were to be deleted, `stays` says why this one was not.
    """

    id: str
    versions: int
    is_deleted: bool = False
    stays: str | None = None


class SignatureResponse(ResponseModel):
    """Ed25519 over the receipt without it, as JSON with sorted keys; base64."""

    algorithm: Literal["ed25519"]
    public_key: str
    value: str


class ReceiptResponse(ErasureFacts):
    """The receipt of an erasure."""

    status: Literal["done"]
    memory: list[ChainReceipt]
    agents: list[AgentReceipt]
    signature: SignatureResponse


class ErasureResponse(ResponseModel):
    """An erasure under way: the user is hidden from everyone. `receipt` is the path of the receipt."""

    id: str
    status: Literal["running"]
    organization_id: str
    receipt: str
    removed: dict[str, int]
