"""Public ids: a prefix, a dash and a uuid, in the wire format of the retired Letta V1 server.

A random id has a uuid4, and an id that is derived from a name has a uuid5.
"""

import re
import secrets
from collections.abc import Sequence

# The last byte of the otid of a whole message.
_WHOLE_MESSAGE = 0x80
_UUID4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


def new_id(prefix: str) -> str:
    """Return a new random id.

    Args:
        prefix: The kind of id, such as "agent", without the dash.
    """
    # uuid.uuid4 builds an object. Slices of random hex are enough, and a turn makes many ids.
    digits = secrets.token_hex(16)
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{prefix}-{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def pattern(prefix: str) -> str:
    """Return the regular expression of random ids with this prefix.

    Args:
        prefix: The kind of id, such as "agent", without the dash.
    """
    return f"^{prefix}-{_UUID4}$"


def is_id(text: str, prefix: str) -> bool:
    """Return True if the text is an id with this prefix.

    Args:
        text: Any text of a caller.
        prefix: The kind of id, such as "agent", without the dash.
    """
    return re.fullmatch(pattern(prefix), text) is not None


def is_any_id(text: str, prefix: str) -> bool:
    """Return True if the text is an id with this prefix, random or derived from a name.

    A derived id, for example of a user's first conversation with an agent, has a uuid5.

    Args:
        text: Any text of a caller.
        prefix: The kind of id, such as "conv", without the dash.
    """
    return re.fullmatch(pattern(prefix).replace("-4[", "-[45][", 1), text) is not None


def part_otid(message_id: str, part: int) -> str:
    """Return the offline-threading id of one part of a message.

    It is the message's uuid with the last byte replaced by the part's number. The format is the
    retired Letta V1 server's. There the byte `80` means the whole message, so part numbers from
    0x80 on are one higher. Numbers that do not fit into a byte are carried into the bytes before
    it.

    Args:
        message_id: The id of the message, with its prefix.
        part: The number of the part, from 0; -1 is the whole message.

    Returns:
        The text of a uuid, another one for each part.
    """
    uuid = message_id.split("-", 1)[1]
    if part < 0:
        number = _WHOLE_MESSAGE
    else:
        number = part + (part >= _WHOLE_MESSAGE)
    carried, last_byte = divmod(number, 256)
    if not carried:
        return f"{uuid[:-2]}{last_byte:02x}"
    bytes_before = (int(uuid[-12:-2], 16) + carried) % (1 << 40)
    return f"{uuid[:-12]}{bytes_before:010x}{last_byte:02x}"


def unique(ids: Sequence[str]) -> list[str]:
    """Return the texts in order, each once.

    Args:
        ids: Ids, or other texts such as tags.
    """
    return list(dict.fromkeys(ids))
