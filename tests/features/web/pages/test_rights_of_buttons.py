"""Each form of each page is sent by every person who sees it, with plausible values.

No page offers a refused action, no form leads to a missing page, and none fails. A form that is
sent again, as from an outdated tab, gets a page that says why it is refused.
"""

import re
from collections import Counter, deque
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urldefrag, urlsplit

import httpx2
import pytest
from sqlalchemy import delete

from ricordo.domain.scope import LOCAL_ORGANIZATION, ROLE_SCOPES
from ricordo.features.memory_care.forgetting import queries as forget_requests
from ricordo.features.memory_care.forgetting.queries import ForgetRequest
from ricordo.llm.scripted import call
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import organizations
from tests.features.web.pages.test_shell import OWN, PAGE
from tests.seams.people import OPERATOR, OTHER_ORGANIZATION, People, world_on
from tests.seams.server import MODEL

# Forms that are sent after all others, in this order, since they delete what other pages need.
LAST = ("delete", "remove", "reset", "forget", "disable", "revoke", "logout")
# Pages of one kind differ only by owner: this number of ids of each kind is checked.
MOST_OF_A_KIND = 2
# Texts for fields that a person must fill; others get "Zoe".
SAMPLES = {"name": "ZOE", "address": "http://127.0.0.1:9/mcp", "guardian": "hugo"}


class Form(NamedTuple):
    """A form with the values that a person sends, and its field for a file."""

    action: str
    fields: tuple[tuple[str, str], ...]
    file_field: str = ""

    def __str__(self) -> str:
        return f"{self.action} {self.fields}"

    def send(self, browser: httpx2.Client) -> httpx2.Response:
        files = {self.file_field: ("zoe.txt", b"Zoe.")} if self.file_field else None
        return browser.post(self.action, data=dict(self.fields), files=files)


class Forms(HTMLParser):
    """The links of a page, and its forms with their fields, once for each button.

    Empty fields that a person must fill have a sample text.
    """

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.forms: list[Form] = []
        self._action: str | None = None
        self._fields: dict[str, str] = {}
        self._buttons: list[tuple[str, str] | None] = []
        self._file_field = ""
        # The names of the fields whose select, option without a value, or text the parser is in.
        self._select = ""
        self._option = ""
        self._textarea = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "a":
            self.links.append(given.get("href", ""))
        elif tag == "form" and given.get("method") == "post":
            self._action, self._fields, self._buttons = given["action"], {}, []
            self._file_field = ""
        elif tag == "option" and self._select:
            if "selected" in given or self._select not in self._fields:
                self._fields[self._select] = given.get("value", "")
                self._option = "" if "value" in given else self._select
        elif self._action is not None and "name" in given and tag != "button":
            self._note_field(tag, given)
        elif self._action is not None and tag == "button":
            named = (given["name"], given.get("value", "")) if "name" in given else None
            self._buttons.append(named)

    def _note_field(self, tag: str, given: dict[str, str]) -> None:
        name = given["name"]
        is_off = given.get("type") == "checkbox" and "checked" not in given
        if tag == "select":
            self._select = name
        elif given.get("type") == "file":
            self._file_field = name
        elif not is_off or name == "member":  # a group must have a member
            sample = SAMPLES.get(name, "Zoe") if "required" in given else ""
            self._fields[name] = given.get("value", "") or sample
            self._textarea = name if tag == "textarea" else ""

    def handle_data(self, data: str) -> None:
        # Browsers ignore a line break at the beginning of a textarea.
        if self._textarea and (text := data.removeprefix("\n")):
            self._fields[self._textarea] = text
        elif self._option:
            self._fields[self._option] = data.strip()

    def handle_endtag(self, tag: str) -> None:
        if tag == "option":
            self._option = ""
        elif tag == "select":
            self._select = ""
        elif tag == "textarea":
            self._textarea = ""
        elif tag == "form" and self._action is not None:
            for button in self._buttons or [None]:
                fields = {**self._fields, **dict([button] if button else [])}
                self.forms.append(Form(self._action, tuple(fields.items()), self._file_field))
            self._action = None


