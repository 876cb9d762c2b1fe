"""Histories that a client sends whole with each request.

A client repeats every earlier message of its chat. If one of them were refused, all later requests
of the chat would be refused too. So only the new messages are validated strictly.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from ricordo.domain.text import Json

T = TypeVar("T")
# A chat of ordinary messages reaches the limit of a request's bytes first.
MOST_MESSAGES: Final = 100_000
# Fields without which a message has no meaning. A message with such a fault is left out.
_DECISIVE: Final = frozenset({"role", "type"})
# The roles of messages that a client sends, and the type of such an item in the Responses API.
CLIENT_ROLES: Final = frozenset({"user", "tool", "system", "developer"})
_CLIENT_TYPE: Final = "function_call_output"


def _validate_history(messages: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Validate the messages; leave faulty parts out of those that an earlier request contained.

    Args:
        messages: The history as the client sent it, oldest message first.
        validate: The validation of the list.

    Raises:
        ValidationError: if a new message is faulty, or the list itself is.
    """
    try:
        return validate(messages)
    except ValidationError as error:
        if not isinstance(messages, list):
            raise
        faults = _faulty_fields(error)
        new_from = first_new([_is_of_client(message) for message in messages])
        if any(index >= new_from for index in faults):
            raise
        mended = [
            _without(message, faults.get(index, frozenset()))
            for index, message in enumerate(messages)
        ]
    try:
        return validate([message for message in mended if message is not None])
    except ValidationError:
        # A message may need its faulty field, so leave out all faulty messages as a whole.
        return validate([message for index, message in enumerate(messages) if index not in faults])


History = Annotated[list[T], Field(max_length=MOST_MESSAGES), WrapValidator(_validate_history)]
"""A history that may be empty."""
FilledHistory = Annotated[
    list[T], Field(min_length=1, max_length=MOST_MESSAGES), WrapValidator(_validate_history)
]
"""A history of at least one message."""


def first_new(are_of_client: Sequence[bool]) -> int:
    """Return the index of the first new message: the first after the last part of an answer.

    The last message is always new.

    Args:
        are_of_client: For each message, whether the user or the application wrote it, or a tool of
            the client (see `CLIENT_ROLES`). A message with an unknown role is part of an answer.
    """
    for index in range(len(are_of_client) - 2, -1, -1):
        if not are_of_client[index]:
            return index + 1
    return 0


def _faulty_fields(error: ValidationError) -> dict[int, frozenset[str]]:
    """Return the names in the path of each fault, by the index of the message.

    A fault of the whole list belongs to no message. It gets an index after all messages, so it
    counts as a fault of a new message.
    """
    faults: dict[int, frozenset[str]] = {}
    for fault in error.errors(include_url=False, include_input=False, include_context=False):
        path = fault["loc"]
        index = path[0] if path and isinstance(path[0], int) else MOST_MESSAGES
        names = frozenset(str(part) for part in path[1:])
        # A fault without a path is one of the whole message, such as an unknown type.
        faults[index] = faults.get(index, frozenset()) | (names or _DECISIVE)
    return faults


def _is_of_client(message: Any) -> bool:
    """True for a message of the user or the application, or a tool's result."""
    if not isinstance(message, dict):
        return False
    role = message.get("role")
    has_client_role = isinstance(role, str) and role in CLIENT_ROLES
    return has_client_role or message.get("type") == _CLIENT_TYPE


def _without(message: Any, names: frozenset[str]) -> Json | None:
    """Return the message without these fields; None if it means nothing without them."""
    if not names:
        return message  # type: ignore[no-any-return]
    if not isinstance(message, dict) or names & _DECISIVE & message.keys():
        return None
    return {name: field for name, field in message.items() if name not in names}
