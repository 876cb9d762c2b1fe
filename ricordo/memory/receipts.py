"""Receipts of erasures: signed with a key of this installation, kept in `<data>/receipts`, and checked by anybody.

A receipt holds counts, ids and hashes, and no text of whoever was forgotten. The signature is Ed25519's over the receipt without
it, as JSON with sorted keys; the public key stands beside it, so only a copy of that key tells whose it is.
"""

import base64
import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from ricordo import __version__
from ricordo.domain.clock import to_datetime
from ricordo.domain.erasure import Erasure
from ricordo.domain.ids import is_id
from ricordo.errors import Invalid, Unavailable
from ricordo.secret import Secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Receipt = dict[str, Any]
FOLDER = "receipts"
PREFIX = "receipt"
_PURPOSE = "receipts"


def subject_of(user_id: str) -> str:
    """What stands for her id in a receipt; an id is random, so nobody finds it by guessing."""
    return hashlib.sha256(user_id.encode()).hexdigest()


def name_of(secret: Secret, organization_id: str, name: str) -> str:
    """What stands for a name she is asked for by: names can be guessed, so this takes the installation's key."""
    return hmac.digest(secret.derive("names of the forgotten"), f"{organization_id}\0{name}".encode(), "sha256").hex()


def receipt_of(secret: Secret, erasure: Erasure) -> Receipt:
    """The receipt of an erasure that is done, signed."""
    told = {
        "id": erasure.id,
        "status": "done",
        "subject": erasure.subject,
        "names": list(erasure.names),
        "organization_id": erasure.organization_id,
        "asked_at": _moment(erasure.asked_at),
        "asked_by": erasure.asked_by,
        "finished_at": _moment(erasure.finished_at),
        "ricordo": __version__,
        "database": erasure.database,
        "removed": _sorted(erasure.removed),
        "changed": _sorted(erasure.changed),
        "memory": [{"chain": id, **facts} for id, facts in sorted(erasure.chains.items())],
        "files": _sorted(erasure.files),
        "agents": [
            {"id": id, "versions": count, "is_deleted": id in erasure.own_agents, "stays": erasure.kept_agents.get(id)}
            for id, count in sorted(
                (dict.fromkeys((*erasure.own_agents, *erasure.kept_agents), 0) | dict(erasure.agents)).items()
            )
        ],
        "remaining": _sorted(erasure.remaining),
        "elsewhere": list(erasure.elsewhere),
    }
    return {**told, "signature": _signature(_key(secret), told)}


def verify(receipt: Mapping[str, Any], secret: Secret | None = None) -> bool:
    """Whether nobody changed the receipt since it was signed; with the secret, also whether this installation signed it.

    Raises Invalid for what is no receipt.
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
    if secret is not None and public != _public(_key(secret)):
        return False
    told = {name: value for name, value in receipt.items() if name != "signature"}
    try:
        key.verify(value, _bytes(told))
    except InvalidSignature:
        return False
    return True


def keep(data_dir: Path, receipt: Receipt) -> Path:
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
    return path


def kept(data_dir: Path, receipt_id: str) -> Receipt | None:
    """The receipt with this id from the data folder; None where there is none."""
    return read(path_of(data_dir, receipt_id)) if is_id(receipt_id, PREFIX) else None


def kept_for(data_dir: Path, name: str) -> Receipt | None:
    """The newest receipt of somebody who was asked for by this name, as `name_of` gives it; None where there is none."""
    try:
        paths = sorted((data_dir / FOLDER).glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return None
    found = (read(path) for path in paths)
    return next((receipt for receipt in found if receipt and name in receipt.get("names", ())), None)


def read(path: Path) -> Receipt | None:
    """The receipt in a file; None where there is no such file. Raises Invalid for what is no JSON object."""
    try:
        found = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Invalid(
            f"{path} is no receipt of Ricordo: it cannot be read. Give the file as it was written."
        ) from error
    if not isinstance(found, dict):
        raise Invalid(f"{path} is no receipt of Ricordo. Give the file as it was written.")
    return found


def path_of(data_dir: Path, receipt_id: str) -> Path:
    """Where the receipt with this id is kept."""
    return data_dir / FOLDER / f"{receipt_id}.json"


def _signature(key: "Ed25519PrivateKey", told: Receipt) -> dict[str, str]:
    value = base64.b64encode(key.sign(_bytes(told))).decode()
    return {"algorithm": "ed25519", "public_key": base64.b64encode(_public(key)).decode(), "value": value}


def _key(secret: Secret) -> "Ed25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(secret.derive(_PURPOSE))


def _public(key: "Ed25519PrivateKey") -> bytes:
    return key.public_key().public_bytes_raw()


def _bytes(told: Mapping[str, Any]) -> bytes:
    return orjson.dumps(told, option=orjson.OPT_SORT_KEYS)


def _moment(moment: int | None) -> str | None:
    return None if moment is None else to_datetime(moment).isoformat()


def _sorted(counts: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(counts.items()))