def kind_of(path: str) -> str:
    """Return the path without ids, which identifies a page's layout."""
    return re.sub(r"[a-z-]+-[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{40}", "*", path)


@pytest.fixture
def people(tmp_path: Path) -> Iterator[People]:
    """Open a server with people of every role, and data of each of them."""
    with world_on(tmp_path, "sqlite") as world:
        # An administrator of one organization among several may not open the page of backups.
        world.server.write(_forget_other_organization)
        fill(world)
        yield world


def _forget_other_organization(tx: Transaction) -> None:
    tx.run(delete(organizations).where(organizations.c.id == OTHER_ORGANIZATION))


def fill(people: People) -> None:
    ask: Any = people.ask
    blocks = [{"label": "human", "value": "Unknown."}]
    body = {"name": "Tutor", "model": MODEL, "memory_blocks": blocks}
    agent = ask(OPERATOR, "POST", "/v1/agents/", json=body)["id"]
    keys = {name: people.key(name) for name in ("ada", "eve")}
    keys["boss"] = people.key("boss", "admin")
    for name, key in keys.items():
        memory = {"body": f"{name} likes tea.", "policy": "propose"}
        ask(key, "PUT", f"/users/{name}/blocks/human", json=memory)
        talk = ask(key, "POST", f"/v1/conversations/?agent_id={agent}", json={"user_id": name})
        for new in ("coffee", "water"):
            people.server.says(
                call("memory_replace", label="human", old_string="tea", new_string=new), "Noted."
            )
            text = {"messages": [{"role": "user", "content": f"I like {new}."}], "streaming": False}
            ask(key, "POST", f"/v1/conversations/{talk['id']}/messages", json=text)
        facts = f"/v1/users/{name}/facts"
        for fact in ("I study geology.", "My favourite food is pizza."):
            ask(key, "POST", facts, json={"sentence": fact})
        request = ForgetRequest("", LOCAL_ORGANIZATION, people.id_of(name), "geology")
        people.server.write(lambda tx, asked=request: forget_requests.add(tx, asked))
    invited = [{"name": "hal"}, {"name": "ida"}]
    links = ask(OPERATOR, "POST", "/v1/invitations", json={"people": invited})
    token = links[0]["path"].partition("?token=")[2]
    people.http.post("/invitation", data={"token": token}, headers={**PAGE, **OWN})
    people.http.cookies.clear()
    shared = {"messages": [{"role": "user", "content": "Hello, all of you."}]}
    ask(OPERATOR, "POST", f"/v1/agents/{agent}/messages", json=shared)
    folder = ask(OPERATOR, "POST", "/v1/folders/", json={"name": "Shelf"})["id"]
    ask(OPERATOR, "PATCH", f"/v1/agents/{agent}/folders/attach/{folder}")
    ask(OPERATOR, "POST", "/v1/groups/", json={"agent_ids": [agent], "description": "Us."})


def crawl(browser: httpx2.Client) -> dict[Form, str]:
    """Follow all links from the home page, and return each form with the page that holds it."""
    waiting = deque([("/", "")])
    seen: set[str] = set()
    broken: list[str] = []
    counts: Counter[Any] = Counter()
    forms: dict[Form, str] = {}
    while waiting:
        address, source = waiting.popleft()
        kind = kind_of(urlsplit(address).path)
        is_way_out = address.startswith("/ui/login")
        if is_way_out or address in seen or counts[kind] == MOST_OF_A_KIND:
            continue
        seen.add(address)
        counts[kind] += 1
        page = browser.get(address)
        if not page.headers.get("content-type", "").startswith("text/html"):
            continue
        if page.status_code >= 400:
            broken.append(f"{source} links to {address}: {page.status_code} {reason_of(page)}")
        found = Forms()
        found.feed(page.text)
        for form in found.forms:
            layout = kind_of(str(form)), kind
            is_enough = counts[layout] == MOST_OF_A_KIND and "/proposals/" not in form[0]
            if form not in forms and not is_enough:
                counts[layout] += 1
                forms[form] = address
        links = (urldefrag(link)[0] for link in found.links)
        waiting.extend((link, address) for link in links if re.match(r"/(ui/.*)?$", link))
    assert broken == []
    return forms


