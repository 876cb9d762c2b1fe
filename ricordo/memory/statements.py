"""Find the statements in a message, and check notes against them. Pure.

A small model that takes notes also notes junk: questions, requests, and examples from its prompt.
The filter reads the message before the model does, and checks every line that the model wrote
against the message. Questions, requests, hypotheses, greetings and inventions become no notes.
"""

import re
from collections.abc import Iterable

from ricordo.memory.facts import facts_in
from ricordo.memory.forget_wishes import wish_in
from ricordo.search.words import STOP_WORDS, terms

LONGEST_MESSAGE = 4_000  # characters that are read for notes
_LONGEST_NOTE = 200
_MOST_NOTES = 8
_SENTENCE = re.compile(r"(?<=[.!?…])[\"'”’)]{0,3}\s+(?=\S)|\n+")
_NO_END = re.compile(r"(?:^|\W)(?:\d{1,2}|dr|mr|mrs|ms|prof|st|nr|vs|ca|sig)\.$", re.IGNORECASE)
_QUESTION = re.compile(r"[?？]\W{0,5}$")
_ASKS = re.compile(
    r"^\W{0,5}(?:what|who|whom|whose|where|when|which|why|how|is|are|am|was|were|do|does|did|can|could|should|would|will|shall|may"
    r"|was|wer|wie|wo|wann|warum|welche[rsn]?|kannst|könntest|weißt|ist|sind|hast|bist|soll|darf"
    r"|qui|que|quoi|où|quand|comment|pourquoi|quel(?:le)?s?|est-ce|peux-tu|pouvez-vous|sais-tu"
    r"|qué|quién|dónde|cuándo|cómo|por qué|cuál|puedes|podrías|sabes"
    r"|chi|cosa|dove|perché|quale|puoi|potresti|sai)\b"
    # "When I was young, we lived in Rome." is a statement.
    r"(?! (?:i|we|my|ich|wir|je|nous|yo) | gesagt\b)",
    re.IGNORECASE,
)
_REQUESTS = re.compile(
    r"^\W{0,5}(?:(?:please|bitte|s['’]il (?:te|vous) pla[iî]t|por favor|now|then|so|ok(?:ay)?|and|hey|can you"
    r"|could you)[\s,]{1,3}){0,3}"
    r"(?:tell|give|show|write|suggest|recommend|explain|list|find|search|translate|summari[sz]e|calculate|compute|help|make|create"
    r"|draw|imagine|pretend|let['’]?s|repeat|say|answer|look|read|check|send|remind|play|stop|continue|go on"
    r"|erz[äa]hle?|gib|zeige?|schreibe?|nenne?|erkl[äa]re?|[üu]bersetze?|such|finde|hilf|mach|sag|lies"
    r"|dis|donne|montre|[ée]cris|explique|traduis|cherche|aide|raconte|fais"
    r"|dime|dame|mu[ée]strame|escribe|explica|traduce|busca|ay[úu]dame|cu[ée]ntame|haz"
    r"|dimmi|dammi|mostrami|scrivi(?:mi)?|spiega(?:mi)?|traduci|aiutami|raccontami|fammi)\b",
    re.IGNORECASE,
)
_HYPOTHETICAL = re.compile(
    r"^\W{0,5}(?:if|suppose|imagine|what if|let['’]?s say|assuming|wenn|falls|angenommen|stell dir vor|si|imagine|suppos\w+|imagina"
    r"|supong\w+|immagina|se fossi|se avessi|se potessi)\b"
    r"|\bif i (?:were|was|had)\b|\bi (?:wish|would|could|might|may)\b|\bi['’]d (?!like you|prefer)"
    r"|\bich (?:würde|hätte|könnte|wünschte)\b|\bj['’]aimerais\b|\bje (?:voudrais|pourrais)\b"
    r"|\bquisiera\b|\bvorrei\b|\bpotrei\b|\bojalá\b|\bperhaps i\b",
    re.IGNORECASE,
)
# Phrases of doubts, dreams, stories and examples. A sentence with one says nothing about the
# person.
_UNREAL = re.compile(
    r"\b(?:maybe|perhaps|possibly)\b[, ]{1,2}(?:i|we|my|our)\b"
    r"|\b(?:not sure|unsure|(?:do|does|did)(?:n['’]?t| not) know|wonder(?:s|ed|ing)?|ask(?:s|ed)?|doubts?|undecided)\b[^.;]{0,20}"
    r"\b(?:if|whether)\b"
    r"|\bas (?:if|though)\b|\b(?:dream(?:s|t|ed)?|nightmare)\b[^.;]{0,20}\b(?:i|we)\b"
    r"|\bin (?:the|a|my|this|that|his|her) (?:story|novel|book|film|movie"
    r"|game|play|song|poem|exercise)\b(?:[,:]| (?:that|which|i|we)\b)"
    r"|^\W{0,5}(?:for example|for instance|e\.g\.)"
    r"|\bit would be \w{1,20} to (?:say|claim|think)\b|\bclaim(?:s|ed) that\b"
    r"|\b(?:vielleicht|möglicherweise|eventuell)\b|\bweiß nicht,? ob\b|\bob (?:ich|wir)\b"
    r"|\bals ob\b|\bgeträumt\b|\bim traum\b"
    r"|^\W{0,5}(?:zum beispiel|z\. ?b\.)|\bnehmen wir an\b"
    r"|\bin (?:meiner|der|dieser|einer) (?:geschichte|erzählung)\b"
    r"|\bim roman\b|\bes wäre \w{1,20} zu (?:sagen|behaupten)\b"
    r"|\bpeut-être\b|\bne sais pas si\b|\bme demande si\b|\bcomme si\b|\bai rêvé\b"
    r"|\bdans (?:mon|un|ce) rêve\b|^\W{0,5}par exemple\b"
    r"|\b(?:imaginons|supposons)\b"
    r"|\bdans (?:mon|ma|cette|une|ce|le) (?:histoire|roman|récit|conte)\b|\bai failli\b"
    r"|\b(?:quizás?|tal vez|a lo mejor)\b|\bno sé si\b|\bme pregunto si\b|\bcomo si\b"
    r"|\b(?:soñé|he soñado)\b|^\W{0,5}por ejemplo\b"
    r"|\b(?:imaginemos|supongamos)\b"
    r"|\ben (?:mi|un|este|una|la) (?:sueño|cuento|novela|historia)\b"
    r"|\b(?:forse|magari)\b|\bnon so se\b|\bmi chiedo se\b|\bcome se\b|\bho sognato\b"
    r"|\bnel (?:mio )?(?:sogno|romanzo|racconto)\b"
    r"|^\W{0,5}per esempio\b|\b(?:immaginiamo|supponiamo)\b|\bnella mia storia\b",
    re.IGNORECASE,
)
# Three or more quoted words are another person's, or part of a text. A sentence may end within the
# quotes.
_SPEECH = re.compile(
    r"(?:^|[\s:(])[\"“„«»‹›]\s?[^\s\"“”„«»]+(?:\s+[^\s\"“”„«»]+){2}"
    r"|^[^\"“„«»]{3,300}[”»«\"]\W{0,3}$"
    r"|\b(?:sa(?:id|ys)|told|claim(?:s|ed)|wrote|writes|sagte?|meinte?|schrieb|dit|répète|écrit|dijo|dice"
    r"|repite|escribió|detto|ripete|scrive)\b[^\"“„«»]{0,12}[\"“„«»]",
    re.IGNORECASE,
)
_SMALL_TALK = re.compile(
    r"^\W{0,5}(?:(?:hi|hello|hey|hallo|hola|bonjour|salut|ciao|good (?:morning|evening|day|night)|guten"
    r" (?:tag|morgen|abend)|haha|thanks?"
    r"|thank you|danke|merci|gracias|grazie|prego|buongiorno|buonasera"
    r"|ok(?:ay)?|yes|no|yeah|nope|ja|nein|oui|non|sí|great|nice|cool|fine|perfect|bye|lol"
    r"|how are you|see you)(?: (?:there|you|so much|very much|a lot|again|schön|sehr|beaucoup|mucho|muchas))?"
    r"[\s,.!?]{0,5}){1,5}$",
    re.IGNORECASE,
)
_KEEP = re.compile(
    r"^\W{0,5}(?:please |bitte )?(?:remember|note|keep (?:that |this |it )?in mind|don['’]t forget"
    r"|merke? dir|vergiss nicht|retiens|souviens-toi"
    r"|n['’]oublie pas|recuerda|ten en cuenta|no olvides|ricorda(?:ti)?|non dimenticare)\b[\s,:]{0,3}(?:that |dass |que |che )?",
    re.IGNORECASE,
)
# Lines in which a model says that there is nothing to note, describes the conversation, or repeats
# examples from its prompt.
_NO_NOTE = re.compile(
    r"^\W{0,5}(?:none|nothing|no (?:new )?facts?|n/?a|keine?\b.{0,20}|nichts|aucun\w*|rien|ningun\w*|nada)\W{0,5}$"
    r"|\b(?:assistant|chatbot|language model|(?:the )?message|user (?:asks?|asked|wants? to know"
    r"|requests?|said|says|is asking|greets?)"
    r"|asks? (?:for|about|if|what|how|the)|asked|wants? to know|requests?|greets?|greeting|question|hypothetical|unknown"
    r"|not (?:mentioned|specified|known|provided|stated)|fragt|möchte wissen|demande|pregunta)\b",
    re.IGNORECASE,
)
_BULLET = re.compile(r"^\s*(?:[-*•–]+|\d{1,2}[.)])\s*")
_NUMBER = re.compile(r"\d+")
_NAME = re.compile(r"(?<![.!?] )(?<!^)\b[A-ZÀ-ÖØ-Þ][^\W\d_]{2,}")
# Words that a note in the third person uses for a message in the first person.
_NOTE_WORDS = frozenset(
    terms(
        "name named called live lives living home work works job has have likes like prefers "
        "prefer favourite favorite person user "
        "wohnt heißt arbeitet hat mag habite travaille aime vive trabaja tiene llama birthday age "
        "old year years"
    )
)
_FIRST_PERSON = re.compile(
    r"\b(?:i|i['’]\w+|me|my|mine|we|our|us|ich|mein\w*|mir|mich|wir|uns\w*|je|j['’]\w+|mon|ma|mes|nous|notre|yo|mi|mis|nosotros|io|mio|mia|miei|mie|noi)\b",
    re.IGNORECASE,
)
_SHORT_WORDS = 6
# Words of sentences that say only what form the answer should have.
_LONGEST_FORM = 12
_FORM_WORDS = frozenset(
    "a an and answer as at be bullet bullets brief briefly concise detail detailed details english few for four"
    " french german in it italian just keep line lines list lists long make max maximum more most no not"
    " of one only or paragraph paragraphs per please point points prose sentence sentences short simple simply"
    " spanish table than the three to too two very with without word words"
    " auf aufzählung bitte deutsch ein eine einem einer englisch höchstens in kein keine knapp kurz"
    " kurze listen maximal mehr nicht nur oder satz stichpunkte stichpunkten sätze sätzen tabelle"
    " und wort wörter wörtern zwei drei"
    " anglais au bref brièvement courte court deux en français liste maximum mot mots ou pas phrase phrases plus"
    " plaît plait s'il s il sans seulement te trois un une vous"
    " breve brevemente corto como dos en español favor frase frases inglés lista máximo más no o palabra palabras"
    " por solo sin tres una unas"
    " al breve brevemente due frase frasi inglese italiano elenco massimo non o parola parole"
    " per piacere favore solo senza tre".split()
)
_STOP = frozenset().union(*STOP_WORDS.values())
# Words of a wish that name no subject, as in "Forget it." and "Forget everything.".
_NO_SUBJECT = _STOP | frozenset(terms("everything anything ça ciò"))
_SHARE = 0.5


