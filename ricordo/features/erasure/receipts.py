"""How far an erasure is, and its receipt: signed with a key of this installation, stored in `<data>/receipts`, checked by anybody.

A receipt holds counts, ids and hashes, and no text of the user. The signature is Ed25519's over the receipt without it, as JSON
with sorted keys; the public key is beside it, so only a copy of that key tells whose it is.
"""

import base64
import hashlib
import hmac
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
from pydantic import BaseModel, Field, WithJsonSchema

from ricordo import __version__
from ricordo.api.models.base import ResponseModel
from ricordo.domain.ids import is_id
from ricordo.errors import Invalid, Unavailable
from ricordo.secret import Secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FOLDER = "receipts"
PREFIX = "receipt"
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
    changed: Counter[str] = Field(
        default_factory=Counter, description="What was covered or blanked in others' rows."
    )
    files: dict[str, str] = {}
    remaining: Counter[str] = Field(
        default_factory=Counter, description="Rows that name the user and cannot go."
    )
    elsewhere: list[str] = []


class Erasure(ErasureFacts):
    """How far the erasure of a user is, so that whoever finishes it knows what others have done."""

    # Empty once nothing needs them: the user's id, and what others may have called the user in messages.
    user_id: str
    identifier: str = ""
    name: str = ""
    former: list[str] = []
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


def subject_of(user_id: str) -> str:
    """Return the hash that stands for a user's id; an id is random, so nobody finds it by guessing."""
    return hashlib.sha256(user_id.encode()).hexdigest()


def hash_of_name(secret: Secret, organization_id: str, name: str) -> str:
    return hmac.digest(
        secret.derive("names of the forgotten"), f"{organization_id}\0{name}".encode(), "sha256"
    ).hex()


def receipt_of(secret: Secret, erasure: Erasure) -> Receipt:
    """Return the signed receipt of a finished erasure; the same erasure always gives the same."""
    agents = dict.fromkeys((*erasure.own_agents, *erasure.kept_agents), 0) | dict(erasure.agents)
    receipt = {
        **erasure.model_dump(mode="json", include=set(ErasureFacts.model_fields)),
        "status": "done",
        "memory": [{"chain": id, **facts} for id, facts in sorted(erasure.chains.items())],
        "agents": [
            {
                "id": id,
                "versions": count,
                "is_deleted": id in erasure.own_agents,
                "stays": erasure.kept_agents.get(id),
            }
            for id, count in sorted(agents.items())
        ],
    }
    key = _key(secret)
    value = base64.b64encode(key.sign(_signed_bytes(receipt))).decode()
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    return {**receipt, "signature": {"algorithm": "ed25519", "public_key": public, "value": value}}


def verify(receipt: Mapping[str, Any], secret: Secret | None = None) -> bool:
    """Whether the receipt is as it was signed, with the secret by this installation. Raises Invalid where it is no receipt."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signature = receipt.get("signature")
    signature = (
        signature if isinstance(signature, dict) and signature.get("algorithm") == "ed25519" else {}
    )
    try:
        public, value = (
            base64.b64decode(str(signature.get(name)), validate=True)
            for name in ("public_key", "value")
        )
        key = Ed25519PublicKey.from_public_bytes(public)
    except ValueError:
        raise Invalid(
            "This is no receipt of Ricordo: it has no signature. Give the file as it was written."
        ) from None
    try:
        key.verify(value, _signed_bytes(receipt))
    except InvalidSignature:
        return False
    return secret is None or public == _key(secret).public_key().public_bytes_raw()


def write(data_dir: Path, receipt: Receipt) -> None:
    """Write the receipt into the data folder, whole or not at all. Raises Unavailable."""
    path = path_of(data_dir, receipt["id"])
    draft = path.with_suffix(".new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.write_bytes(
            orjson.dumps(receipt, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        )
        draft.chmod(0o600)
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        draft.replace(path)
    except OSError as error:
        raise Unavailable(
            f"The receipt {path} cannot be written: {error.strerror}. Check the folder."
        ) from error


def find(data_dir: Path, receipt_id: str) -> Receipt | None:
    return read(path_of(data_dir, receipt_id)) if is_id(receipt_id, PREFIX) else None


def find_by_name(data_dir: Path, name: str) -> Receipt | None:
    """Return the newest receipt of a user with this name, as `hash_of_name` gives it, or None."""
    try:
        paths = sorted(
            (data_dir / FOLDER).glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True
        )
    except OSError:
        return None
    return next(
        (receipt for path in paths if (receipt := read(path)) and name in receipt.get("names", ())),
        None,
    )


def names_of_all(data_dir: Path) -> set[str]:
    """Return the names in all receipts of a data folder, as `hash_of_name` gives them. Raises Invalid for a damaged one."""
    found = (read(path) or {} for path in (data_dir / FOLDER).glob("*.json"))
    return {name for receipt in found for name in receipt.get("names", ())}


def read(path: Path) -> Receipt | None:
    """Return the receipt in a file, or None where there is no such file. Raises Invalid where it is no JSON object."""
    try:
        found = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise Invalid(
            f"{path} is no receipt of Ricordo: it cannot be read. Give the file as it was written."
        )
    return found


def path_of(data_dir: Path, receipt_id: str) -> Path:
    return data_dir / FOLDER / f"{receipt_id}.json"


def _key(secret: Secret) -> "Ed25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(secret.derive("receipts"))


def _signed_bytes(receipt: Mapping[str, Any]) -> bytes:
    signed = {name: value for name, value in receipt.items() if name != "signature"}
    return orjson.dumps(signed, option=orjson.OPT_SORT_KEYS)
