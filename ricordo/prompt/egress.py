"""Reduce an agent's state to the parts that a model may see by their egress policies."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from ricordo.domain.agent import AgentState, PromptDirectory, PromptSkill
from ricordo.domain.block import Block
from ricordo.domain.egress import (
    Clearance,
    Destination,
    LabelledSpan,
    counted_lines,
    notice,
    permits,
)
from ricordo.errors import Forbidden

FindSpans = Callable[[Block], Sequence[LabelledSpan]]
"""Returns the labelled lines of a block's text, by its schema."""


def no_spans(_block: Block) -> Sequence[LabelledSpan]:
    """Return no spans, for blocks whose lines have no labels of their own.

    Args:
        _block: Any block.
    """
    return ()


def cleared_state(
    state: AgentState,
    destination: Destination,
    clearance: Clearance,
    find_spans: FindSpans = no_spans,
) -> AgentState:
    """Return the state with notices in place of the parts that the destination may not see.

    A withheld block becomes read-only, since the model would edit it without knowing its text. A
    state without policies is returned unchanged.

    Args:
        state: The agent's state for the turn, with its directories, skills and shown texts.
        destination: The model's provider.
        clearance: It is changed: it records the shown and the withheld parts.
        find_spans: Returns the labelled lines of a block that has a schema.
    """
    if state.conversation.egress:
        clearance.show("conversation", state.conversation.egress)
    labels = [block.egress or block.schema_ref for block in state.blocks]
    labels += [directory.egress for directory in state.directories]
    labels += [skill.egress for skill in state.skills]
    if labels.count(None) == len(labels) and not state.shown_spans:
        return state
    blocks = tuple(
        cleared_block(
            block,
            destination,
            clearance,
            text=state.shown_texts.get(block.shown_label),
            spans=find_spans(block) if block.schema_ref else (),
        )
        for block in state.blocks
    )
    directories = tuple(
        _cleared_directory(directory, destination, clearance) for directory in state.directories
    )
    skills = tuple(_cleared_skill(skill, destination, clearance) for skill in state.skills)
    withheld_labels = {block.shown_label for block in blocks if block.is_withheld}
    shown_texts = {
        label: _cleared_lines(
            text, f"block:{label}", state.shown_spans.get(label, ()), destination, clearance
        )
        for label, text in state.shown_texts.items()
        if label not in withheld_labels
    }
    return replace(
        state,
        blocks=blocks,
        directories=directories,
        skills=skills,
        shown_texts=shown_texts,
        shown_spans={},
    )


def require_permitted(state: AgentState, destination: Destination) -> None:
    """Raise Forbidden if the destination may not see this conversation at all.

    Args:
        state: The agent with the conversation and its egress label.
        destination: The model's provider.

    Raises:
        Forbidden: The conversation's policy does not allow this destination.
    """
    label = state.conversation.egress
    if not permits(label, destination):
        raise Forbidden(
            f"The egress policy of this conversation does not allow {destination.name}. Give the "
            f"agent a model that the policy allows ({allowed(label)}), or let the conversation's "
            "owner change the policy."
        )


def allowed(label: str | None) -> str:
    """Return the destinations that a label allows, for people.

    Args:
        label: A label: clauses joined by ";", each with destinations joined by ",".
    """
    clauses = (label or "").split(";")
    return " and ".join(clause.replace(",", " or ") for clause in clauses)


def refusal(clearance: Clearance, destination: Destination) -> str:
    """Return the error message of a turn that is refused because parts would be withheld.

    Args:
        clearance: The clearance, which names the withheld parts. At most five are named.
        destination: The model's provider.
    """
    sources = ", ".join(sorted(clearance.withheld)[:5])
    return (
        f"{sources} may not be sent to {destination.name}: an egress policy forbids it, and this "
        "server refuses such turns. Use another model for this agent, or let the owner change the "
        "policy."
    )


def cleared_block(
    block: Block,
    destination: Destination,
    clearance: Clearance,
    *,
    text: str | None = None,
    spans: Sequence[LabelledSpan] = (),
) -> Block:
    """Return the block as the destination may see it.

    If any part is withheld, the block is read-only and `is_withheld`.

    Args:
        block: The block; one that is withheld already is returned unchanged.
        destination: The model's provider.
        clearance: It is changed: it records the shown and the withheld parts.
        text: The text that the prompt shows in place of the block's value; None: the value.
        spans: The labelled lines of the block's value, in their order.
    """
    if block.is_withheld or not (block.egress or spans):
        return block
    source = f"block:{block.shown_label}"
    shown_text = block.value if text is None else text
    if permits(block.egress, destination):
        clearance.show(source, block.egress, shown_text)
        value = _cleared_lines(block.value, source, spans, destination, clearance)
        if value == block.value:
            return block
        return replace(block, value=value, read_only=True, is_withheld=True)
    clearance.withhold(source, block.egress or "", shown_text)
    return replace(
        block,
        value=notice(counted_lines(shown_text), "line", destination),
        description=None,
        read_only=True,
        is_withheld=True,
    )


def _cleared_lines(
    text: str,
    source: str,
    spans: Sequence[LabelledSpan],
    destination: Destination,
    clearance: Clearance,
) -> str:
    """Return the text with notices in place of the lines that the destination may not see."""
    lines = text.split("\n")
    for span in reversed(spans):
        part = "\n".join(lines[span.start : span.end])
        if permits(span.label, destination):
            clearance.show(f"{source}.{span.name}", span.label, part)
        elif part.strip():
            clearance.withhold(f"{source}.{span.name}", span.label, part)
            lines[span.start : span.end] = [notice(counted_lines(part), "line", destination)]
    return "\n".join(lines)


def _cleared_directory(
    directory: PromptDirectory, destination: Destination, clearance: Clearance
) -> PromptDirectory:
    if not directory.egress:
        return directory
    source = f"folder:{directory.name}"
    text = "\n".join(file.content for file in directory.files)
    if permits(directory.egress, destination):
        clearance.show(source, directory.egress, text)
        return directory
    clearance.withhold(source, directory.egress, text)
    return replace(
        directory,
        files=(),
        description=notice(len(directory.files), "file", destination),
        instructions=None,
        more=0,
    )


def _cleared_skill(
    skill: PromptSkill, destination: Destination, clearance: Clearance
) -> PromptSkill:
    if not skill.egress:
        return skill
    source = f"skill:{skill.name}"
    if permits(skill.egress, destination):
        clearance.show(source, skill.egress, skill.description)
        return skill
    clearance.withhold(source, skill.egress, skill.description)
    return replace(skill, description=notice(1, "line", destination))
