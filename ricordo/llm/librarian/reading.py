"""What a person means, as far as the librarian can tell: telling, asking, forgetting, small talk, or a task beyond it."""

import re
from dataclasses import dataclass
from typing import Literal

from ricordo.llm.librarian.words import READ_LENGTH, Pattern, kinds_told

NOTE_LENGTH = 300

Talk = Literal["hello", "thanks", "bye", "wellbeing", "okay"]


@dataclass(frozen=True, slots=True)
class Tell:
    """Words to keep. A note is kept whole in the archive, whatever it is about."""

    text: str
    is_note: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """Words to look for."""

    text: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Words to strike out of memory."""

    text: str


@dataclass(frozen=True, slots=True)
class SmallTalk:
    """Words that want a friendly word back."""

    about: Talk


@dataclass(frozen=True, slots=True)
class Help:
    """A question about the librarian itself, or how to get a real model."""


@dataclass(frozen=True, slots=True)
class Task:
    """Something only a language model can do."""


Intent = Tell | Ask | Forget | SmallTalk | Help | Task


_SENTENCE_END = re.compile(r"(?<![.!?…])[.!?…]+[\"'”’)]*\s+|[。！？]+[”」』]?\s*|\n+")
_NO_END = re.compile(
    r"(?:^|[\s(])(?:\d+|[^\W\d_]|dr|mr|mrs|ms|prof|st|no|nr|vs|etc|e\.g|i\.e|z\.B|bzw|ca|sig"
    r"|dott|av|ave)$",
    re.I,
)
_LIST_LINE = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+\S", re.MULTILINE)
_FILLER = Pattern(
    r"^(?:(?:please|hey|okay|ok|so|well|and|also|btw|by the way|oh|listen|bitte"
    r"|allora)\b[\s,:;!]*)+(?=\S)"
)
_POLITE = Pattern(
    r"^(?:(?:can|could|would|will) you|you (?:should|must|can)|i(?:['’]d like| would like| want"
    r"| need) you to) (?:please |kindly )?"
)
_KEEP = Pattern(
    r"^(?:please )?(?:(?:remember|note|memori[sz]e|keep in mind|bear in mind|don['’]?t forget|do not forget"
    r"|never forget|write down"
    r"|make a note|take a note|jot down|save this|save|store|file this|merk(?:e)? dir|notier(?:e)?"
    r"|vergiss nicht|ricorda(?:ti)?"
    r"|non dimenticare|annota|rappelle-toi|n['’]oublie pas|recuerda|no olvides|anota)\b|(?:请|請)?(?:记住|記住|记下|記下|记得))"
    r"(?P<note>\s*(?:this|that)?\s*[:：])?[\s,，]*(?:(?:of )?(?:that|this|dass|daß|che|que)\b[\s,:]*)?(?P<rest>.+)$"
)
_FORGET = Pattern(
    r"^(?:please )?(?:(?:forget|delete|remove|erase|strike|vergiss|lösche|dimentica|cancella|oublie|efface"
    r"|olvida|borra)\b"
    r"|(?:请|請)?(?:忘记|忘記|忘掉|删除|刪除))[\s,]*(?:(?:about|that|what i said about|dass|daß|che|que)\b\s*)*(?P<rest>.*)$"
)
_NEVER_MIND = Pattern(r"^(?:forget (?:it|about it)|never ?mind)\W*$")
_HELP = Pattern(
    r"^(?:help(?: me)?|/help|hilfe|aiuto|aide|ayuda|帮助|幫助)\W*$"
    r"|^(?:and )?(?:who|what)(?:['’]?s| are| is)? (?:are )?you(?: exactly| really| then)?\W*$|^what(?:['’]s"
    r"| is) your name"
    r"|what (?:can|do) you (?:do|offer)\b(?! know)|^how do you work|^what is (?:this|ricordo)\W*$"
    r"|^are you (?:an? )?(?:ai|bot|robot|human|person|real|machine|program|(?:large )?language model|llm"
    r"|chat ?gpt|gpt|claude|librarian)"
    r"|^(?:(?:how|where|can|could|may|i want|i['’]d like)\b.{0,30}\b)?(?:connect|use|set ?up|configure|add"
    r"|choose|switch to) (?:a |an |the |another |my )?(?:real |proper "
    r"|other |better |different )?"
    r"(?:language )?(?:model|llm|ollama|openai|anthropic|api key)\b"
    r"|^wer bist du|^was bist du|^was kannst du|^chi sei|^cosa sai fare|^qui es-tu|^quién eres|你是谁|你是誰|你是什么"
    r"|你能做什么|あなたは誰"
)
_TALK: tuple[tuple[Talk, Pattern], ...] = (
    (
        "wellbeing",
        Pattern(
            r"^(?:(?:hi|hello|hey)[ ,!]+)?(?:how are you|how(?:['’]s| is) it going|how do you do"
            r"|what['’]?s up|wie geht(?:'s| es dir)?"
            r"|come stai|ça va|qué tal|你好吗)(?: (?:today|doing))*\W*$"
        ),
    ),
    (
        "hello",
        Pattern(
            r"^(?:(?:hi|hello|hey|hiya|greetings|good (?:morning|afternoon|evening|day)|hallo|guten (?:tag"
            r"|morgen|abend)|servus|ciao"
            r"|salve|buongiorno|buonasera|bonjour|salut|hola|buenos días|buenas|olá|привет|здравствуй(?:те)?)"
            r"(?: (?:there|again|everyone|all|librarian|ricordo|(?-i:[A-Z])\w+))?|你好|您好|こんにちは|안녕(?:하세요)?)\W*$"
        ),
    ),
    (
        "thanks",
        Pattern(
            r"^(?:(?:many )?thanks|thank you|thx|ty|danke|vielen dank|grazie|merci|gracias|obrigad[oa]"
            r"|спасибо|谢谢|謝謝|ありがとう)"
            r"(?: (?:so much|very much|a lot|again|schön|mille|beaucoup|for .{1,40}))*\W*$"
        ),
    ),
    (
        "bye",
        Pattern(
            r"^(?:(?:good ?)?bye|bye bye|see you(?: later| soon| tomorrow)?|good night|farewell|tschüss"
            r"|auf wiedersehen|arrivederci"
            r"|au revoir|adiós|再见|再見|さようなら)\W*$"
        ),
    ),
    (
        "okay",
        Pattern(
            r"^(?:ok(?:ay)?|yes|yeah|yep|no|nope|sure|fine|great|nice|cool|good|perfect|wow|lol|haha+"
            r"|right|alright|got it|i see"
            r"|i think so|what an? [^.?]{1,40}!|i guess(?: so)?|i don['’]?t know|that(?:['’]s| is) (?:great"
            r"|good|nice|right"
            r"|correct|true|cool|fine|all|it)"
            r"|well done|good job|ja|nein|sì|si|oui|non|genau|gut|好的?|嗯|是的|不|対|はい)\W*$"
        ),
    ),
)
_TASK = Pattern(
    r"^(?:write|translate|summari[sz]e|explain|calculate|compute|solve|generate|compose|rewrite|rephrase"
    r"|proofread|analy[sz]e|describe"
    r"|brainstorm|imagine|pretend|act as|help me|let['’]s|tell me an? (?:joke|story|poem|riddle|fact)"
    r"|schreib(?:e)?|übersetze|erkläre"
    r"|scrivi|traduci|spiega|écris|traduis|escribe|traduce)\b|^(?:帮我|幫我|请帮|翻译|翻譯|写一|寫一)"
    r"|^(?:draw|paint|code|program|implement|create|draft|fix|improve|compare|suggest|recommend|play|sing"
    r"|convert|count|give|make"
    r"|send|call|book|order|open|run|say|repeat)(?= (?:an?|the|me|my|this|that|it|some|how|why|what|from|to|us"
    r"|our|\d+)\b)"
)
_COMMAND_TO_LOOK = Pattern(
    r"^(?:tell me\b|find\b|search\b|look (?:up|for)\b|show (?:me )?|list\b|remind me (?:of|about|what|where"
    r"|when|who|which|how|why)\b"
    r"|what about\b|any (?:idea|news) |i(?:['’]d like| would like| want| need) to know\b|i wonder\b"
    r"|i forgot (?:what|where|when|who|which|how)\b"
    r"|suche?\b|finde\b|zeig|cerca\b|trova\b|dimmi\b|cherche\b|trouve\b|busca\b|dime\b|sag mir|找|查|搜索|告诉我|告訴我)"
)
_VERB = (
    r"(?:is|are|was|were|am|do|does|did|can|could|should|would|will|shall|have|has|had|may|might|isn['’]?t"
    r"|aren['’]?t|wasn['’]?t"
    r"|don['’]?t|doesn['’]?t|didn['’]?t)"
)
_QUESTION = Pattern(
    rf"^(?:what|who|whom|where|when|which|whose|why|how)(?:['’]?s\b|['’]?re\b"
    rf"|(?: \w+){{0,3}}? {_VERB}\b(?! (?:so|such)\b))(?=.)"
    rf"|^{_VERB} (?:i|you|we|he|she|it|they|my|your|our|his|her|their|the|there|this|that|these|those|any|anyone)\b"
    r"|^(?:was|wer|wem|wen|wessen|wo|wann|wie|warum|wieso|weshalb|welche[rsmn]?|wohin|woher|weißt du|weisst du"
    r"|kennst du|erinnerst du)\b"
    r"|^(?:cosa|che cosa|chi|dove|quando|come|perché|quale|quali|qual|quanto|sai|ricordi|ti ricordi)\b"
    r"|^(?:que|quoi|qui|où|quand|comment|pourquoi|quel|quelle|quels|quelles|est-ce|combien|te souviens)\b"
    r"|^(?:qué|quién|quiénes|dónde|cuándo|cómo|por qué|cuál|cuáles|cuánto|sabes|recuerdas)\b"
    r"|什么|什麼|谁|誰|哪|怎么|怎麼|多少|为什么|吗$|嗎$|呢$|ですか|ますか|でしたか|^(?:что|кто|где|когда|как|почему|какой|какая)\b"
)
_WHEN_I = Pattern(
    r"^(?:when|where|while|what|how|which|wie|quando|come|quand|wo) (?:i|we|my|our|he|she|they"
    r"|ich|wir|ero|j['’])\b"
)
_TO_YOU = Pattern(r"^(?:you|you['’]re|your|du bist|tu sei|tu es|tú eres|你)\b")
_CONTINUES = Pattern(
    r"^#|^(?:she|he|it|they|this|that|these|those|her|his|its|their|because|and|but|er|sie|es|lei|lui|elle|il est"
    r"|ella|él|她|他|它)\b"
)
_FIRST_PERSON = Pattern(
    r"(?<![\w])(?:i|i['’](?:m|ve|d|ll)|me|my|mine|myself|we|we['’](?:re|ve|ll)|our|us|ich|mich|mir|mein\w*|wir"
    r"|uns|unser\w*"
    r"|io|mio|mia|miei|mie|mi|sono|ho|abito|vivo|lavoro|noi|nostr[oaie]|je|j['’]\w+|moi|mon|ma|mes|nous|notre"
    r"|yo|mis|soy|tengo|nosotr[oa]s|eu|meu|minha|sou|moro|я|меня|мне|мой|моя|мои|мы)(?![\w])|我|咱|私|僕|俺|저는|나는|제가|내가"
)
_DECISION = Pattern(
    r"\b(?:we|we['’]ve|we have)\b.{0,20}\b(?:decided|agreed|chose|settled|resolved)\b"
    r"|\bdecision\b|我们决定|wir haben .+ (?:beschlossen|entschieden)"
)
_CORRECTION = Pattern(
    r"\b(?:actually|correction|no longer|any ?more|now|changed|instead|i meant|i mean|wrong|in fact|nicht mehr"
    r"|eigentlich|jetzt|inzwischen"
    r"|in realtà|non più|adesso|en fait|ne .+ plus|maintenant|en realidad|ya no|ahora)\b|^(?:no|sorry|nein)[, ]"
    r"|其实|其實|不再|现在|現在"
)


def read(text: str) -> tuple[Intent, ...]:
    """What the text asks the librarian to do, in order. A long text or a list is one note; a question after it is answered too."""
    text = text.strip()
    if len(text) > NOTE_LENGTH or _LIST_LINE.search(text):
        return _read_note(text)
    intents: list[Intent] = []
    for sentence in sentences(text):
        # Tags after a sentence belong to it.
        intent = Tell(sentence) if sentence.startswith("#") and intents else _read_sentence(sentence)
        last = intents[-1] if intents else None
        if isinstance(intent, Tell) and isinstance(last, Tell) and (last.is_note or _CONTINUES.match(sentence)):
            # "My sister is Emma. She is a doctor.": apart, the second would say nothing.
            intents[-1] = Tell(f"{last.text} {sentence}", last.is_note)
        elif intent not in intents:
            intents.append(intent)
    return tuple(intents)


def sentences(text: str) -> list[str]:
    """The sentences of a text as far as it is read, with their marks; `Dr. Rossi` and `12. Mai` stay whole."""
    text = text[:READ_LENGTH]
    found, start = [], 0
    for match in _SENTENCE_END.finditer(text):
        if text[match.start()] == "." and _NO_END.search(text[max(start, match.start() - 9) : match.start()]):
            continue
        found.append(text[start : match.end()].strip())
        start = match.end()
    return [sentence for sentence in (*found, text[start:].strip()) if re.search(r"\w", sentence)]


def is_personal(text: str) -> bool:
    """Whether the words are about the person who says them."""
    return not is_decision(text) and bool(
        _FIRST_PERSON.search(text) or {*kinds_told(text)} & {"name", "home", "birthday"}
    )


def is_decision(text: str) -> bool:
    """Whether the words say what was decided."""
    return bool(_DECISION.search(text))


def is_correction(text: str) -> bool:
    """Whether the words say that something known before does not hold any more."""
    return bool(_CORRECTION.search(text))


def _read_note(text: str) -> tuple[Intent, ...]:
    # Of a very long text the end is looked at, for the question that may stand there.
    parts = sentences(text[-READ_LENGTH:])
    kept = _KEEP.match(text)
    note = Tell(text[kept.start("rest") :].strip() if kept else text, is_note=True)
    if not parts or not parts[-1].rstrip("\"'”’) ").endswith(("?", "？")):
        return (note,)
    last = _read_sentence(parts[-1])
    if len(parts) == 1 or not isinstance(last, Ask):
        return (last,)
    return (note, last)


def _read_sentence(sentence: str) -> Intent:
    bare = _FILLER.cut(sentence)
    is_marked = sentence.rstrip("\"'”’) ").endswith(("?", "？"))
    return (
        _small_talk(sentence, bare)
        or _wish(bare, is_marked)
        or _question(sentence, bare, is_marked)
        or _statement(sentence, bare)
    )


def _small_talk(sentence: str, bare: str) -> Intent | None:
    if _NEVER_MIND.match(bare):
        return SmallTalk("okay")
    about = next((about for about, pattern in _TALK if pattern.match(sentence)), None)
    return SmallTalk(about) if about else None


def _wish(bare: str, is_marked: bool) -> Intent | None:
    if _HELP.search(bare):
        return Help()
    wish = _POLITE.cut(bare)
    # "Remember my name?" asks, "Can you remember my name?" wishes.
    is_wish = wish != bare or not is_marked
    if is_wish and (kept := _KEEP.match(wish)):
        return Tell(kept["rest"].rstrip("?？ ") if is_marked else kept["rest"], is_note=bool(kept["note"]))
    if is_wish and (struck := _FORGET.match(wish)):
        return Forget(struck["rest"].strip(" .!?。！？"))
    return Task() if _TASK.match(wish) and not kinds_told(wish) else None


def _question(sentence: str, bare: str, is_marked: bool) -> Intent | None:
    wish = _POLITE.cut(bare)
    return Ask(sentence) if is_marked or _COMMAND_TO_LOOK.match(wish) or _is_unmarked_question(bare) else None


def _is_unmarked_question(bare: str) -> bool:
    words = bare.rstrip(".!。！… ")
    return bool(_QUESTION.search(words)) and not _WHEN_I.match(words) and not bare.endswith("!")


def _statement(sentence: str, bare: str) -> Intent:
    if _TO_YOU.match(bare) and not _FIRST_PERSON.search(bare):
        return SmallTalk("okay")
    # A word alone is something to look for rather than something told.
    is_one_word = len(bare.split()) == 1 and not re.search(r"['’]", bare)
    if is_one_word and (bare.isascii() or len(bare) < 4):
        return Ask(sentence)
    return Tell(bare)