def sentences(text: str) -> list[str]:
    """Return the sentences of a text's first `LONGEST_MESSAGE` characters."""
    pieces: list[str] = []
    for piece in _SENTENCE.split(text[:LONGEST_MESSAGE]):
        if pieces and _NO_END.search(pieces[-1]):
            pieces[-1] = f"{pieces[-1]} {piece}"
        elif re.search(r"\w", piece):
            pieces.append(piece.strip())
    return pieces


def is_statement(sentence: str) -> bool:
    """Return whether the sentence states something.

    It must not ask, request, suppose, doubt, dream, quote or greet. A request to remember something
    is a statement too.
    """
    if _QUESTION.search(sentence) or _SMALL_TALK.search(sentence):
        return False
    if wish_in(sentence) is not None or _SPEECH.search(sentence):
        return False
    if _KEEP.search(sentence):
        return True
    return not (
        _REQUESTS.search(sentence)
        or _ASKS.search(sentence)
        or _HYPOTHETICAL.search(sentence)
        or _UNREAL.search(sentence)
    )


def stated(message: str) -> list[str]:
    """Return the sentences of a message that state something.

    In "Suggest a dinner. One or two sentences." the second sentence continues the request. Until
    the next statement, short sentences without a fact or "I" are taken as such, since a request
    may describe what it wants: "Mia is a dragon." After a statement, only sentences about the form
    of the answer are. A greeting or thanks is no request.
    """
    statements: list[str] = []
    follows_request = False
    has_request = False
    for sentence in sentences(message):
        continues_request = has_request and _is_about_form(sentence)
        if follows_request and len(sentence.split()) <= _SHORT_WORDS:
            continues_request |= not (_FIRST_PERSON.search(sentence) or facts_in(sentence))
        if not is_statement(sentence):
            if not _SMALL_TALK.search(sentence):
                follows_request = has_request = True
        elif not continues_request:
            statements.append(_KEEP.sub("", sentence))
            follows_request = False
    return statements


