"""Every sentence the librarian speaks."""

from datetime import date

# What marks its own introduction, so that it introduces itself once in a conversation.
MARK = "not a language model"

INTRODUCTION = (
    "By the way: I am Ricordo's librarian, not a language model. I file what you tell me and find it again when you ask. "
    'Say "help" to learn how to connect a real model.'
)
HELP = (
    "I am Ricordo's librarian, not a language model: I work without any key or network.\n"
    '- Tell me something ("I\'m allergic to nuts.", "Remember: the exam is on 12 May.") and I file it.\n'
    '- Ask me ("What am I allergic to?", "What do you know about me?") and I look in my notes, the archive and everything we said, '
    "and quote it with its date.\n"
    '- Say "Forget that I\'m allergic to nuts." and I strike it out of my notes.\n'
    "To talk with a real model, set OPENAI_API_KEY or ANTHROPIC_API_KEY, or start Ollama; then restart Ricordo and pick that model "
    "for this agent. All that I filed stays and is there for it."
)
PERSONA = "You may call me {name}."

HELLO = "Hello{name}!"
HELLO_ALONE = "Hello{name}! Tell me something to remember, or ask about what you told me before."
TALK = {
    "thanks": "You're welcome{name}!",
    "bye": "Goodbye{name}! What you told me stays here.",
    "wellbeing": "All shelves are in order, thank you! Tell me something to remember, or ask about what you told me.",
    "okay": "All right.",
}

FILED = 'I have put this in my notes about you: "{words}"'
FILED_IN = 'I have put this in my notes "{label}": "{words}"'
CORRECTED = 'I have corrected my notes about you: "{words}" (before: "{old}")'
ARCHIVED = 'I have filed this in the archive: "{words}"'
ARCHIVED_INSTEAD = 'My notes could not take it ({reason}), so I have filed this in the archive: "{words}"'
KNOWN = 'I have that in my notes already: "{words}"'
WAITS = 'I asked to have this put in my notes: "{words}"\nThe answer was: "{reason}"'
NOWHERE = (
    "I have nowhere to file this: this agent has neither a block about you that I can write to nor an archive. "
    "Your message itself stays in our history, though, and can be searched."
)
NOT_FILED = 'I could not file "{words}": {tool} says "{reason}". Your message stays in our history and can be searched.'

FOUND_MANY = "Here is what I found:"
FOUND_PERHAPS = "I am not sure that this is what you mean, but it is the nearest I found:"
SAID_BY_YOU = 'You told me on {day}: "{words}"'
SAID_BY_YOU_ONCE = 'You told me: "{words}"'
SAID_BY_ME = 'I said on {day}: "{words}"'
NOTED_ABOUT_YOU = 'My notes about you say: "{words}"'
NOTED_IN = 'My notes "{label}" say: "{words}"'
ARCHIVED_ON = 'The archive says, filed on {day}: "{words}"'
ALL_I_KNOW = "This is what my notes say:"
AND_MORE = "… and {count} more lines."
NOTHING_YET = "I know nothing about you yet. Tell me something, and I file it."
NOT_FOUND = (
    'I don\'t know: I looked in {places} and found nothing about "{topic}". '
    "If you tell me, I file it and can answer next time; for general knowledge, connect a language model."
)
WHICH_WORDS = "I can look things up by their words. Ask again with a word or two that I can search for."
SEARCH_FAILED = 'Searching did not work everywhere: {tool} says "{reason}".'
PLACES = {None: "my notes", "conversation_search": "our conversations", "archival_memory_search": "the archive"}

FORGOTTEN = (
    'I have struck this out of my notes: "{words}"\n'
    "The message in which you said it stays in our history; deleting messages is up to you, not to me."
)
FORGET_WAITS = 'I asked to have this struck out of my notes: "{words}"\nThe answer was: "{reason}"'
FORGET_FAILED = 'I could not strike out "{words}": {tool} says "{reason}".'
FORGET_NOTHING = 'I have no note about "{topic}" to strike out. The archive and our messages I cannot delete; you can.'
FORGET_WHICH = "Several of my notes fit. Say more exactly which one to strike out:"
FORGET_NO_TOOL = (
    "I cannot strike anything out of my notes: this agent has no tool for it. You can edit them yourself at any time."
)
FORGET_WHAT = (
    "I strike out one note at a time. Say which one, with a word that stands in it. To delete everything, delete the memory or the "
    "agent itself; that is up to you, not to me."
)

TASK = 'I cannot do that: it takes a language model, and I only file and find. Say "help" to learn how to connect one.'
NO_WORDS = "I can only read words, and I found none in your message."
ALREADY_SPOKEN = "That is all."

OWN_OPENINGS = tuple(
    template.split("{", maxsplit=1)[0].rstrip('" ')
    for template in (
        FILED, CORRECTED, ARCHIVED, ARCHIVED_INSTEAD, KNOWN, WAITS, NOWHERE, NOT_FILED, FOUND_MANY, FOUND_PERHAPS, SAID_BY_YOU,
        SAID_BY_ME, NOTED_ABOUT_YOU, NOTED_IN, ARCHIVED_ON, ALL_I_KNOW, NOTHING_YET, NOT_FOUND, WHICH_WORDS, SEARCH_FAILED,
        FORGOTTEN, FORGET_WAITS, FORGET_FAILED, FORGET_NOTHING, FORGET_WHICH, FORGET_NO_TOOL, FORGET_WHAT, TASK, NO_WORDS,
        *TALK.values(), HELLO_ALONE, HELLO, INTRODUCTION, HELP,
    )
)  # fmt: skip

_MONTHS = "January February March April May June July August September October November December".split()


def day(moment: date) -> str:
    """The date as people say it, whatever the machine's locale: `21 November 2026`."""
    return f"{moment.day} {_MONTHS[moment.month - 1]} {moment.year}"


def shortened(words: str, length: int = 160) -> str:
    """The words on one line, cut at a word where they are too long to repeat."""
    # A little more than fits is enough to see that it does not.
    words = " ".join(words[: 20 * length].split())
    if len(words) <= length:
        return words
    cut = words[:length].rsplit(" ", 1)[0]
    return (cut if len(cut) > length // 2 else words[:length]) + " …"
