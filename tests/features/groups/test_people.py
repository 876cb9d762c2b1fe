"""In a group that several people talk with, each talks in conversations of their own."""

from pathlib import Path

from ricordo.domain.model import ModelRequest
from ricordo.llm.scripted import Line, call
from tests.features.groups.talking import Api, aloud, new_agent, new_group, panel, speaker_of
from tests.seams.server import serving


def test_what_one_user_says_in_a_group_reaches_no_other(api: Api) -> None:
    prompts: dict[str, list[str]] = {"ada": [], "bob": []}
    user = "ada"

    def answer(request: ModelRequest) -> Line:
        prompts[user].append("\n".join(one.text for one in request.messages))
        return aloud(f"{speaker_of(request)} for {user}")

    api.server.answers_with(answer)
    group, agents = panel(api, "Ann", "Ben")
    service = api.server.key(role="service")
    for user, secret in (("ada", "CANARY-ADA"), ("bob", "CANARY-BOB")):
        headers = {"Authorization": f"Bearer {service}", "X-Ricordo-User": user}
        body = {"messages": [{"role": "user", "content": secret, "otid": "same"}]}
        response = api.http.post(f"/v1/groups/{group}/messages", json=body, headers=headers)
        assert response.status_code == 200, response.text
        shown = api.http.get(f"/v1/groups/{group}/messages", headers=headers).text
        own = api.http.get(f"/v1/agents/{agents['Ann']}/messages", headers=headers).text
        for text in (shown, own, *prompts[user]):
            assert secret in text
            assert ("CANARY-BOB" if user == "ada" else "CANARY-ADA") not in text
    # A reset by one leaves what the other said.
    api.http.patch(f"/v1/groups/{group}/reset-messages", headers=headers)
    assert api.http.get(f"/v1/groups/{group}/messages", headers=headers).json() == []
    headers = {"Authorization": f"Bearer {service}", "X-Ricordo-User": "ada"}
    assert len(api.http.get(f"/v1/groups/{group}/messages", headers=headers).json()) == 5


def test_what_a_member_learns_of_one_user_is_in_no_prompt_and_no_block_of_another(tmp_path: Path) -> None:
    learned: dict[str, list[str]] = {"ada": [], "bob": []}
    user = "ada"

    def answer(request: ModelRequest) -> Line:
        learned[user].append("\n".join(one.text for one in request.messages))
        if speaker_of(request) == "Ann" and request.messages[-1].role != "tool":
            return call("memory_insert", label="human", new_string=f"CANARY-{user} plays the cello.")
        return aloud(f"{speaker_of(request)} heard it.")

    with serving(tmp_path) as server, server.client() as client, server.http() as http:
        server.answers_with(answer)
        api = Api(server, client, http)
        human = {"label": "human", "value": "", "policy": "direct"}
        tools = ["memory_insert"]
        agents = {name: new_agent(api, name, memory_blocks=[human], tools=tools) for name in ("Ann", "Ben")}
        group = new_group(api, "round_robin", list(agents.values()))
        key = server.key(role="service")
        for _ in range(2):
            for user in ("ada", "bob"):
                headers = {"Authorization": f"Bearer {key}", "X-Ricordo-User": user}
                response = http.post(f"/v1/groups/{group}/messages", json={"input": "Remember."}, headers=headers)
                assert response.status_code == 200, response.text
        for user, other in (("ada", "bob"), ("bob", "ada")):
            headers = {"Authorization": f"Bearer {key}", "X-Ricordo-User": user}
            blocks = http.get(f"/v1/agents/{agents['Ann']}/core-memory/blocks", headers=headers).text
            assert any(f"CANARY-{user}" in prompt for prompt in learned[user])
            assert f"CANARY-{other}" not in "\n".join([blocks, *learned[user]])
