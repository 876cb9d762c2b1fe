"""In a group that several people talk with, each talks in conversations of their own."""

from ricordo.domain.model import ModelRequest
from ricordo.llm.scripted import Line
from tests.features.groups.talking import Api, aloud, panel, speaker_of


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
