"""Rules for things never to remember, and postponed proposals, on pages of memory."""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from fastapi import Request, Response

from ricordo.domain.block import NEVER_REMEMBER
from ricordo.errors import Invalid
from ricordo.memory.unwanted import rule_of
from ricordo.pages.inside import Api, RefusedByApi
from ricordo.pages.shell import base_of

_TITLE = "Never remember"
_DESCRIPTION = "Things that no agent may remember or propose, one a line. Agents do not see this."
_NOT_FOUND = 404
_PRECONDITION_FAILED = 412
_MOST_ATTEMPTS = 20
_COOKIE = "ricordo_later"
_MINUTES = 24 * 60
_ENTRY = re.compile(r"([^.-]{1,12})-([\da-f]{1,8})")
_ID_END = 12  # characters of an id that distinguish it from others
_MOST_PUT_OFF = 150  # A cookie has at most 4096 bytes.


async def add_rule(api: Api, user_id: str, rule: str) -> None:
    """Add a rule to the user's rules.

    Args:
        api: The API, called as the request's caller.
        user_id: The user.
        rule: The rule as it was typed. One that exists already is not added.

    Raises:
        Invalid: if the rule is empty.
        RefusedByApi: if the caller may not change the rules.
    """
    rule = rule_of(rule)
    if not rule:
        raise Invalid("Write what agents must never remember.")
    fields = {
        "title": _TITLE,
        "description": _DESCRIPTION,
        "policy": "read_only",
        "message": "Never remember things like this",
    }
    await _change(api, user_id, lambda rules: list(dict.fromkeys([*rules, rule])), fields)


async def remove_rule(api: Api, user_id: str, rule: str) -> None:
    """Remove a rule from the user's rules, if it is there.

    Args:
        api: The API, called as the request's caller.
        user_id: The user.
        rule: The rule as it is stored.

    Raises:
        RefusedByApi: if the caller may not change the rules.
    """
    fields = {"message": "Remove a rule"}
    await _change(api, user_id, lambda rules: [other for other in rules if other != rule], fields)


async def _change(
    api: Api, user_id: str, change: Callable[[list[str]], list[str]], fields: Mapping[str, str]
) -> None:
    """Change the rules that are stored now.

    If others change them between the read and the write, the write is refused, and both are
    repeated.

    Args:
        api: The API, called as the request's caller.
        user_id: The user.
        change: Gets the stored rules, and returns the new ones.
        fields: The other fields of the write.

    Raises:
        RefusedByApi: if the caller may not change the rules, or others change them all the time.
    """
    path = f"/users/{user_id}/blocks/{NEVER_REMEMBER}"
    for attempts_left in reversed(range(_MOST_ATTEMPTS)):
        rules, version = await _rules(api, path)
        new_rules = change(rules)
        if new_rules == rules:
            return
        try:
            await api.ask(
                "PUT",
                path,
                {"body": "\n".join(new_rules), **fields},
                if_match=version,
                if_none_match="*" if version is None else None,
            )
        except RefusedByApi as refusal:
            if refusal.status != _PRECONDITION_FAILED or not attempts_left:
                raise
        else:
            return


async def _rules(api: Api, path: str) -> tuple[list[str], str | None]:
    """Return the rules and the version of their block; [] and None if there is no block."""
    try:
        block = await api.get(path)
    except RefusedByApi as refusal:
        if refusal.status != _NOT_FOUND:
            raise
        return [], None
    return [line for line in str(block["body"]).split("\n") if line.strip()], block["version"]


def put_off(request: Request, response: Response, ids: Sequence[str]) -> None:
    """Let this browser show these proposals folded for a day; they still wait.

    The cookie has the end of each id, with the minute from which its proposal is shown again, in
    hexadecimal digits, as in `0123456789ab-1c9c380`.

    Args:
        request: The request, whose cookie has the ids of earlier calls.
        response: The response, which gets the new cookie.
        ids: The proposals.
    """
    until = _minute_now() + _MINUTES
    minutes = {id[-_ID_END:]: until for id in ids}
    for end, minute in _put_off_until(request).items():
        minutes.setdefault(end, minute)
    entries = [f"{end}-{minute:x}" for end, minute in minutes.items()]
    response.set_cookie(
        _COOKIE,
        ".".join(entries[:_MOST_PUT_OFF]),
        max_age=_MINUTES * 60,
        path=f"{base_of(request)}/",
        httponly=True,
        samesite="lax",
    )


class PutOff:
    """The proposals that this browser has put off."""

    def __init__(self, ends: Iterable[str]) -> None:
        self._ends = set(ends)

    def __contains__(self, id: object) -> bool:
        return str(id)[-_ID_END:] in self._ends


def put_off_of(request: Request) -> PutOff:
    return PutOff(_put_off_until(request))


def _put_off_until(request: Request) -> dict[str, int]:
    """Return the first minute in which each postponed proposal is shown again, by its id's end.

    Entries of the cookie that are overdue or cannot be read are left out.
    """
    now = _minute_now()
    minutes = {}
    for entry in request.cookies.get(_COOKIE, "").split("."):
        if (match := _ENTRY.fullmatch(entry)) and int(match[2], 16) > now:
            minutes[match[1]] = min(int(match[2], 16), now + _MINUTES)
    return minutes


def _minute_now() -> int:
    """Return the minutes since 1970."""
    return int(time.time() // 60)
