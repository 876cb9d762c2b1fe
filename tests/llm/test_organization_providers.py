"""Models of an organization's providers, asked over real HTTP."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ricordo.domain.model import OrganizationProvider
from ricordo.domain.usage import Usage
from ricordo.errors import Conflict, Invalid, ModelError, NotFound, Unavailable
from ricordo.llm.chat import whole_reply
from ricordo.llm.policy import CallPolicy
from ricordo.llm.provider_table import Keys
from ricordo.llm.registry import organization_providers
from ricordo.llm.registry.models import Models
from ricordo.llm.registry.organization_providers import FRESH_SECONDS, OrganizationProviders
from ricordo.llm.scripted import ScriptedModel
from ricordo.secret import FILE, Secret
from ricordo.settings import ProviderSettings, Settings
from tests.llm.talk import Waits, ask
from tests.support.model_server import Answer, ModelServer

LISTED = Answer(
    {"object": "list", "data": [{"id": "small"}, {"id": "large", "context_window": 9_000}]}
)


class Desk:
    """Providers of organizations, as a database would hold them, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.cipher = Secret(folder)
        self.rows: dict[str, list[OrganizationProvider]] = {}
        self.reads: list[str] = []
        self.time = 0.0

    async def load(self, organization_id: str) -> list[OrganizationProvider]:
        self.reads.append(organization_id)
        return self.rows.get(organization_id, [])

    def put(
        self, server: ModelServer, key: str = "key-of-a-1", *, organization_id: str = "org-a"
    ) -> OrganizationProvider:
        """Make this the only provider of the organization."""
        secret = self.cipher.encrypt(json.dumps({"api_key": key}))
        made = OrganizationProvider(
            "provider-1",
            organization_id,
            "mine",
            "openai",
            0,
            0,
            base_url=server.url,
            secret=secret,
        )
        self.rows[organization_id] = [made]
        return made


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
async def base(tmp_path: Path) -> AsyncIterator[Models]:
    settings = Settings(data_dir=tmp_path, find_local_models=False)
    models = Models(settings, ProviderSettings.model_construct(groq_api_key=None))
    yield models
    await models.close()


@pytest.fixture
async def owned(base: Models, desk: Desk) -> AsyncIterator[OrganizationProviders]:
    made = OrganizationProviders(
        base,
        Waits().policy(retries=0),
        desk.load,
        desk.cipher,
        fresh_for=FRESH_SECONDS,
        allow_private=True,
        now=lambda: desk.time,
    )
    yield made
    await made.close()


async def test_another_organizations_handle_is_not_found(
    owned: OrganizationProviders, desk: Desk, server: ModelServer
) -> None:
    desk.put(server)
    theirs = await owned.of("org-b")
    with pytest.raises(NotFound, match="Handle mine/small not found"):
        theirs.get("mine/small")
    with pytest.raises(NotFound):
        await theirs.require("mine/small")
    assert await theirs.list() == []
    assert server.requests == []


async def test_two_organizations_may_use_the_same_name_with_their_own_keys(
    owned: OrganizationProviders, desk: Desk, server: ModelServer
) -> None:
    desk.put(server, "key-of-a-1")
    desk.put(server, "key-of-b-1", organization_id="org-b")
    for organization in ("org-a", "org-b", "org-a"):
        await whole_reply((await owned.of(organization)).get("mine/small"), ask("x"))
    keys = [seen.headers["authorization"].removeprefix("Bearer ") for seen in server.requests]
    assert keys == ["key-of-a-1", "key-of-b-1", "key-of-a-1"]


async def test_a_cookie_of_one_organization_is_never_sent_for_another(
    owned: OrganizationProviders, desk: Desk, server: ModelServer
) -> None:
    desk.put(server)
    desk.put(server, organization_id="org-b")
    server.push(replace(LISTED, headers={"set-cookie": "who=a"}))
    await (await owned.of("org-a")).list()
    await whole_reply((await owned.of("org-b")).get("mine/small"), ask("x"))
    assert "cookie" not in server.requests[1].headers


