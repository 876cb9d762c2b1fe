"""What the librarian says at the end of a turn, from what was meant and what its calls gave."""

import re
from collections.abc import Iterator, Sequence

from ricordo.llm.librarian import sentences as say
from ricordo.llm.librarian.evidence import everything_told, evidence, is_doubtful, quote
from ricordo.llm.librarian.plan import INSERT, REPLACE, SEARCHES, asked_words, known_note, matching_notes
from ricordo.llm.librarian.reading import Ask, Forget, Help, Intent, SmallTalk, Task, Tell
from ricordo.llm.librarian.sentences import shortened
from ricordo.llm.librarian.view import Outcome, View, as_note
from ricordo.llm.librarian.words import READ_LENGTH, kinds_asked, kinds_told, query_words

_MOST_NOTES = 20
_ABOUT_ME = re.compile(
    r"\b(?:me|mich|mir|moi|mí)\b|\b(?:di|su) me\b|\bmy (?:notes|memor)|remember|know|notes|我", re.IGNORECASE
)
_PENDING = re.compile(r"propos|approv|pending|wait", re.IGNORECASE)
_OWN_NAME = re.compile(
    r"(?:\bmy name is|\bmy name:|\bname:|\bi am called|\byour name is|\byou are|\bi am|\bi'm) (?-i:([A-Z]\w+))(?=[\s.,;!]|$)",
    re.IGNORECASE,
)
_HER_NAME = re.compile(
    r"(?:name(?: is|'s|:)|call me|am called|i'm called|name ist|hei(?:ß|ss)e|mi chiamo|m'appelle|nom est|me llamo|nombre es) "
    r"(?-i:([^\W\d_a-z][\w'’-]*))",
    re.IGNORECASE,
)


def speak(view: View, intents: Sequence[Intent]) -> str:
    """The answer to all that was meant, in the order it was said; the introduction once in a conversation."""
    if not view.words.strip():
        return say.NO_WORDS
    lines: list[str] = []
    alone = len(intents) == 1
    has_answered = False
    for intent in intents:
        match intent:
            case SmallTalk():
                lines.append(_small_talk(view, intent, alone=alone))
            case Tell():
                lines.append(_told(view, intent))
            case Forget():
                lines.append(_forgotten(view, intent))
            case Ask() if not has_answered:
                has_answered = True
                lines.append(_answered(view, asked_words(intents)))
            case Task():
                lines.append(say.TASK)
            case Help():
                lines.append(say.HELP)
            case _:
                pass
    if Help() in intents and (name := _first_name(_OWN_NAME, [view.persona])):
        lines.append(say.PERSONA.format(name=name))
    if not view.is_introduced and Help() not in intents:
        lines.append(say.INTRODUCTION)
    return "\n\n".join(dict.fromkeys(lines)) or say.TALK["okay"]


def _small_talk(view: View, talk: SmallTalk, *, alone: bool) -> str:
    told = [note.words for note in view.notes if "name" in kinds_told(note.words)]
    name = _first_name(_HER_NAME, reversed(told))
    called = f", {name}" if name else ""
    if talk.about == "hello":
        return (say.HELLO_ALONE if alone else say.HELLO).format(name=called)
    return say.TALK[talk.about].format(name=called)


def _first_name(pattern: re.Pattern[str], texts: Sequence[str] | Iterator[str]) -> str | None:
    return next((match[1] for text in texts if (match := pattern.search(text))), None)


def _told(view: View, tell: Tell) -> str:
    words = " ".join(tell.text[:READ_LENGTH].split())
    made = [outcome for outcome in view.outcomes if _says(_filed_words(outcome), tell.text, words)]
    done = next((outcome for outcome in reversed(made) if not outcome.failed), None)
    refused = next((outcome for outcome in made if outcome.failed), None)
    if done:
        return _filed(done, refused, words)
    if refused:
        return say.NOT_FILED.format(words=shortened(words), tool=refused.tool, reason=_reason(refused))
    note = known_note(view, tell)
    return say.KNOWN.format(words=shortened(note.words)) if note else say.NOWHERE


def _says(filed: str, text: str, words: str) -> bool:
    """Whether the text was filed, as it came or on one line."""
    return text in filed or words in " ".join(filed.split())


