"""The state of an erasure, and its receipt.

A receipt is signed with a key of this installation and stored in `<data>/receipts`. Anybody can
check it. It contains counts, ids and hashes, but no text of the user. The signature is Ed25519 over
the receipt without the signature, as JSON with sorted keys. The receipt contains the public key. So
only a separate copy of that key proves who signed it.
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
from ricordo.domain.scope import ADMIN, Scope
from ricordo.errors import Invalid, Unavailable
from ricordo.secret import Secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FOLDER = "receipts"
PREFIX = "receipt"
Receipt = dict[str, Any]
Date = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]


class ErasureFacts(BaseModel):
    """The facts of an erasure that its receipt repeats.

    `subject` and `names` are hashes.
    """

    model_config = ResponseModel.model_config

    id: str
    subject: str
    names: list[str]
    organization_id: str
    asked_at: Date
    asked_by: str = ""
    finished_at: Date | None = None
    # The version of Ricordo that began the erasure.
    ricordo: str = __version__
    database: str = ""
    removed: Counter[str] = Field(default_factory=Counter, description="Deleted rows, by table.")
    changed: Counter[str] = Field(
        default_factory=Counter,
        description="Masked or emptied parts of other users' rows, by kind.",
    )
    files: dict[str, str] = {}
    remaining: Counter[str] = Field(
        default_factory=Counter, description="Rows that name the user and cannot be deleted."
    )
    elsewhere: list[str] = []

    def note_elsewhere(self, sentences: Iterable[str]) -> None:
        """Add sentences about data that remains, each once.

        Args:
            sentences: Sentences for the receipt.
        """
        self.elsewhere = list(dict.fromkeys((*self.elsewhere, *sentences)))


class Erasure(ErasureFacts):
    """The state of a user's erasure, from which any worker can continue."""

    # The user's id, and names of the user that others may have written in messages; cleared when no
    # longer needed.
    user_id: str
    identifier: str = ""
    name: str = ""
    former: list[str] = []
    # Time of the user's first erased row, in microseconds.
    began_at: int | None = None
    # All rows are erased; only the database's files still have to be rewritten.
    is_erased: bool = False
    # Conversations of other users that contain the user's messages, or are forks of the user's
    # conversations. Also the default conversations of agents in which the user wrote.
    shown_in: set[str] = set()
    defaults: set[str] = set()
    # The user's agents, each with the number of versions of its memory from the user's turns.
    agents: dict[str, int] = {}
    # Partitions of the search index that contain text of the user, by owner, with the kind of their
    # rows.
    partitions: dict[str, str] = {}
    # The last version and the number of versions of each deleted chain.
    chains: dict[str, dict[str, Any]] = {}
    # Agents and archives that are deleted with the user; and agents that stay, with the reason.
    own_agents: list[str] = []
    own_archives: list[str] = []
    kept_agents: dict[str, str] = {}
    # Agents that only the user had, if the request did not ask to delete them.
    left_agents: list[str] = []
    # Addresses of the memory's remotes with their kind; kept until those in the data folder are
    # removed.
    remotes: dict[str, str] = {}


def subject_of(user_id: str) -> str:
    """Return the hash of a user's id. The id is random, so it cannot be guessed from the hash.

    Args:
        user_id: The user.
    """
    return hashlib.sha256(user_id.encode()).hexdigest()


def may_read(scope: Scope, organization_id: str, subject: str, asked_by: str) -> bool:
    """Return whether the caller may read a receipt about the user with this hash.

    That user, the caller who asked, and administrators may read it.

    Args:
        scope: The caller.
        organization_id: The organization in the receipt.
        subject: The hash of the user's id (`subject_of`).
        asked_by: The id of the user who asked; "" if it was the forgotten user.
    """
    if organization_id != scope.organization_id:
        return False
    if scope.subject_id is not None:
        return subject == subject_of(scope.subject_id)
    return scope.may(ADMIN) or asked_by == scope.user_id


def hash_of_name(secret: Secret, organization_id: str, name: str) -> str:
    """Return the hash of a user's name for a receipt, in hex.

    Only this installation can compute it, so names cannot be guessed from receipts.

    Args:
        secret: The server's secret.
        organization_id: The organization of the user.
        name: An id, an identifier or another name of the user.
    """
    return hmac.digest(
        secret.derive("names of the forgotten"), f"{organization_id}\0{name}".encode(), "sha256"
    ).hex()


def receipt_of(secret: Secret, erasure: Erasure) -> Receipt:
    """Return the signed receipt of a finished erasure.

    The same erasure always gives the same receipt.

    Args:
        secret: The server's secret, from which the signing key is derived.
        erasure: The state after its end.
    """
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
    return signed(secret, receipt)