async def test_a_changed_key_is_used_at_the_next_call_of_a_loaded_model(
    owned: OrganizationProviders, desk: Desk, server: ModelServer
) -> None:
    desk.put(server)
    model = (await owned.of("org-a")).get("mine/small")
    await whole_reply(model, ask("x"))
    desk.put(server, "key-of-a-2")
    owned.forget("org-a")
    await whole_reply(model, ask("x"))
    assert server.requests[1].headers["authorization"] == "Bearer key-of-a-2"


async def test_a_removed_provider_is_not_called_even_during_a_turn(
    owned: OrganizationProviders, desk: Desk, server: ModelServer
) -> None:
    desk.put(server)
    model = (await owned.of("org-a")).get("mine/small")
    desk.rows.clear()
    owned.forget("org-a")
    with pytest.raises(ModelError, match="provider of mine/small was removed") as caught:
        await whole_reply(model, ask("x"))
    assert caught.value.kind == "llm_authentication"
    assert server.requests == []


async def test_a_change_by_another_process_takes_effect_within_seconds(
    owned: OrganizationProviders, desk: Desk, server: ModelServer
) -> None:
    desk.put(server)
    model = (await owned.of("org-a")).get("mine/small")
    desk.put(server, "key-of-a-2")
    await whole_reply(model, ask("x"))
    desk.time += FRESH_SECONDS
    await whole_reply(model, ask("x"))
    keys = [seen.headers["authorization"].removeprefix("Bearer ") for seen in server.requests]
    assert keys == ["key-of-a-1", "key-of-a-2"]
    assert len(desk.reads) == 2


async def test_a_provider_that_another_process_just_added_is_found_by_its_models_handle(
    owned: OrganizationProviders, desk: Desk, server: ModelServer
) -> None:
    models = await owned.of("org-a")
    server.push(Answer({"data": [{"id": "small"}]}))
    desk.put(server)
    assert (await models.require("mine/small")).handle == "mine/small"
    with pytest.raises(NotFound):
        await models.require("missing/small")
    assert len(desk.reads) == 3


async def test_providers_changed_during_a_read_are_read_again(
    base: Models, desk: Desk, server: ModelServer
) -> None:
    async def load(organization_id: str) -> list[OrganizationProvider]:
        rows = await desk.load(organization_id)
        if len(desk.reads) == 1:
            desk.rows = {}
            desk.put(server)
            models.forget(organization_id)
        return rows

    models = OrganizationProviders(base, Waits().policy(), load, desk.cipher)
    await models.of("org-a")
    (await models.of("org-a")).get("mine/small")
    await models.of("org-a")
    assert len(desk.reads) == 2
    await models.close()


async def test_a_key_that_the_provider_quotes_is_hidden(
    owned: OrganizationProviders, desk: Desk, server: ModelServer
) -> None:
    provider = desk.put(server)
    refusal = Answer({"error": {"message": "Incorrect API key provided: key-of-a-1."}}, 401)
    server.push(refusal, refusal)
    with pytest.raises(ModelError, match="hidden") as asked:
        await whole_reply((await owned.of("org-a")).get("mine/small"), ask("x"))
    with pytest.raises(ModelError, match="hidden") as checked:
        await owned.ask(provider, Keys("key-of-a-1"))
    for caught in (asked, checked):
        assert "key-of-a-1" not in str(caught.value)
        assert caught.value.kind == "llm_authentication"


async def test_the_model_list_is_requested_once(
    owned: OrganizationProviders, desk: Desk, server: ModelServer
) -> None:
    desk.put(server)
    server.push(LISTED)
    models = await owned.of("org-a")
    assert [(info.handle, info.context_window) for info in await models.list()] == [
        ("mine/small", 128_000),
        ("mine/large", 9_000),
    ]
    assert (await models.require("mine/large")).context_window == 9_000
    assert models.get("mine/large").info.context_window == 9_000
    with pytest.raises(NotFound, match="Handle mine/none not found"):
        await models.require("mine/none")
    assert len(server.requests) == 1


async def test_a_provider_that_lists_nothing_can_still_be_used(
    owned: OrganizationProviders, desk: Desk, server: ModelServer
) -> None:
    desk.put(server)
    server.push(Answer({"error": "no"}, 500))
    models = await owned.of("org-a")
    assert await models.list() == []
    assert (await models.require("mine/anything")).handle == "mine/anything"


