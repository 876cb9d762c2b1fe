"""Instructions for agents about the group that they talk in.

Instructions are sent for one turn only and are not saved. Questions and messages are saved.
"""

from collections.abc import Sequence

from ricordo.domain.text import normal_text
from ricordo.features.groups.talk_plan import Speaker, TalkPlan
from ricordo.prompt.system_prompt import disarm

_CONDUCT = """
Rules of the group:
- Speak as {name} and for nobody else. Never write the words of another participant.
- A line that begins with a name in square brackets was said by that participant, and all others were said by the user.
- Answer the user, and take up what the others said where that helps. Do not repeat it.
- Add what you know better than the others, and leave to them what is theirs.
- Where you disagree, say so in one sentence with your reason.
- Be brief: several answer. A short contribution is better than a long one.
- Do not ask the others to wait, to hurry or to take the next turn: turns are given by the server.
- Do not write your own name in front of your answer."""
_MANAGER = """
You moderate the talk of a group: you read it, and decide who of its participants speaks next. You do not take part in it yourself.
Participants:
{listed}
{about}
When you are asked who speaks next, answer with the name of one participant and nothing else."""
_ASK = """
Who of these speaks next: {names}?
Choose the one who can help the user most now. Answer with that name alone, do not answer the user yourself.

The talk so far:
{history}"""
_AGAIN = "Your answer named none of them. Answer with one of these names and nothing else: {names}."
_SUPERVISOR = """
You lead a group of {count} agents: {names}.
{about}
First ask all of them at once with the tool send_message_to_all_agents_in_group. You get the answer of each. Then answer the user
yourself, in your own words, with the best of what they said."""


def member_instructions(plan: TalkPlan, speaker: Speaker) -> str:
    """Return the instructions of a member for its turn.

    Args:
        plan: The talk, with all members.
        speaker: The member whose turn it is.
    """
    others = [member.name for member in plan.members if member.id != speaker.id]
    if others:
        company = f"the user and these other agents: {_listed(others)}"
    else:
        company = "the user"
    about = _about(plan)
    conduct = _CONDUCT.strip().format(name=_one_line(speaker.name))
    text = f"You are {_one_line(speaker.name)} in a group chat with {company}.\n{about}\n{conduct}"
    return _section(text)


def manager_instructions(plan: TalkPlan) -> str:
    """Return the instructions of a dynamic group's manager; they describe each member.

    Args:
        plan: The talk, with all members and their descriptions.
    """
    listed = "\n".join(f"- {_one_line(member.name)}{_described(member)}" for member in plan.members)
    return _section(_MANAGER.strip().format(listed=listed, about=_about(plan)))


def supervisor_instructions(plan: TalkPlan) -> str:
    """Return the instructions of a supervisor for its turn.

    Args:
        plan: The talk, with all members.
    """
    names = _listed([member.name for member in plan.members])
    return _section(
        _SUPERVISOR.strip().format(count=len(plan.members), names=names, about=_about(plan))
    )


def question_for_manager(names: Sequence[str], lines: Sequence[tuple[str, str]]) -> str:
    """Return the question for the next speaker, with the talk so far.

    Args:
        names: The names of the members who may speak next.
        lines: The talk as pairs of a speaker's name and a text.
    """
    history = "\n".join(f"{_one_line(name)}: {text}" for name, text in lines)
    return _ASK.strip().format(names=_listed(names), history=history)


def question_again(names: Sequence[str]) -> str:
    """Return the question for a manager whose answer named no member.

    Args:
        names: The names of the members who may speak next.
    """
    return _AGAIN.format(names=_listed(names))


def message_of_supervisor(name: str, agent_id: str, message: str) -> str:
    """Return the supervisor's message to a member.

    A bracket names the sender, and says that the answer goes back to the sender.

    Args:
        name: The supervisor's name.
        agent_id: The supervisor's id.
        message: The text that the supervisor wrote.
    """
    return (
        f"[Incoming message from agent {_one_line(name)} with ID '{agent_id}' to all agents of "
        f"your group. Answer it with one message; it is sent back to them.] {message}"
    )


def _about(plan: TalkPlan) -> str:
    if not plan.description.strip():
        return ""
    return f"About the group: {disarm(plan.description, 'group_chat')}"


def _described(member: Speaker) -> str:
    if not member.description.strip():
        return ""
    return f": {disarm(_one_line(member.description), 'group_chat')}"


def _section(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return "<group_chat>\n" + "\n".join(lines) + "\n</group_chat>"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(_one_line(name) for name in names)


def _one_line(text: str) -> str:
    return " ".join(normal_text(text).split())
