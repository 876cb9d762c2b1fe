"""Invitations and logins by e-mail: links that log one person in, once."""

import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from sqlalchemy import select, update

from ricordo.api.guard import COOKIE
from ricordo.domain.ids import new_id
from ricordo.features.identity.sign_in_links import pages
from ricordo.features.identity.sign_in_links.queries import sign_in_links
from ricordo.storage.schema.core_tables import jobs, users
from tests.features.memory_care.notifications.mail_sink import Sink, mail_sink
from tests.seams.http import OPERATOR, bearer, ok
from tests.seams.jobs import quick_jobs
from tests.seams.server import ServerInThread, serving
from tests.seams.waiting import wait_for

__all__ = ["quick_jobs"]
PUBLIC = "http://memory.example.org"
DAY = 24 * 3600
LIMIT = 30


@pytest.fixture(scope="module")
def sink() -> Iterator[Sink]:
    """A mail server; the settings of this module's server name it."""
    with mail_sink() as opened, pytest.MonkeyPatch.context() as patch:
        for name, text in (
            ("SMTP_HOST", "127.0.0.1"),
            ("SMTP_PORT", str(opened.port)),
            ("SMTP_SECURITY", "none"),
            ("MAIL_FROM", "Ricordo <memory@example.org>"),
            ("PUBLIC_URL", PUBLIC),
        ):
            patch.setenv(f"RICORDO_{name}", text)
        yield opened