def _filed(done: Outcome, refused: Outcome | None, words: str) -> str:
    short = shortened(words)
    label = str(done.arguments.get("label", ""))
    if done.tool == "archival_memory_insert":
        sentence = say.ARCHIVED_INSTEAD if refused else say.ARCHIVED
        return sentence.format(reason=_reason(refused) if refused else "", words=short)
    if _is_pending(done, words):
        return say.WAITS.format(words=short, reason=_reason(done))
    if done.tool in REPLACE:
        return say.CORRECTED.format(words=short, old=_replaced_words(done))
    return say.FILED.format(words=short) if _is_about_person(label) else say.FILED_IN.format(label=label, words=short)


def _is_about_person(label: str) -> bool:
    return label.rsplit("/", 1)[-1] == "human"


def _replaced_words(outcome: Outcome) -> str:
    old = str(outcome.arguments.get("old_string") or outcome.arguments.get("old_content") or "")
    return shortened(as_note("", old.strip()).words)


def _filed_words(outcome: Outcome) -> str:
    if outcome.tool not in (*INSERT, *REPLACE, "archival_memory_insert"):
        return ""
    arguments = outcome.arguments
    return str(arguments.get("new_string") or arguments.get("new_content") or arguments.get("content") or "")


def _is_pending(outcome: Outcome, words: str) -> bool:
    """Whether the tool took the edit as a proposal: its answer is then not the block's new value."""
    told = " ".join(outcome.told.split())
    return words not in told and _PENDING.search(told) is not None


def _reason(outcome: Outcome) -> str:
    return shortened(outcome.told, 240)


def _forgotten(view: View, forget: Forget) -> str:
    done = next((each for each in view.outcomes if each.tool in REPLACE and not _filed_words(each)), None)
    if done:
        return _struck_out(done)
    if not query_words(forget.text) and not kinds_asked(forget.text):
        return say.FORGET_WHAT
    found = matching_notes(view, forget.text)
    if not found:
        return say.FORGET_NOTHING.format(topic=shortened(forget.text, 80))
    if not view.offers(*REPLACE):
        return say.FORGET_NO_TOOL
    return "\n".join([say.FORGET_WHICH, *(f'- "{shortened(note.words)}"' for note in found)])


def _struck_out(done: Outcome) -> str:
    words = _replaced_words(done)
    if done.failed:
        return say.FORGET_FAILED.format(words=words, tool=done.tool, reason=_reason(done))
    if words in done.told or "propos" in done.told.lower():
        return say.FORGET_WAITS.format(words=words, reason=_reason(done))
    return say.FORGOTTEN.format(words=words)


def _answered(view: View, question: str) -> str:
    words, kinds = query_words(question), kinds_asked(question)
    if not words and not kinds:
        lines = _overview(view) if _ABOUT_ME.search(question) else [say.WHICH_WORDS]
    elif found := evidence(view, question):
        lines = [quote(item) for item in found]
        if is_doubtful(found, question):
            lines = [say.FOUND_PERHAPS, *(f"- {line}" for line in lines)]
        elif len(lines) > 1:
            lines = [say.FOUND_MANY, *(f"- {line}" for line in lines)]
    else:
        topic = shortened(" ".join(words) or question, 80)
        lines = [say.NOT_FOUND.format(places=_places(view), topic=topic)]
    broken = [outcome for outcome in view.outcomes if outcome.tool in SEARCHES and outcome.failed]
    lines += [say.SEARCH_FAILED.format(tool=outcome.tool, reason=_reason(outcome)) for outcome in broken]
    return "\n".join(lines)


def _overview(view: View) -> list[str]:
    """All that the notes say; with no notes, what a search for anything told gave."""
    lines = [quoted for note in view.notes if (quoted := f'- "{shortened(note.words)}"' + _when(note.said_on))]
    if lines:
        more = [say.AND_MORE.format(count=len(lines) - _MOST_NOTES)] if len(lines) > _MOST_NOTES else []
        return [say.ALL_I_KNOW, *lines[:_MOST_NOTES], *more]
    told = everything_told(view)
    return [say.FOUND_MANY, *(f"- {quote(item)}" for item in told)] if told else [say.NOTHING_YET]


def _when(said_on: str | None) -> str:
    return f" ({said_on})" if said_on else ""


def _places(view: View) -> str:
    searched = [outcome.tool for outcome in view.outcomes if outcome.tool in SEARCHES and not outcome.failed]
    names = [say.PLACES[None], *(say.PLACES[tool] for tool in dict.fromkeys(searched))]
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