def signed(secret: Secret, receipt: Receipt) -> Receipt:
    """Return the receipt with its signature.

    Args:
        secret: The server's secret, from which the signing key is derived.
        receipt: The receipt, without a signature.
    """
    key = _key(secret)
    signature = {
        "algorithm": "ed25519",
        "public_key": base64.b64encode(key.public_key().public_bytes_raw()).decode(),
        "value": base64.b64encode(key.sign(_signed_bytes(receipt))).decode(),
    }
    return {**receipt, "signature": signature}


def verify(receipt: Mapping[str, Any], secret: Secret | None = None) -> bool:
    """Return True if the receipt is unchanged since it was signed.

    Args:
        receipt: The content of a receipt's file.
        secret: If given, the receipt must also have been signed by this installation.

    Raises:
        Invalid: for other files.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    fields = receipt.get("signature")
    if not isinstance(fields, dict) or fields.get("algorithm") != "ed25519":
        fields = {}
    try:
        public = base64.b64decode(str(fields.get("public_key")), validate=True)
        signature = base64.b64decode(str(fields.get("value")), validate=True)
        key = Ed25519PublicKey.from_public_bytes(public)
    except ValueError:
        raise Invalid(
            "This is not a receipt of Ricordo: it has no signature. Use the unchanged file."
        ) from None
    try:
        key.verify(signature, _signed_bytes(receipt))
    except InvalidSignature:
        return False
    return secret is None or public == _key(secret).public_key().public_bytes_raw()


def write(data_dir: Path, receipt: Receipt) -> None:
    """Write the receipt into the data folder, completely or not at all.

    Args:
        data_dir: The data folder.
        receipt: The signed receipt, whose id becomes the file's name.

    Raises:
        Unavailable: if it cannot be written.
    """
    path = path_of(data_dir, receipt["id"])
    draft = path.with_suffix(".new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.write_bytes(
            orjson.dumps(receipt, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        )
        draft.chmod(0o600)
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise Unavailable(
            f"The receipt {path} cannot be written: {error.strerror}. Check the folder."
        ) from error


def find(data_dir: Path, receipt_id: str) -> Receipt | None:
    """Return the receipt with this id in the data folder, or None.

    Args:
        data_dir: The data folder.
        receipt_id: The id, as a caller sent it. A text of another form gives None.

    Raises:
        Invalid: The file is damaged.
    """
    if is_id(receipt_id, PREFIX):
        return read(path_of(data_dir, receipt_id))
    return None


def find_by_name(data_dir: Path, hashed: str) -> Receipt | None:
    """Return the newest receipt of a user whose name has this hash, or None.

    Args:
        data_dir: The data folder.
        hashed: The hash of the name, from `hash_of_name`.

    Raises:
        Invalid: for a damaged receipt, or if the folder of receipts cannot be read.
    """
    for path in _paths(data_dir):
        receipt = read(path)
        if receipt and hashed in receipt.get("names", ()):
            return receipt
    return None


def names_of_all(data_dir: Path) -> set[str]:
    """Return the hashes of names in all receipts of a data folder.

    Args:
        data_dir: The data folder. Without receipts, the result is empty.

    Raises:
        Invalid: A receipt is damaged, or the folder of receipts cannot be read.
    """
    all_receipts = (read(path) or {} for path in _paths(data_dir))
    return {hashed for receipt in all_receipts for hashed in receipt.get("names", ())}


def read(path: Path) -> Receipt | None:
    """Return the receipt in a file, None without a file.

    Args:
        path: The path of the file.

    Raises:
        Invalid: The file cannot be read, or is not a JSON object.
    """
    try:
        receipt = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        receipt = None
    if not isinstance(receipt, dict):
        raise Invalid(
            f"{path} is not a receipt of Ricordo: it cannot be read. Use the unchanged file."
        )
    return receipt


def path_of(data_dir: Path, receipt_id: str) -> Path:
    """Return the path of the file of a receipt.

    Args:
        data_dir: The server's data folder.
        receipt_id: The receipt. It becomes a part of the path, and is not checked here.
    """
    return data_dir / FOLDER / f"{receipt_id}.json"


def _paths(data_dir: Path) -> list[Path]:
    """Return the files of receipts, the newest first. Raises Invalid.

    `glob` would return nothing for a folder that it may not read, and an import would bring back
    the users who were forgotten.
    """
    folder = data_dir / FOLDER
    try:
        paths = [path for path in folder.iterdir() if path.suffix == ".json"]
        return sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Invalid(
            f"{folder} cannot be read: {error.strerror}. Check its permissions."
        ) from error


def _key(secret: Secret) -> "Ed25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(secret.derive("receipts"))


def _signed_bytes(receipt: Mapping[str, Any]) -> bytes:
    signed = {name: field for name, field in receipt.items() if name != "signature"}
    return orjson.dumps(signed, option=orjson.OPT_SORT_KEYS)
