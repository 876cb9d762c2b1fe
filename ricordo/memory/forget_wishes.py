"""Wishes to forget something, in English, German, French, Spanish and Italian. Pure.

A wish is an order ("Forget my address."), a polite question ("Could you delete that?"), or a
sentence with a lead-in ("For privacy reasons, please remove my address."). "Do not forget …" is no
such wish. The librarian and the notes of small models use this module, so that neither stores a
wish as a fact.
"""

import re

READ_LENGTH = 1_000  # characters of a sentence that are read
# Nouns that are dropped, because they name no subject: "my medical information" is about "medical".
GENERIC = frozenset(
    "information info infos data detail details thing things stuff matter part parts fact facts"
    " message messages note notes relationship daten angaben informationen sache sachen"
    " données information informations chose choses datos información cosa cosas dati"
    " informazioni informazione cose".split()
)
_POLITE = (
    r"(?:please|bitte|s['’]il (?:te|vous) pla[iî]t|stp|svp|por favor|per favore|per piacere|ti prego"
    r"|te lo ruego)"
)
_LEAD = (
    rf"(?:(?:{_POLITE}|ok(?:ay)?|and|so|now|then|well|hey|oh|actually|but|und|also|dann|aber|jetzt|eigentlich"
    r"|et|alors|bon|mais|y|pues|entonces|ahora|pero|e|allora|ora|però|ma)\b[\s,:;!.–-]{0,4}"
    r"|(?:no|yes|right|sorry|wait|nein|ja|moment|non|oui|pardon|sí|espera|sì|scusa)\b[,:;!.–-]{1,2}\s{0,3}){0,4}"
)
_ASK = (
    r"(?:(?:can|could|would|will) you|you (?:should|must|can)|i(?:['’]d like| would like| want| need) you to"
    r"|(?:kannst|könntest|würdest|kannst|sollst) du|(?:können|könnten|würden) sie"
    r"|peux-tu|pourrais-tu|pouvez-vous|pourriez-vous|tu (?:peux|dois|pourrais)|veuillez|merci d['’e]"
    r"|(?:je veux|je voudrais|j['’]aimerais) que tu"
    r"|¿?\s?(?:puedes|podrías|puede|podría)|(?:quiero|quisiera|me gustaría) que"
    r"|puoi|potresti|può|(?:voglio|vorrei) che(?: tu)?)\b"
)
_VERB = (
    r"(?:forget|delete|remove|erase|strike(?: out)?|wipe|un-?remember|stop remembering"
    r"|vergiss|vergesst|vergessen sie|lösche?|löschen sie|streiche?|entferne|tilge"
    r"|oublie[sz]?|oublier|efface[sz]?|effacer|supprime[sz]?|supprimer"
    r"|olvida(?:te de)?|olvídate de|olvides?|olvidar|borra|borres?|borrar|elimina|elimines?|eliminar"
    r"|dimentica(?:ti)?|dimentichi|dimenticare|scorda(?:ti)?|cancella|cancelli|cancellare|eliminare"
    r"|rimuovi|rimuovere)\b"
)
# "Vergiss bitte nicht" and "oublie pas" ask to remember.
_NO_DENIAL = r"(?!\W{0,2}(?:\w{1,12} )?(?:not|never|nicht|nie|pas|jamais|no|non)\b|-me-)"
_ORDER = re.compile(
    rf"^\W{{0,5}}{_LEAD}(?P<ask>{_ASK}[\s,]{{0,3}})?(?:{_POLITE}[\s,]{{0,3}})?{_VERB}{_NO_DENIAL}"
    rf"[\s,:]{{0,3}}(?:{_POLITE}[\s,]{{0,3}})?(?P<what>[^\n]*)$",
    re.IGNORECASE,
)
# "For privacy reasons, please remove my address."
_WITHIN = re.compile(
    rf"[,;:–—]\s{{0,3}}(?:(?:and|so|but|und|also|et|donc|y|e)\s)?"
    rf"(?:(?:{_ASK}\s(?:{_POLITE}\s)?|{_POLITE}[\s,]{{1,3}}){_VERB}{_NO_DENIAL}|{_VERB}{_NO_DENIAL}"
    r"(?=\s(?:my|our|everything|what i|meine?|alles|mon|ma|mes|tout|mis?|todo|il mio|la mia|tutto)\b))"
    r"[\s,]{0,3}(?P<what>[^\n]*)$",
    re.IGNORECASE,
)
# "Kannst du bitte meine Adresse vergessen?"
_VERB_LAST = re.compile(
    rf"^\W{{0,5}}{_LEAD}(?:(?:kannst|könntest|würdest|sollst) du|(?:können|könnten) sie"
    r"|ich (?:möchte|will|hätte gern)e?,? dass (?:du|sie))\s"
    rf"(?:{_POLITE}\s)?(?!.{{0,200}}\bnicht (?:vergess|vergiss|lösch))"
    r"(?P<what>[^\n]{1,200}?)\s(?:vergessen|vergisst|löschen|löschst|streichen|streichst|entfernen|entfernst)\W*$",
    re.IGNORECASE,
)
_OPENING = re.compile(
    r"^(?:(?:(?:everything|all|anything|alles|tout|todo|tutto)[\s,]{1,3})?"
    r"(?:(?:(?:that )?(?:you know|i (?:have )?(?:said|told you|shared))|what i (?:have )?(?:said|told you|shared)"
    r"|was (?:ich (?:dir )?(?:gesagt habe )?|du (?:weißt )?)|ce que (?:je t['’]ai dit|tu sais)"
    r"|lo que (?:te (?:he dicho|dije|conté)|sabes)"
    r"|(?:quello|ciò) che (?:ti ho detto|sai))\s?)?"
    r"(?:about|that|über|dass|sur|que|sobre|su|sul(?:la)?|di|che)\b\s*)+",
    re.IGNORECASE,
)
_ENDING = re.compile(
    rf"[\s,]{{1,3}}(?:{_POLITE}|(?:from|in) (?:your|the) (?:memory|notes|records?|history|archive|database)"
    r"|immediately|right (?:away|now)|at once|now|again|for good|for ?ever|completely|entirely|everywhere|then|any ?more"
    r"|aus (?:deinem|dem) (?:gedächtnis|speicher|archiv)|aus deinen notizen|sofort|jetzt|wieder|überall|ganz|gesagt habe"
    r"|de (?:ta|votre) mémoire|de tes notes|immédiatement|tout de suite|maintenant|partout"
    r"|de tu memoria|de tus notas|inmediatamente|ahora|ya|en todas partes"
    r"|dalla tua memoria|dai tuoi appunti|subito|ora|adesso|ovunque)$",
    re.IGNORECASE,
)
# "Forget my locker, I should not have told you.": the second clause gives a reason.
_REASON = re.compile(
    r"[,;:–—]\s{1,3}(?:(?:i|it|we|that|this|because|since|ich|es|das|weil|denn|je|c['’]est|car|parce|ce|yo|porque|es|era|non|perché|è"
    r"|ho)\b|i['’]).*$",
    re.IGNORECASE | re.DOTALL,
)
_EDGE = " \t,.;:!?…。！？¿¡\"'“”„«»"


def wish_in(sentence: str) -> str | None:
    """Return the thing that a sentence asks to forget, in its wording; None if there is none.

    The thing is empty for "Could you delete that?", and "it" for "Forget it."
    """
    text = sentence[:READ_LENGTH].strip()
    match = _VERB_LAST.search(text) or _ORDER.search(text)
    if match is None:
        match = _WITHIN.search(text)
    elif text.endswith(("?", "？")) and match.re is _ORDER and not match["ask"]:
        # "Forget my name?" is a counter-question.
        return None
    return None if match is None else _thing(match["what"])


def _thing(text: str) -> str:
    """Return the named thing without the parts of the order."""
    text = _REASON.sub("", text).strip(_EDGE)
    shorter = _ENDING.sub("", text).strip(_EDGE)
    while shorter != text:
        text, shorter = shorter, _ENDING.sub("", shorter).strip(_EDGE)
    return _OPENING.sub("", text, count=1).strip(_EDGE)