def _is_about_form(sentence: str) -> bool:
    """Return whether all words describe an answer, as in "One or two sentences, in German."."""
    words = re.findall(r"[^\W\d_]+", sentence.casefold())
    return len(words) <= _LONGEST_FORM and _FORM_WORDS.issuperset(words)


def to_forget(message: str) -> list[str]:
    """Return the phrases that the message asks to forget, if they name a subject.

    "Forget it." names none. Its words may occur in any line.
    """
    wishes = (wish_in(sentence) for sentence in sentences(message))
    return [wish for wish in wishes if wish and not _NO_SUBJECT.issuperset(terms(wish))]


def notes_in(answer: str, statements: Iterable[str]) -> list[str]:
    """Return the first eight distinct lines of a model's answer that repeat the statements."""
    source = " ".join(statements)
    lines = (_BULLET.sub("", line).strip() for line in answer.split("\n"))
    notes = [line for line in dict.fromkeys(lines) if line and is_note(line, source)]
    return notes[:_MOST_NOTES]


def is_note(line: str, source: str) -> bool:
    """Return whether a line is a note on the source, without inventions."""
    if (
        len(line) > _LONGEST_NOTE
        or _NO_NOTE.search(line)
        or _KEEP.search(line)
        or not is_statement(line)
    ):
        return False
    if not set(_NUMBER.findall(line)) <= set(_NUMBER.findall(source)):
        return False
    folded = source.casefold()
    if any(name.casefold() not in folded for name in _NAME.findall(line)):
        return False
    source_words = set(terms(source))
    line_words = {word for word in terms(line) if word not in _STOP} - _NOTE_WORDS
    if not line_words:
        return False
    return len(line_words & source_words) >= max(1, len(line_words) * _SHARE)


def unnoted(statements: Iterable[str], notes: Iterable[str]) -> list[str]:
    """Return the statements of up to 200 characters with a fact that no note contains.

    The caller notes them word for word.
    """
    note_text = " ".join(notes).casefold()
    return [
        statement
        for statement in statements
        if len(statement) <= _LONGEST_NOTE
        and any(fact.value.casefold() not in note_text for fact in facts_in(statement))
    ]