# Pages whose buttons each role sees: `crawl` must find them.
_OWN_PAGES = frozenset(("/ui/people/*/facts", "/ui/people/*/forget-one"))
MUST_BE_SEEN = {
    "stranger": _OWN_PAGES,
    "user": _OWN_PAGES,
    "developer": frozenset[str](),
    "teacher": frozenset[str](),
    "administrator": _OWN_PAGES | {"/ui/invitations", "/ui/invitations/*/revoke"},
}


def seen_pages(forms: dict[Form, str]) -> set[str]:
    """Return the kinds of the forms' addresses, and of the pages that hold them."""
    return {kind_of(urlsplit(path).path) for form in forms for path in (form[0], forms[form])}


def test_a_link_for_another_person_shows_no_button(people: People) -> None:
    (row,) = people.ask(OPERATOR, "POST", "/v1/invitations", json={"people": [{"name": "joe"}]})
    with people.server.http(headers={**PAGE, **OWN}) as browser:
        browser.post("/ui/login", data={"key": people.key("ada")})
        page = browser.get(row["path"])
        assert "You are logged in as another user" in page.text
        assert 'name="token"' not in page.text
        browser.post("/ui/logout")
        assert 'name="token"' in browser.get(row["path"]).text


def reason_of(answer: httpx2.Response) -> str:
    """Return the error message of a page."""
    words = re.search(r'role="alert"[^>]*>([^<]*)', answer.text)
    return unescape(words[1]).strip() if words else ""


def fault_of(browser: httpx2.Client, form: Form, answer: httpx2.Response) -> str:
    """Return the fault of the answer to a form; "" for none."""
    status, reason = answer.status_code, reason_of(answer)
    if status == 303 and not order(form):
        location = answer.headers["location"]
        followed = browser.get(location)
        return "" if followed.status_code < 400 else f"leads to {location}: {reason_of(followed)}"
    is_expected = status in (400, 409, 422) or (status == 404 and order(form) > 0)
    return "" if status < 400 or (is_expected and reason) else f"{status} {reason}"


def order(form: Form) -> int:
    words = str(form)
    return next((number for number, word in enumerate(LAST, 1) if word in words), 0)


def test_messages_of_staff_on_an_agents_page_are_private(people: People) -> None:
    """A shared conversation is chosen explicitly and labelled; the default is private."""
    agent = people.ask(OPERATOR, "GET", "/v1/agents/")[0]["id"]
    home = f"/ui/agents/{agent}/chat"
    shared = people.ask(OPERATOR, "GET", f"/v1/conversations/default?agent_id={agent}")["id"]
    readers = [people.key("ada"), people.key("dora", "developer")]
    staff = {
        "admin": people.key("carla", "admin"),
        "teacher": people.key("theo", "developer", (*ROLE_SCOPES["developer"], "memory:read")),
        "operator": OPERATOR,
    }
    for name, key in staff.items():
        assert "Only you and Tutor" in people.send(key, "GET", home).text, name
        secret = f"Private note of the {name}: Bob repeats the year."
        answer = people.send(key, "POST", home, data={"message": secret})
        assert answer.status_code == 303
        assert secret in people.send(key, "GET", home).text
        for reader in readers:
            assert secret not in people.send(reader, "GET", home).text, name
            page = people.send(reader, "GET", f"{home}?conversation={shared}").text
            assert secret not in page, name
            assert "Everybody with a key can read this" in page
            own = answer.headers["location"].split("conversation=")[1].split("#")[0]
            assert people.send(reader, "GET", f"{home}?conversation={own}").status_code == 404
        page = people.send(key, "GET", f"{home}?conversation={shared}").text
        assert "What you write here is read by everybody with a key." in page
    # A developer's key has no separate conversation: the message box appears after a click on a
    # warning.
    page = people.send(readers[1], "GET", home).text
    assert "Write here for everybody" in page
    assert 'id="message"' not in page
    page = people.send(readers[0], "GET", f"{home}?conversation={shared}").text
    assert 'id="message"' not in page, "users may only read shared things"


