"""Owners learn of proposals by mail and a signed webhook, and decide by one-time links."""

import hashlib
import hmac
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from sqlalchemy import select, update

from ricordo.agents.callbacks import signing_key
from ricordo.domain.clock import DAY
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.errors import Invalid
from ricordo.features.memory_care.notifications import jobs as handlers
from ricordo.features.memory_care.notifications import mail, queries
from ricordo.features.memory_care.notifications.options import NotificationSettings, findings
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import jobs, users
from ricordo.storage.schema.memory_tables import proposals
from tests.api.conftest import Api
from tests.features.knowledge.facts.test_routes import read_facts
from tests.features.memory_care.notifications.mail_sink import Sink, mail_sink
from tests.seams.http import get, ok, post, put, refused
from tests.seams.jobs import quick_jobs
from tests.seams.people import OPERATOR, People
from tests.seams.server import MODEL, serving
from tests.seams.waiting import wait_for
from tests.support.json_server import Served

__all__ = ["quick_jobs"]
LIMIT = 30
PUBLIC = "http://memory.example.org"


class Receiver:
    """A webhook receiver that stores bodies and headers; `statuses` are its next responses."""

    def __init__(self) -> None:
        self.requests: list[tuple[bytes, dict[str, str]]] = []
        self.statuses: list[int] = []
        self._served = Served(self)
        self.url = f"{self._served.url}/hook"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive()).get("body", b"")
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.requests.append((body, headers))
        status = self.statuses.pop(0) if self.statuses else 204
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def close(self) -> None:
        self._served.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    opened = Receiver()
    yield opened
    opened.close()


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    with mail_sink() as opened:
        for name, text in (
            ("SMTP_HOST", "127.0.0.1"),
            ("SMTP_PORT", str(opened.port)),
            ("SMTP_SECURITY", "none"),
            ("MAIL_FROM", "Ricordo <memory@example.org>"),
            ("PUBLIC_URL", PUBLIC),
        ):
            monkeypatch.setenv(f"RICORDO_{name}", text)
        yield opened