@pytest.fixture(scope="module")
def school(sink: Sink, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    del sink  # the fixture sets variables that the server reads
    with serving(tmp_path_factory.mktemp("school"), api_key=OPERATOR) as server:
        yield server


@pytest.fixture(scope="module")
def http(school: ServerInThread) -> Iterator[httpx2.Client]:
    """The operator's client."""
    with school.http(headers=bearer(OPERATOR)) as opened:
        yield opened


@pytest.fixture
def browser(school: ServerInThread) -> Iterator[httpx2.Client]:
    with school.http() as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_limits(school: ServerInThread) -> None:
    school.runtime.features["identity"]._buckets.clear()


def invite(http: httpx2.Client, **person: Any) -> dict[str, Any]:
    sent = {"people": [{"name": new_id("ada")} | person]}
    (row,) = ok(http.post("/v1/invitations", json=sent))
    return dict(row)


def accept(browser: httpx2.Client, path: str, **form: str) -> httpx2.Response:
    page, _, token = path.partition("?token=")
    return browser.post(page, data={"token": token, **form}, follow_redirects=False)


def max_age(answer: httpx2.Response) -> int:
    cookies = answer.headers.get_list("set-cookie")
    (cookie,) = (cookie for cookie in cookies if cookie.startswith(COOKIE))
    return int(re.findall(r"Max-Age=(\d+)", cookie)[0])


def test_an_invitation_opens_one_session_and_viewing_it_does_not_count(
    http: httpx2.Client, browser: httpx2.Client, school: ServerInThread
) -> None:
    row = invite(http)
    for _ in range(3):  # programs that fetch links for a preview
        assert row["user"] in ok_page(browser.get(row["path"]))
    answer = accept(browser, row["path"])
    assert (answer.status_code, max_age(answer)) == (303, DAY // 2)
    assert row["user"] in ok_page(browser.get("/"))
    assert ok(browser.get(f"/users/{row['user_id']}/blocks")) == []
    with school.http() as second_device:
        for late in (second_device.get(row["path"]), accept(second_device, row["path"])):
            assert late.status_code == 410
            assert "used already" in late.text
            assert COOKIE not in late.headers.get("set-cookie", "").replace(f'{COOKIE}=""', "")
    (shown,) = [one for one in ok(http.get("/v1/invitations")) if one["id"] == row["id"]]
    assert shown["status"] == "accepted"


def ok_page(answer: httpx2.Response) -> str:
    assert answer.status_code == 200, answer.text
    return answer.text


def test_a_person_may_stay_signed_in_for_thirty_days(
    http: httpx2.Client, browser: httpx2.Client
) -> None:
    answer = accept(browser, invite(http)["path"], stays="yes")
    assert max_age(answer) == 30 * DAY
    for choice, seconds in (("yes", 30 * DAY), ("", DAY // 2)):
        browser.cookies.clear()
        form = {"key": OPERATOR, "stays": choice}
        logged_in = browser.post("/ui/login", data=form, follow_redirects=False)
        assert max_age(logged_in) == seconds
    assert "Invitations" in ok_page(browser.get("/ui/invitations"))


@pytest.mark.parametrize("ended", ["expired", "revoked", "disabled", "replaced", "changed"])
def test_an_expired_revoked_or_replaced_link_opens_no_session(
    http: httpx2.Client, browser: httpx2.Client, school: ServerInThread, ended: str
) -> None:
    row = invite(http)
    path = row["path"]
    if ended == "expired":
        statement = update(sign_in_links).where(sign_in_links.c.id == row["id"])
        school.write(lambda tx: tx.run(statement.values(expires_at=1)))
    elif ended == "revoked":
        assert ok(http.delete(f"/v1/invitations/{row['id']}"))["status"] == "revoked"
    elif ended == "disabled":
        ok(http.patch(f"/v1/users/{row['user_id']}", json={"disabled": True}))
    elif ended == "replaced":
        newer = invite(http, name=row["user"])
        assert newer["user_id"] == row["user_id"]
        assert accept(browser, newer["path"]).status_code == 303
        browser.cookies.clear()
    else:
        path = path[:-1]
    for answer in (browser.get(path), accept(browser, path)):
        assert answer.status_code == 410
        assert not any(COOKIE in one and "Max-Age=0" not in one for one in cookies_of(answer))


def cookies_of(answer: httpx2.Response) -> list[str]:
    return list(answer.headers.get_list("set-cookie"))


def test_disabling_a_user_ends_their_session(
    http: httpx2.Client, browser: httpx2.Client, school: ServerInThread
) -> None:
    row = invite(http)
    accept(browser, row["path"], stays="yes")
    ok(http.patch(f"/v1/users/{row['user_id']}", json={"disabled": True}))
    assert browser.get(f"/users/{row['user_id']}/blocks").status_code == 401


def test_enabling_a_user_again_restores_no_sessions_or_links(
    http: httpx2.Client, browser: httpx2.Client
) -> None:
    row = invite(http)
    accept(browser, row["path"], stays="yes")
    newer = invite(http, user=row["user_id"])
    for is_disabled in (True, False):
        ok(http.patch(f"/v1/users/{row['user_id']}", json={"disabled": is_disabled}))
    assert browser.get(f"/users/{row['user_id']}/blocks").status_code == 401
    browser.cookies.clear()
    assert accept(browser, newer["path"]).status_code == 410


def test_a_link_is_bound_to_its_user_and_its_organization(
    http: httpx2.Client, browser: httpx2.Client
) -> None:
    accept(browser, invite(http)["path"])
    row = invite(http)
    assert accept(browser, row["path"]).status_code == 403  # another user is logged in
    acme = ok(http.post("/v1/organizations/", json={"name": new_id("acme")}))["id"]
    draft = {"name": "boss", "user": "boss", "role": "admin"}
    key = ok(http.post("/v1/keys/", params={"organization": acme}, json=draft))["key"]
    headers = bearer(key)
    assert ok(http.get("/v1/invitations", headers=headers)) == []
    assert http.delete(f"/v1/invitations/{row['id']}", headers=headers).status_code == 404
    sent = {"people": [{"name": row["user"]}]}
    (namesake,) = ok(http.post("/v1/invitations", json=sent, headers=headers))
    assert namesake["user_id"] != row["user_id"]
    browser.cookies.clear()
    assert accept(browser, namesake["path"]).status_code == 303
    assert browser.get(f"/users/{row['user_id']}/blocks").status_code == 404


def test_pages_of_other_origins_cannot_accept_an_invitation(
    http: httpx2.Client, browser: httpx2.Client
) -> None:
    row = invite(http)
    page, _, token = row["path"].partition("?token=")
    headers = {"origin": "https://evil.example.org", "sec-fetch-site": "cross-site"}
    assert browser.post(page, data={"token": token}, headers=headers).status_code == 403
    assert accept(browser, row["path"]).status_code == 303


def test_an_invitation_sets_the_role_but_never_administrator(
    http: httpx2.Client, browser: httpx2.Client
) -> None:
    row = invite(http, role="teacher")
    assert row["role"] == "developer"
    accept(browser, row["path"])
    assert browser.get("/ui/courses").status_code == 200
    assert browser.get("/v1/keys/").status_code == 403
    for role in ("admin", "service", "root"):
        sent = {"people": [{"name": "x", "role": role}]}
        assert http.post("/v1/invitations", json=sent).status_code == 400


def test_one_fault_in_a_list_cancels_all_invitations(http: httpx2.Client) -> None:
    before = len(ok(http.get("/v1/users/", params={"limit": 1000})))
    for line in ("Bob,no-address,", "Bob,,no such course", "B<ob,,", "a/b,,"):
        sent = {"csv": f"name,email,course\n{new_id('ok')},,\n{line}\n"}
        answer = http.post("/v1/invitations", json=sent)
        assert answer.status_code in (400, 422), answer.text
        assert "Line 3" in answer.text
        assert "No invitation was made" in answer.text
    assert len(ok(http.get("/v1/users/", params={"limit": 1000}))) == before


def test_the_invitations_page_accepts_a_file_of_people(
    http: httpx2.Client, browser: httpx2.Client
) -> None:
    name = new_id("Zoë")
    file = f"\ufeffName;E-Mail;Role\r\n{name};{new_id('zoe')}@example.org;student\r\n"
    files = {"file": ("class.csv", file.encode("utf-16"), "text/csv")}
    text = ok_page(http.post("/ui/invitations", files=files, data={"csv": ""}))
    assert name in text
    (link,) = re.findall(rf"<code>{re.escape(PUBLIC)}(/invitation\?token=[\w-]+)</code>", text)
    assert name in ok_page(browser.get(link))
    (row,) = [one for one in ok(http.get("/v1/invitations")) if one["user"] == name]
    revoked = http.post(f"/ui/invitations/{row['id']}/revoke", follow_redirects=False)
    assert revoked.status_code == 303
    assert browser.get(link).status_code == 410
    answer = http.post("/ui/invitations", data={"csv": "name,role\nx,boss"}, files={"file": ""})
    assert answer.status_code == 400
    assert "Line 2" in answer.text


def wait_for_link_jobs(school: ServerInThread) -> None:
    """Wait until no job of links is open."""
    is_open = jobs.c.kind.like("sign_in_links.%") & jobs.c.status.in_(("waiting", "running"))
    wait_for(lambda: not school.read(lambda tx: tx.all(select(jobs.c.id).where(is_open))))


def mailed_links(sink: Sink, page: str) -> list[str]:
    texts = [message.get_content() for message in sink.messages]
    pattern = re.compile(rf"{re.escape(PUBLIC)}({re.escape(page)}\?token=[\w-]+)")
    return [link for text in texts for link in pattern.findall(text)]


def test_an_invitation_is_sent_by_e_mail(
    http: httpx2.Client, browser: httpx2.Client, school: ServerInThread, sink: Sink
) -> None:
    sink.messages.clear()
    address = f"{new_id('ada')}@example.org"
    person = {"name": "Ada", "email": address}
    ok(http.post("/v1/invitations", json={"people": [person], "mail": True}))
    wait_for_link_jobs(school)
    (message,) = sink.messages
    assert message["to"] == address
    (link,) = mailed_links(sink, "/invitation")
    assert accept(browser, link).status_code == 303
    answer = http.post("/v1/invitations", json={"people": [{"name": "x"}], "mail": True})
    assert answer.status_code == 400


def test_the_email_login_answers_the_same_for_every_address(
    http: httpx2.Client, browser: httpx2.Client, school: ServerInThread, sink: Sink
) -> None:
    address = f"{new_id('Ada')}@example.org"
    row = invite(http, name="Ada", email=address, role="teacher")
    accept(browser, row["path"])
    browser.cookies.clear()
    sink.messages.clear()
    answers = [
        browser.post("/login/mail", data={"email": email})
        for email in (address.upper(), "nobody@example.org")
    ]
    assert len({(one.status_code, one.text) for one in answers}) == 1
    assert answers[0].status_code == 200
    wait_for_link_jobs(school)
    (link,) = mailed_links(sink, "/login/link")
    assert "Log in as Ada" in ok_page(browser.get(link))
    answer = accept(browser, link, stays="yes")
    assert (answer.status_code, max_age(answer)) == (303, 30 * DAY)
    assert browser.get("/ui/courses").status_code == 200  # a teacher's invitation was accepted
    browser.cookies.clear()
    assert accept(browser, link).status_code == 410
    assert browser.get(link.replace("/login/link", "/invitation")).status_code == 410


@pytest.mark.parametrize("is_invited", [True, False])
def test_a_guardian_who_logs_in_by_e_mail_stays_a_guardian(
    http: httpx2.Client,
    browser: httpx2.Client,
    school: ServerInThread,
    sink: Sink,
    is_invited: bool,
) -> None:
    """Guardians need not have opened their invitation, and may have only a key."""
    address = f"{new_id('Eva')}@example.org"
    role = "guardian" if is_invited else "user"
    row = invite(http, name="Eva", email=address, role=role)
    if not is_invited:
        school.key(row["user_id"], "guardian")
    wait_for_link_jobs(school)
    sink.messages.clear()
    browser.post("/login/mail", data={"email": address})
    wait_for_link_jobs(school)
    (link,) = mailed_links(sink, "/login/link")
    assert accept(browser, link).status_code == 303
    assert browser.get("/ui/guardian").status_code == 200
    assert browser.get("/ui/chat").status_code in (403, 404)


def test_email_logins_are_rate_limited(
    http: httpx2.Client,
    browser: httpx2.Client,
    school: ServerInThread,
    sink: Sink,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "_ASKED_PER_MINUTE", 5)
    address = f"{new_id('ada')}@example.org"
    invite(http, email=address)
    sink.messages.clear()
    statuses = [browser.post("/login/mail", data={"email": address}).status_code for _ in range(7)]
    assert statuses == [200] * 5 + [429] * 2
    wait_for_link_jobs(school)
    assert len(mailed_links(sink, "/login/link")) == 3


def test_a_teacher_keeps_the_role_after_the_invitation_expired(
    http: httpx2.Client, browser: httpx2.Client, school: ServerInThread, sink: Sink
) -> None:
    address = f"{new_id('ada')}@example.org"
    row = invite(http, email=address, role="teacher")
    accept(browser, row["path"])
    browser.cookies.clear()
    statement = update(sign_in_links).where(sign_in_links.c.id == row["id"])
    school.write(lambda tx: tx.run(statement.values(expires_at=1)))
    # A new invitation deletes old logins.
    invite(http)
    sink.messages.clear()
    browser.post("/login/mail", data={"email": address})
    wait_for_link_jobs(school)
    (link,) = mailed_links(sink, "/login/link")
    accept(browser, link)
    assert browser.get("/ui/courses").status_code == 200


def test_an_invitation_by_name_cannot_open_an_existing_account(http: httpx2.Client) -> None:
    name = new_id("anna")
    made = ok(http.post("/v1/users/", json={"name": name, "identifier": name}))
    answer = http.post("/v1/invitations", json={"people": [{"name": name}]})
    assert answer.status_code == 400
    assert "another person" in answer.text
    assert invite(http, user=name)["user_id"] == made["id"]
    assert invite(http, name=name)["user_id"] == made["id"]  # the list is sent a second time


def test_two_people_with_one_name_get_separate_accounts(
    http: httpx2.Client, browser: httpx2.Client, school: ServerInThread
) -> None:
    name = new_id("anna")
    first = invite(http, name=name)
    lost = invite(http, name=name)  # the first link was lost
    assert lost["user_id"] == first["user_id"]
    accept(browser, lost["path"])
    answer = http.post("/v1/invitations", json={"people": [{"name": name}]})
    assert answer.status_code == 400
    assert "another person" in answer.text
    second = invite(http, name=name, user=f"{name}-2")
    assert second["user_id"] != first["user_id"]
    again = {"name": name, "user": first["user_id"], "role": "user", "course": ""}
    page = ok_page(http.post("/ui/invitations", data=again))
    (link,) = re.findall(rf"<code>{re.escape(PUBLIC)}(/invitation\?token=[\w-]+)</code>", page)
    browser.cookies.clear()
    assert accept(browser, link).status_code == 303
    assert ok(browser.get(f"/users/{first['user_id']}/blocks")) == []
    twice = http.post("/v1/invitations", json={"people": [{"name": "Bo"}, {"name": "Bo"}]})
    assert twice.status_code == 400
    assert "two people" in twice.text


def test_an_invitation_by_name_cannot_open_an_account_with_a_key(http: httpx2.Client) -> None:
    row = invite(http)
    ok(http.post("/v1/keys/", json={"name": "laptop", "user": row["user_id"], "role": "user"}))
    answer = http.post("/v1/invitations", json={"people": [{"name": row["user"]}]})
    assert answer.status_code == 400


def test_a_person_listed_twice_gets_one_link(http: httpx2.Client) -> None:
    ada = {"name": "Ada", "email": f"{new_id('ada')}@example.org"}
    assert len(ok(http.post("/v1/invitations", json={"people": [ada, ada]}))) == 1
    for other in ({"role": "teacher"}, {"email": str(ada["email"]).upper()}):
        answer = http.post("/v1/invitations", json={"people": [ada, ada | other]})
        assert answer.status_code == 400
        assert "named twice" in answer.text


@pytest.mark.parametrize(
    "address",
    [
        "ada@example.org\r\nBcc: all@example.org",
        "ada@example.org, bob@example.org",
        "Ada <ada@example.org>",
        "ada@example.org\0",
        "@",
        "a" * 300 + "@example.org",
    ],
)
def test_email_addresses_cannot_inject_headers_or_recipients(
    http: httpx2.Client, browser: httpx2.Client, school: ServerInThread, sink: Sink, address: str
) -> None:
    sink.messages.clear()
    answer = http.post("/v1/invitations", json={"people": [{"name": "x", "email": address}]})
    assert answer.status_code in (400, 422)
    assert browser.post("/login/mail", data={"email": address}).status_code in (200, 400)
    wait_for_link_jobs(school)
    assert sink.messages == []


def test_line_breaks_in_a_name_cannot_inject_mail_headers(
    http: httpx2.Client, school: ServerInThread, sink: Sink
) -> None:
    address = f"{new_id('ada')}@example.org"
    row = invite(http, email=address)
    # An older version, or a login provider, may have stored it in this form.
    statement = update(users).where(users.c.id == row["user_id"])
    school.write(lambda tx: tx.run(statement.values(name="Ada\r\nBcc: all@example.org\u202e")))
    sink.messages.clear()
    person = {"name": "Ada", "email": address}
    ok(http.post("/v1/invitations", json={"people": [person], "mail": True}))
    wait_for_link_jobs(school)
    (message,) = sink.messages
    assert message["bcc"] is None
    assert message.get_content().startswith("Hello Ada Bcc: all@example.org")


def test_an_address_refused_by_the_mail_server_is_shown_on_the_list(
    http: httpx2.Client, school: ServerInThread, sink: Sink
) -> None:
    sink.answers["RCPT"] = "550 no"
    try:
        person = {"name": new_id("ada"), "email": f"{new_id('ada')}@example.org"}
        (row,) = ok(http.post("/v1/invitations", json={"people": [person], "mail": True}))
        wait_for_link_jobs(school)
    finally:
        sink.answers.clear()
    (shown,) = [one for one in ok(http.get("/v1/invitations")) if one["id"] == row["id"]]
    assert "refuses the address" in shown["problem"]


def test_a_server_without_api_keys_refuses_invitations(tmp_path: Any) -> None:
    with serving(tmp_path) as server, server.http() as client:
        answer = client.post("/v1/invitations", json={"people": [{"name": "ada"}]})
        assert answer.status_code == 409
        assert "ricordo key create" in answer.text