def test_an_administrator_of_one_organization_among_several_sees_no_refused_link(
    tmp_path: Path,
) -> None:
    with world_on(tmp_path, "sqlite") as people:
        for organization in (LOCAL_ORGANIZATION, OTHER_ORGANIZATION):
            key = people.key("carla", "admin", organization=organization)
            with people.server.http(headers={**PAGE, **OWN}, follow_redirects=True) as browser:
                browser.post("/ui/login", data={"key": key})
                crawl(browser)


# Scopes of keys that may do one thing only; a key without a user is a service's.
NARROW: dict[str, tuple[Any, tuple[str, ...]]] = {
    "reader": ("user", tuple(name for name in sorted(ROLE_SCOPES["user"]) if ":read" in name)),
    "owner": ("user", ("memory:read", "memory:write", "memory:approve")),
    "talker": ("user", ("messages:read", "messages:write")),
    "service": ("service", ()),
}


@pytest.mark.parametrize("kind", NARROW)
def test_a_key_with_few_scopes_sees_no_refused_link_or_button(
    people: People, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ricordo.api.authentication.DELAY", 0)
    role, scopes = NARROW[kind]
    key = people.key("ada", role, scopes)
    with people.server.http(headers={**PAGE, **OWN}, follow_redirects=True) as browser:
        browser.post("/ui/login", data={"key": key})
        forms = crawl(browser)
        browser.follow_redirects = False
        refused = {}
        for form in sorted(forms, key=order):
            answer = form.send(browser)
            if fault := fault_of(browser, form, answer):
                refused[form] = (forms[form], fault)
        assert refused == {}


@pytest.mark.parametrize("role", ["stranger", "user", "developer", "teacher", "administrator"])
def test_every_visible_button_may_be_used_by_its_viewer(
    people: People, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ricordo.api.authentication.DELAY", 0)
    key = {
        "stranger": lambda: people.key("eve"),
        "user": lambda: people.key("ada"),
        "developer": lambda: people.key("dora", "developer"),
        "teacher": lambda: people.key(
            "tom", "developer", (*ROLE_SCOPES["developer"], "memory:read")
        ),
        "administrator": lambda: people.key("boss", "admin"),
    }[role]()
    with people.server.http(headers={**PAGE, **OWN}, follow_redirects=True) as browser:
        assert browser.post("/ui/login", data={"key": key}).status_code == 200
        forms = crawl(browser)
        assert len(forms) > 5
        browser.follow_redirects = False
        refused = {}
        waiting = sorted(forms, key=order)
        for form in waiting:
            answer = form.send(browser)
            if answer.status_code == 401 and order(form):
                break  # the form has deleted the key or its user
            if fault := fault_of(browser, form, answer):
                refused[form] = (forms[form], fault)
            elif answer.status_code == 200:  # a page with more buttons, such as a list of choices
                found = Forms()
                found.feed(answer.text)
                new = [one for one in found.forms if one not in forms]
                forms |= dict.fromkeys(new, form[0])
                waiting += new
        for form in [one for one in waiting if order(one)]:  # as from an outdated tab
            answer = form.send(browser)
            if answer.status_code == 401:
                break
            if fault := fault_of(browser, form, answer):
                refused[form] = (forms[form], f"sent again: {fault}")
        assert refused == {}
        assert len(seen_pages(forms) & MUST_BE_SEEN[role]) == len(MUST_BE_SEEN[role])
    people.server.provoked()