class Ada:
    """A user with an e-mail address, her pending proposals, and her notification settings."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.http = api.http
        self.name = new_id("ada")
        put(self.http, self.name, "student", "Name: Ada\nLikes tea.\n")
        name = self.name
        api.server.write(
            lambda tx: tx.run(
                update(users)
                .where(users.c.identifier == name)
                .values(email="ada@example.org", name="Ada")
            )
        )

    def chooses(self, **choice: Any) -> Any:
        return ok(self.http.patch(f"/users/{self.name}/notifications", json=choice))

    def status(self) -> Any:
        return ok(self.http.get(f"/users/{self.name}/notifications"))

    def suggested(self, new: str = "Likes green tea.", days_ago: float = 0) -> str:
        edit = {"old_string": "Likes tea.", "new_string": new, "reasoning": "She said so."}
        path = "student/propose"
        proposal = str(post(self.http, self.name, path, **edit, agent_id=new_id("tutor"))["id"])
        created_at = proposals.c.created_at - int(days_ago * DAY)
        statement = update(proposals).where(proposals.c.id == proposal)
        self.api.server.write(lambda tx: tx.run(statement.values(created_at=created_at)))
        return proposal

    def look(self) -> None:
        """Run the job that finds users to notify, and wait until all digests are sent."""
        job = Job("notifications.plan", LOCAL_ORGANIZATION)
        self.api.server.run(handlers.plan(self.api.server.runtime, job, lambda *_: None))
        wait_for(lambda: not self._open_jobs())

    def _open_jobs(self) -> bool:
        is_open = (jobs.c.kind == "notifications.send") & jobs.c.status.in_(("waiting", "running"))
        return bool(self.api.server.read(lambda tx: tx.all(select(jobs.c.id).where(is_open))))


@pytest.fixture
def ada(api: Api, sink: Sink) -> Ada:
    del sink  # the fixture sets variables that the server reads
    api.server.settings.allow_private_callbacks = True
    return Ada(api)


def link_in(text: str) -> str:
    return str(re.findall(rf"{re.escape(PUBLIC)}(/decide\?token=\S+)", text)[0])


def decides(http: httpx2.Client, link: str, decision: str, **form: str) -> httpx2.Response:
    token = link.partition("token=")[2]
    return http.post("/decide", data={"token": token, "decision": decision, **form})


def test_a_day_old_proposal_is_announced_once_and_its_link_works_once(
    ada: Ada, sink: Sink, receiver: Receiver
) -> None:
    ada.chooses(email="daily", webhook="daily", webhook_url=receiver.url)
    new = ada.suggested("Likes no tea.")
    ada.chooses(hour=(time.gmtime().tm_hour - 1) % 24 if time.gmtime().tm_hour else 23)
    ada.look()
    first_count = len(sink.messages)
    assert first_count == len(receiver.requests) == 0, "nothing may be sent before the chosen hour"

    old = ada.suggested(days_ago=1.1)
    ada.look()
    ada.look()

    (mail,) = sink.messages
    assert (mail["To"], mail["From"]) == ("ada@example.org", "Ricordo <memory@example.org>")
    assert mail["Subject"] == "2 suggestions wait for your decision"
    text = mail.get_content()
    assert "− Likes tea." in text
    assert "+ Likes green tea." in text
    assert "Why: She said so." in text
    assert "works once" in text
    ((body, headers),) = receiver.requests
    key = bytes.fromhex(signing_key(ada.api.server.settings.data_dir))
    stamp, signature = re.fullmatch(
        r"t=(\d+),v1=([0-9a-f]+)", headers["x-ricordo-signature"]
    ).groups()  # type: ignore[union-attr]
    assert hmac.new(key, f"{stamp}.".encode() + body, hashlib.sha256).hexdigest() == signature
    sent = orjson.loads(body)
    assert {entry["id"] for entry in sent["proposals"]} == {old, new}
    assert (sent["user"], sent["waiting"]) == ("Ada", 2)

    link = link_in(text)
    for _ in range(3):  # the preview of a mail program, and two visits
        shown = ada.http.get(link)
        assert (shown.status_code, "Approve" in shown.text) == (200, True)
        assert "no-referrer" in shown.headers["referrer-policy"]
    assert ada.status()["waiting"] == 2
    assert "Approved" in ok_page(decides(ada.http, link, "approve"))
    assert "Likes green tea." in get(ada.http, ada.name, "student")["body"]
    history = get(ada.http, ada.name, "student/history")
    for decision in ("approve", "reject"):
        assert decides(ada.http, link, decision).status_code == 409
    assert ada.http.get(link).status_code == 409
    assert get(ada.http, ada.name, "student/history") == history
    assert ada.status()["waiting"] == 1


def test_proposed_facts_are_announced_with_their_page(
    ada: Ada, sink: Sink, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Facts alone are also announced, once; facts decided meanwhile are not."""
    monkeypatch.setenv("RICORDO_FACTS_IDLE_SECONDS", "0")
    monkeypatch.setenv("RICORDO_FACTS_BY", "rules")
    server = ada.api.server
    server.says("Noted.")
    ada.chooses(email="immediate", webhook="immediate", webhook_url=receiver.url)
    ok(ada.http.put(f"/v1/users/{ada.name}/facts/policy", json={"policy": "propose"}))
    agent = ok(ada.http.post("/v1/agents/", json={"model": MODEL}))["id"]
    said = {"input": "I play the xqcello."}
    for _ in range(2):
        ok(
            ada.http.post(
                f"/v1/agents/{agent}/messages", json=said, headers={"x-ricordo-user": ada.name}
            )
        )
        read_facts(server)
        ada.look()
    mails = [mail for mail in sink.messages if "fact" in mail["Subject"]]
    assert len(mails) == 1
    (fact,) = ok(ada.http.get(f"/v1/users/{ada.name}/facts", params={"state": "proposed"}))
    text = mails[0].get_content()
    assert mails[0]["Subject"] == "For your decision: 1 fact"
    assert f"{PUBLIC}/ui/people/{fact['user_id']}/facts" in text
    assert "works once" not in text, "an e-mail without one-time links explains none"
    told = [orjson.loads(body) for body, _ in receiver.requests]
    assert {"what": "1 fact", "page": f"/ui/people/{fact['user_id']}/facts"} in [
        entry for each in told for entry in each["also_waiting"]
    ]
    ok(ada.http.post(f"/v1/users/{ada.name}/facts/{fact['id']}/approve"))
    before = len(sink.messages)
    ada.look()
    assert len(sink.messages) == before