async def test_a_provider_name_of_the_server_cannot_be_used(tmp_path: Path, desk: Desk) -> None:
    settings = Settings(data_dir=tmp_path, find_local_models=False)
    base = Models(settings, ProviderSettings.model_construct(openai_base_url="http://127.0.0.1:9"))
    owned = OrganizationProviders(base, Waits().policy(), desk.load, desk.cipher)
    for name in ("openai", "ricordo", "none"):
        with pytest.raises(Conflict, match=f"my-{name}"):
            owned.require_free(name)
    owned.require_free("groq")
    await base.close()


async def test_the_servers_models_are_available_to_every_organization(
    base: Models, owned: OrganizationProviders
) -> None:
    base.add(ScriptedModel([]))
    handle = ScriptedModel([]).info.handle
    for organization in ("org-a", "org-b"):
        models = await owned.of(organization)
        assert models.get(handle).info == await models.require(handle)
        assert [info.handle for info in await models.list()] == [handle]


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:9", "http://localhost:9", "http://[::1]:9", "http://169.254.169.254"],
)
async def test_a_private_address_is_refused_and_never_called(
    base: Models, desk: Desk, address: str
) -> None:
    guarded = OrganizationProviders(base, Waits().policy(retries=0), desk.load, desk.cipher)
    secret = guarded.seal(Keys("key-of-a-1"))
    provider = OrganizationProvider(
        "p", "org-a", "mine", "openai", 0, 0, base_url=address, secret=secret
    )
    desk.rows["org-a"] = [provider]
    with pytest.raises(Invalid, match="not a public address"):
        guarded.require_usable(provider, Keys("key-of-a-1"))
    with pytest.raises(ModelError, match="not a public address"):
        await whole_reply((await guarded.of("org-a")).get("mine/small"), ask("x"))
    await guarded.close()


KEYS = Keys("sk-secret-1", "AKIA-access-1")


def test_keys_are_sealed_for_one_server_and_never_quoted(
    owned: OrganizationProviders, desk: Desk, server: ModelServer, tmp_path: Path
) -> None:
    provider = desk.put(server)
    for keys in (KEYS, Keys("only-one"), Keys()):
        secret = owned.seal(keys)
        assert "secret-1" not in (secret or "")
        assert owned.keys_of(replace(provider, secret=secret)) == keys
    for garbled in (
        Secret(tmp_path / "other").encrypt("{}"),
        "",
        "no token",
        desk.cipher.encrypt('{"token": "sk-secret-1"}'),
    ):
        with pytest.raises(
            Unavailable, match=r'provider "mine" cannot be read.*secret\.key'
        ) as caught:
            owned.keys_of(replace(provider, secret=garbled))
        assert "sk-secret-1" not in str(caught.value)
        assert caught.value.__cause__ is None
    secret = owned.seal(KEYS)
    (tmp_path / FILE).unlink()
    desk.cipher = Secret(tmp_path)
    with pytest.raises(Unavailable, match=FILE):
        OrganizationProviders(owned._base, CallPolicy(), desk.load, desk.cipher).keys_of(
            replace(provider, secret=secret)
        )


def test_a_key_is_removed_from_errors_and_never_printed() -> None:
    error = ModelError(
        "llm_authentication", "No such key: sk-secret-1 (AKIA-access-1)", retry_after=3
    )
    error.discarded = Usage(5, 1)
    hidden = KEYS.without(error)
    assert (str(hidden), hidden.kind, hidden.retry_after, hidden.discarded) == (
        "No such key: (hidden) ((hidden))",
        error.kind,
        3,
        Usage(5, 1),
    )
    assert Keys("a").without(error) is error
    assert repr(KEYS) == "Keys()"


async def test_the_built_models_of_a_provider_are_bounded(
    owned: OrganizationProviders,
    desk: Desk,
    server: ModelServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Clients choose the names of models, so without a limit they could fill the memory.
    monkeypatch.setattr(organization_providers, "MOST_BUILT", 2)
    desk.put(server)
    models = await owned.of("org-a")
    for name in ("one", "two", "three", "one", "four"):
        await whole_reply(models.get(f"mine/{name}"), ask("x"))
    match = models.find("mine/one")
    assert match
    assert list(match[0].models) == ["one", "four"]
