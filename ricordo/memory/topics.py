"""Topics that agents may have to leave out of memory; each topic is a list of words.

A rule names a topic if it is a topic's name, alone or after "topic:". A line is about a topic if it
has one of the topic's words. Most of these are beginnings of words, such as "allerg*".
"""

import re
from collections.abc import Mapping
from functools import cache

# A word, or a compound such as "left-wing".
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_PREFIX = re.compile(r"(?:topic|thema)\s*:\s*", re.IGNORECASE)
# A word with * matches every word that begins with it. Other words match exactly.
_WORDS: Mapping[str, str] = {
    "health": "health* ill illness* sick sickness* disease* disorder* diagnos* symptom* doctor* "
    "physician* hospital* clinic* medic* medication* pill* therap* psych* depress* anxi* "
    "asthma* allerg* diabet* cancer* migraine* epilep* surger* pregnan* disabil* disabled "
    "adhd autis* bulimi* anorexi* hiv covid* flu vaccin* injur* gesund* krank* arzt ärzt* "
    "therapeut* allergi* schwanger* behinder* verletz*",
    "religion": "religio* faith* god gods church* mosque* synagogue* temple* pray* bible* quran* "
    "koran* torah* christian* catholic* protestant* muslim* islam* jew jews jewish* "
    "hindu* buddhis* atheis* agnostic* baptis* ramadan kirche* moschee* gebet* beten "
    "glaub* katholi* evangeli* jüdi*",
    "politics": "politic* vote votes voted voting voter* election* elect* senator* parliament* "
    "democrat* republican* socialis* communis* left-wing right-wing activis* partei* "
    "wahl* wähl* politi* abgeordnet*",
    "money": "money salar* wage* income* earn* debt* loan* credit* mortgage* rent rents invest* "
    "savings tax taxes bankrupt* wealth* poverty allowance* scholarship* geld* gehalt* "
    "lohn* einkommen* schuld* kredit* miete* steuer* konto*",
    "relationships": "girlfriend* boyfriend* partner* wife wives husband* spouse* married marri* divorc* "
    "dating dates crush* affair* breakup* fiance* fiancé* freundin* verlob* verheirat* "
    "geschieden* scheidung* verliebt* ehefrau* ehemann*",
    "sexuality": "sex sexual* gay lesbian* bisexual* queer* trans transgender* homosexual* "
    "heterosexual* asexual* nonbinary schwul* lesbisch*",
    "family": "family families mother* father* mum mom mums moms dad dads parent* brother* sister* "
    "sibling* son sons daughter* grandmother* grandfather* grandparent* uncle* aunt* "
    "cousin* niece* nephew* child children kids familie* mutter* mütter* vater* väter* "
    "eltern* bruder* brüder* schwester* geschwister* sohn* tochter* oma opa",
    "where I live": "address* postcode* zipcode* apartment* neighbourhood* neighborhood* adresse* straße* "
    "strasse* wohn* postleitzahl*",
    "crime": "crime* criminal* arrest* police prison* jail* convict* court* lawsuit* theft* drug "
    "drugs polizei* gefängnis* verhaft* verurteil* gericht* diebstahl*",
}
TOPICS = tuple(_WORDS)
_NAMES = {name.casefold(): name for name in TOPICS} | {
    "gesundheit": "health",
    "politik": "politics",
    "geld": "money",
    "beziehungen": "relationships",
    "sexualität": "sexuality",
    "familie": "family",
    "my health": "health",
    "my family": "family",
    "my religion": "religion",
    "finances": "money",
    "my address": "where I live",
    "where i live": "where I live",
}


def topic_of(rule: str) -> str | None:
    """Return the topic that a rule names; None if the rule is a line of text.

    Args:
        rule: A rule of the user, such as "topic: health".
    """
    name = " ".join(_PREFIX.sub("", rule.strip(), count=1).split()).rstrip(".").casefold()
    return _NAMES.get(name)


def is_about(line: str, topic: str) -> bool:
    """Return whether a line has one of the topic's words.

    Args:
        line: A line of a text.
        topic: One of `TOPICS`.
    """
    whole, beginnings = _words_of(topic)
    words = _WORD.findall(line.casefold())
    # A compound counts as a whole, and so does each of its parts.
    parts = [part for word in words for part in {word, *word.split("-")}]
    return any(part in whole or part.startswith(beginnings) for part in parts)


@cache
def _words_of(topic: str) -> tuple[frozenset[str], tuple[str, ...]]:
    words = _WORDS[topic].split()
    whole = frozenset(word for word in words if not word.endswith("*"))
    return whole, tuple(word.removesuffix("*") for word in words if word.endswith("*"))