def ok_page(answer: httpx2.Response) -> str:
    assert answer.status_code == 200, answer.text
    return answer.text


def test_a_kill_after_sending_repeats_a_notification_with_the_same_id(
    ada: Ada, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada.chooses(email="immediate")
    ada.suggested()
    kills = iter([OSError("killed")])
    mark = queries.mark_told

    def killed(tx: Transaction, *arguments: Any) -> None:
        for error in kills:
            raise error
        mark(tx, *arguments)

    monkeypatch.setattr(queries, "mark_told", killed)
    ada.look()
    ada.look()
    first, second = sink.messages
    assert first["Message-ID"] == second["Message-ID"]
    assert link_in(first.get_content()) == link_in(second.get_content())


def test_notification_settings_can_be_changed_on_their_page(ada: Ada) -> None:
    form = {"email": "daily", "webhook": "", "webhook_url": "", "hour": "9"}
    saved = ada.http.post("/ui/notifications", data=form)
    assert saved.status_code == 303, saved.text
    page = ok_page(ada.http.get("/ui/notifications"))
    assert '<option value="daily" selected>' in page
    assert 'value="9"' in page


def test_notifications_are_sent_only_if_chosen(ada: Ada, sink: Sink) -> None:
    assert (ada.status()["email_in_effect"], ada.status()["webhook_in_effect"]) == ("off", "off")
    ada.suggested(days_ago=3)
    ada.look()
    assert sink.messages == []
    # The organization's choice applies to all users, except those who choose for themselves.
    ok(ada.http.patch("/v1/notifications", json={"email": "immediate"}))
    ada.chooses(email="off")
    ada.look()
    assert sink.messages == []
    ada.chooses(email=None)
    assert ada.status()["email_in_effect"] == "immediate"
    ada.look()
    assert "ada@example.org" in [mail["To"] for mail in sink.messages]
    ok(ada.http.patch("/v1/notifications", json={"email": None}))


def test_failed_notifications_are_retried_and_a_refused_address_waits_a_day(
    ada: Ada, sink: Sink, receiver: Receiver
) -> None:
    ada.chooses(email="immediate", webhook="immediate", webhook_url=receiver.url)
    sink.answers["RCPT"] = "550 nobody here"
    receiver.statuses = [500, 503]
    ada.suggested()
    ada.look()
    assert sink.messages == []
    assert len(receiver.requests) == 3, "the webhook must be retried until it succeeds"
    assert len({headers["x-ricordo-delivery"] for _, headers in receiver.requests}) == 1
    assert "refuses the address" in ada.status()["problem"]
    sink.answers.clear()
    ada.look()
    assert sink.messages == []
    ada.chooses(email="immediate")
    ada.look()
    assert len(sink.messages) == 1


def test_a_webhook_at_a_private_address_is_refused(ada: Ada) -> None:
    ada.api.server.settings.allow_private_callbacks = False
    for url in ("http://127.0.0.1/x", "http://10.0.0.8/x", "http://[::1]/x", "ftp://example.org"):
        choice = {"webhook": "daily", "webhook_url": url}
        refused(ada.http.patch(f"/users/{ada.name}/notifications", json=choice), 400)


def test_decision_links_are_stored_as_hashes_expire_and_fit_one_proposal(ada: Ada) -> None:
    proposal = ada.suggested()
    made = ok(ada.http.post(f"/users/{ada.name}/decision-links", json={"proposal_id": proposal}))
    token = made["path"].partition("token=")[2]
    assert made["url"] == PUBLIC + made["path"]
    link = ada.api.server.read(
        lambda tx: queries.find_link(tx, hashlib.sha256(token.encode()).hexdigest())
    )
    assert link
    assert link.proposal_id == proposal
    for wrong in (token[:-1], token + "x", "", "x" * 43):
        assert ada.http.get("/decide", params={"token": wrong}).status_code == 404
        assert decides(ada.http, f"token={wrong}", "approve").status_code == 404
    assert decides(ada.http, made["path"], "perhaps").status_code == 400
    # After a decision elsewhere, the link decides nothing any more.
    post(ada.http, ada.name, f"student/diffs/{proposal}/reject")
    assert decides(ada.http, made["path"], "approve").status_code == 409

    late = ada.suggested("Likes coffee.")
    made = ok(ada.http.post(f"/users/{ada.name}/decision-links", json={"proposal_id": late}))
    hashed = hashlib.sha256(made["path"].partition("token=")[2].encode()).hexdigest()
    table = queries.decision_links
    ended = update(table).where(table.c.token_hash == hashed).values(expires_at=1)
    ada.api.server.write(lambda tx: tx.run(ended))
    answer = decides(ada.http, made["path"], "approve")
    assert (answer.status_code, "expired" in answer.text) == (409, True)


def test_a_decision_link_can_reject_with_a_reason(ada: Ada) -> None:
    proposal = ada.suggested()
    made = ok(ada.http.post(f"/users/{ada.name}/decision-links", json={"proposal_id": proposal}))
    assert "Rejected" in ok_page(
        decides(ada.http, made["path"], "reject", reason="I like black tea.")
    )
    (rejected,) = ok(ada.http.get(f"/users/{ada.name}/diffs", params={"status": "rejected"}))
    assert (rejected["id"], rejected["note"]) == (proposal, "I like black tea.")


def test_decision_times_and_unseen_proposals_are_counted(ada: Ada) -> None:
    before = ok(ada.http.get("/v1/notifications/decisions"))
    decided, unseen = ada.suggested(days_ago=0.5), ada.suggested("Likes cake.")
    figures = ok(ada.http.get("/v1/notifications/decisions"))
    assert figures["never_seen"] - before["never_seen"] == 2
    post(ada.http, ada.name, f"student/diffs/{decided}/approve")
    after = ok(ada.http.get("/v1/notifications/decisions"))
    assert after["decided"] - before["decided"] == 1
    assert after["never_seen"] - before["never_seen"] == 1, unseen
    metrics = ada.http.get("/metrics").text
    assert "ricordo_decision_seconds_median" in metrics
    assert "ricordo_proposals_never_seen" in metrics


def test_a_page_without_proposals_does_not_count_as_a_look_at_them(tmp_path: Path) -> None:
    with serving(tmp_path, api_key=OPERATOR) as server, server.http() as http:
        people = People(server, http)
        key = people.key("ida")
        people.ask(key, "PUT", "/users/ida/blocks/student", json={"body": "Likes tea."})
        edit = {"old_string": "tea", "new_string": "pie", "agent_id": "t", "reasoning": "Said."}
        people.ask(OPERATOR, "POST", "/users/ida/blocks/student/propose", json=edit)

        def never_seen() -> int:
            figures = people.ask(OPERATOR, "GET", "/v1/notifications/decisions")
            return int(figures["never_seen"])

        for path in ("learning", "facts"):
            ok_page(people.send(key, "GET", f"/ui/people/ida/{path}"))
        assert never_seen() == 1
        ok_page(people.send(key, "GET", "/ui/people/ida"))
        wait_for(lambda: never_seen() == 0)  # the visit is stored after the answer


@pytest.mark.parametrize("sender", ["a b@example.org", "Ricordo <ä@example.org>", "nobody"])
def test_a_sender_that_an_e_mail_cannot_have_is_named(sender: str) -> None:
    settings = NotificationSettings(mail_from=sender)
    with pytest.raises(Invalid, match="RICORDO_MAIL_FROM"):
        mail.new_message("ada@example.org", "Hello", settings, "job-1")


def test_the_doctor_warns_of_a_mail_server_without_an_address_for_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert findings(None) == []
    monkeypatch.setenv("RICORDO_SMTP_HOST", "mail.example.org")
    (line,) = findings(None)
    assert line.startswith("!RICORDO_SMTP_HOST is set, but RICORDO_PUBLIC_URL is not.")
    monkeypatch.setenv("RICORDO_PUBLIC_URL", "https://memory.example.org")
    assert findings(None) == []
