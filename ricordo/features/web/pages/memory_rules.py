"""Rules for things never to remember, and postponed suggestions, on pages of memory."""

from collections.abc import Sequence

from fastapi import Request, Response

from ricordo.domain.block import NEVER_REMEMBER
from ricordo.errors import Invalid
from ricordo.memory.unwanted import rule_of
from ricordo.pages.inside import Api, RefusedByApi
from ricordo.pages.shell import base_of

_TITLE = "Never remember"
_DESCRIPTION = "Things that no agent may remember or propose, one a line. Agents do not see this."
_NOT_FOUND = 404
_COOKIE = "ricordo_later"
_SECONDS = 86_400
_ID_END = 12  # characters of an id that distinguish it from others
_MOST_PUT_OFF = 200


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
    rules = await _rules(api, user_id)
    if rule in rules:
        return
    body = {
        "body": "\n".join([*rules, rule]),
        "title": _TITLE,
        "description": _DESCRIPTION,
        "policy": "read_only",
        "message": "Never remember things like this",
    }
    await api.ask("PUT", f"/users/{user_id}/blocks/{NEVER_REMEMBER}", body)


async def remove_rule(api: Api, user_id: str, rule: str) -> None:
    rules = [line for line in await _rules(api, user_id) if line != rule]
    body = {"body": "\n".join(rules), "message": "Remove a rule"}
    await api.ask("PUT", f"/users/{user_id}/blocks/{NEVER_REMEMBER}", body)


async def _rules(api: Api, user_id: str) -> list[str]:
    try:
        block = await api.get(f"/users/{user_id}/blocks/{NEVER_REMEMBER}")
    except RefusedByApi as refusal:
        if refusal.status != _NOT_FOUND:
            raise
        return []
    return [line for line in str(block["body"]).split("\n") if line.strip()]


def put_off(request: Request, response: Response, ids: Sequence[str]) -> None:
    """Let this browser show these proposals folded for a day; they still wait.

    Args:
        request: The request, whose cookie has the ids of earlier calls.
        response: The response, which gets the new cookie.
        ids: The proposals.
    """
    ends = dict.fromkeys([*(id[-_ID_END:] for id in ids), *_ends(request)])
    response.set_cookie(
        _COOKIE,
        ".".join([*ends][:_MOST_PUT_OFF]),
        max_age=_SECONDS,
        path=f"{base_of(request)}/",
        httponly=True,
        samesite="lax",
    )


class PutOff:
    """The proposals that this browser has put off."""

    def __init__(self, ends: Sequence[str]) -> None:
        self._ends = set(ends)

    def __contains__(self, id: object) -> bool:
        return str(id)[-_ID_END:] in self._ends


def put_off_of(request: Request) -> PutOff:
    return PutOff(_ends(request))


def _ends(request: Request) -> list[str]:
    return [end for end in request.cookies.get(_COOKIE, "").split(".") if end]
