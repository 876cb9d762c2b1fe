"""Receipts of erasures: signed with a key of this installation, stored in `<data>/receipts`, and checked by anybody.

A receipt holds counts, ids and hashes, and no text of the user. The signature is Ed25519's over the receipt without it, as JSON
with sorted keys; the public key is beside it, so only a copy of that key tells whose it is.
"""

import base64
import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from ricordo.domain.ids import is_id
from ricordo.errors import Invalid, Unavailable
from ricordo.features.erasure.models import Erasure, ErasureFacts, Receipt
from ricordo.secret import Secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FOLDER = "receipts"
PREFIX = "receipt"


def subject_of(user_id: str) -> str:
    """Return the hash that stands for a user's id; an id is random, so nobody finds it by guessing."""
    return hashlib.sha256(user_id.encode()).hexdigest()


def hash_of_name(secret: Secret, organization_id: str, name: str) -> str:
    return hmac.digest(secret.derive("names of the forgotten"), f"{organization_id}\0{name}".encode(), "sha256").hex()


def receipt_of(secret: Secret, erasure: Erasure) -> Receipt:
    """Return the signed receipt of a finished erasure; the same erasure always gives the same."""
    agents = dict.fromkeys((*erasure.own_agents, *erasure.kept_agents), 0) | dict(erasure.agents)
    receipt = {
        **erasure.model_dump(mode="json", include=set(ErasureFacts.model_fields)),
        "status": "done",
        "memory": [{"chain": id, **facts} for id, facts in sorted(erasure.chains.items())],
        "agents": [
            {"id": id, "versions": count, "is_deleted": id in erasure.own_agents, "stays": erasure.kept_agents.get(id)}
            for id, count in sorted(agents.items())
        ],
    }
    key = _key(secret)
    value = base64.b64encode(key.sign(_signed_bytes(receipt))).decode()
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    return {**receipt, "signature": {"algorithm": "ed25519", "public_key": public, "value": value}}


def verify(receipt: Mapping[str, Any], secret: Secret | None = None) -> bool:
    """Return whether the receipt is as it was signed; with the secret, also whether this installation signed it.

    Raises Invalid where it is no receipt.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signature = receipt.get("signature")
    if not isinstance(signature, dict) or signature.get("algorithm") != "ed25519":
        raise Invalid("This is no receipt of Ricordo: it has no signature. Give the file as it was written.")
    try:
        public = base64.b64decode(str(signature.get("public_key")), validate=True)
        value = base64.b64decode(str(signature.get("value")), validate=True)
        key = Ed25519PublicKey.from_public_bytes(public)
    except ValueError:
        raise Invalid(
            "This is no receipt of Ricordo: its signature cannot be read. Give the file as it was written."
        ) from None
    if secret is not None and public != _key(secret).public_key().public_bytes_raw():
        return False
    try:
        key.verify(value, _signed_bytes(receipt))
    except InvalidSignature:
        return False
    return True


def write(data_dir: Path, receipt: Receipt) -> None:
    """Write the receipt into the data folder, whole or not at all. Raises Unavailable."""
    path = path_of(data_dir, receipt["id"])
    draft = path.with_suffix(".new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.write_bytes(orjson.dumps(receipt, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        draft.chmod(0o600)
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        draft.replace(path)
    except OSError as error:
        raise Unavailable(f"The receipt {path} cannot be written: {error.strerror}. Check the folder.") from error


def find(data_dir: Path, receipt_id: str) -> Receipt | None:
    """Return the receipt with this id from the data folder, or None."""
    return read(path_of(data_dir, receipt_id)) if is_id(receipt_id, PREFIX) else None


def find_by_name(data_dir: Path, name: str) -> Receipt | None:
    """Return the newest receipt of a user with this name, as `hash_of_name` gives it, or None."""
    try:
        paths = sorted((data_dir / FOLDER).glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return None
    return next((receipt for path in paths if (receipt := read(path)) and name in receipt.get("names", ())), None)


def read(path: Path) -> Receipt | None:
    """Return the receipt in a file, or None where there is no such file. Raises Invalid where it is no JSON object."""
    try:
        found = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise Invalid(f"{path} is no receipt of Ricordo: it cannot be read. Give the file as it was written.")
    return found


def path_of(data_dir: Path, receipt_id: str) -> Path:
    """Return where the receipt with this id is stored."""
    return data_dir / FOLDER / f"{receipt_id}.json"


def _key(secret: Secret) -> "Ed25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(secret.derive("receipts"))


def _signed_bytes(receipt: Mapping[str, Any]) -> bytes:
    signed = {name: value for name, value in receipt.items() if name != "signature"}
    return orjson.dumps(signed, option=orjson.OPT_SORT_KEYS)
