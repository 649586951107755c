"""Validated patterns: numbers and addresses whose form gives them away.

Every match has the score 1, because pi and pi_c both take patterns whatever their thresholds are. A pattern
is a regular expression and, where the form alone would catch too much, a check (``validation.py``). Where a
check refuses a match, the patterns after it are tried at the same place: sixteen digits that are no card may
still be a tracking number. Order matters for labels only; what is masked is the union.

A text is searched from its digits: around each one the token that holds it is found, and the patterns are
tried where that begins. A text without a digit, an "@", a dot within a word or a run of capitals is done in
a few passes over it. The words before a number count too ("order number is 4512"), so patterns are
contextual.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from tacit.corpus.screening import validation
from tacit.corpus.screening.scores import ScoredToken
from tacit.errors import RecipeError

ENTITIES: tuple[str, ...] = (
    "EMAIL", "URL", "IP", "DATE", "SSN", "IBAN", "CARD", "PHONE", "POSTCODE", "REFERENCE", "NUMBER",
)  # fmt: skip
"""What is looked for unless the caller says otherwise; "YEAR", four digits alone, has to be asked for."""
KNOWN: tuple[str, ...] = (*ENTITIES, "YEAR")

_MONTHS = (
    "(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|"
    "oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_ORDINAL = r"\d{1,2}(?:st|nd|rd|th)?"
_TIME = r"(?:[T ]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?Z?)?"
_GAP = r"(?:\) ?| - |[ .-]\(?|/)?"  # what may stand between two digits of a phone number
_THING = (
    "(?:order|reference|ref|tracking|booking|confirmation|account|invoice|ticket|customer|case|policy|member|"
    "membership|passport|licen[cs]e|serial|parcel|shipment|reservation|train|code|number|id|pin)"
)


@dataclass(frozen=True)
class Pattern:
    """One form; ``check`` gives the length of what really is such a thing at the beginning of a match."""

    entity: str
    expression: str
    check: Callable[[str], int] = len


_CODE = Pattern("REFERENCE", r"[A-Za-z0-9]+(?:[-/][A-Za-z0-9]+)*", validation.code)
# Tried in this order where a token begins with a digit.
_NUMBERS = (
    Pattern("IP", r"(?:\d{1,3}\.){3}\d{1,3}(?!\.\d)", validation.ip_address),
    Pattern("DATE", r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?!\d)" + _TIME, validation.date),
    Pattern("DATE", r"\d{1,2}(?P<bar>[-/.])\d{1,2}(?P=bar)\d{2,4}(?![\d-])" + _TIME, validation.date),
    Pattern("DATE", rf"(?i:{_ORDINAL}(?: of)? {_MONTHS}\b\.?(?:,? ?\d{{4}}\b)?)"),
    Pattern("SSN", r"\d{3}(?P<dash>[- ])\d{2}(?P=dash)\d{4}(?!-)", validation.ssn),
    Pattern("CARD", r"\d(?:[ -]?\d){11,18}", validation.card),
    Pattern("PHONE", rf"\d{_GAP}(?:\d{_GAP}){{5,17}}\d(?: ?(?:x|ext\.?) ?\d{{1,6}})?", validation.phone),
    Pattern("NUMBER", r"\d(?:[-/]?\d){5,}|\d(?:[ /-]?\d){9,}"),
    _CODE,
)
# The same where it begins with a letter.
_LETTERS = (
    Pattern("IBAN", r"[A-Za-z]{2}\d{2}(?: ?[A-Za-z0-9]{4}){2,7}(?: ?[A-Za-z0-9]{1,3})?", validation.iban),
    Pattern("POSTCODE", r"(?i:[a-pr-uwyz][a-hk-y]?\d[a-hjkstuw\d]? ?\d ?[abd-hjlnp-uw-z]{2})"),
    _CODE,
)
# These need more than the token: what stands before it.
_AFTER_MONTH = Pattern("DATE", rf"(?i:{_MONTHS}\.? (?:{_ORDINAL}\b(?:,? ?\d{{4}}\b)?|\d{{4}}\b))")
_AFTER_STATE = Pattern("POSTCODE", r"[A-Z]{2},? \d{5}(?:-\d{4})?(?![A-Za-z0-9-])")
_AFTER_DOT = Pattern("POSTCODE", r"(?i:[a-z]\.[a-z]\.? ?\d{1,2} ?,? ?\d ?[a-z]\.?[a-z]\b)")
_AFTER_THING = Pattern("REFERENCE", r"[0-9A-Za-z/-]{4,}|\d{3,}")
_YEAR = Pattern("YEAR", r"(?:1[89]|20)\d\d(?!\d)")
# These do not begin with a number.
# An address is found from its "@", and labels of domains are as long as the Internet has them: an expression
# that is tried from every place of a long run of letters, and reads to the run's end each time, takes hours.
_EMAIL = Pattern("EMAIL", r"@[\w-]+(?:\.[\w-]+)+")
_BEFORE_AT = frozenset("_.!#$%&'*+/=?^`{|}~-")
_URL = Pattern(
    "URL",
    r"(?i:(?:(?:\b[a-z][a-z0-9+.-]{0,30})?://|\bwww\.)[^\s<>\"“”]*[^\s<>\"“”.,;:!?')\]}]"
    r"|\b(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.){1,32}"
    r"(?:com|org|net|edu|gov|mil|info|biz|io|ai|app|dev|uk|us|eu|de|fr|it|es|nl|be|ch|at|se|no|dk|fi|pl|cz|ru|"
    r"br|in|cn|jp|au|ca|nz|za|mx|me|tv|cy|si|hu|ie)\b(?:/[^\s<>\"“”]*)?)",
)
_IPV6 = Pattern("IP", r"(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f.:]*", validation.ip_address)
_CAPITALS = Pattern(
    "REFERENCE",
    rf"(?i:\b{_THING}\b)[^A-Z\n]{{1,24}}?(?P<found>(?<![A-Za-z0-9])[A-Z]{{6,14}})(?![A-Za-z0-9])",
)

_DIGIT = re.compile("[0-9]")
_CAPITAL_RUN = re.compile("[A-Z]{6}")
_DOT_IN_WORD = re.compile(r"\.[A-Za-z]{2}")
_REST = re.compile(r"[0-9A-Za-z]*")
_WORD_BEFORE = re.compile(r"[A-Za-z.]{1,10},? \Z")
_THING_BEFORE = re.compile(
    rf"(?i:\b{_THING}\b\W{{1,4}}(?:(?:number|no|nr|num|code|id)\b\W{{1,4}})?"
    r"(?:(?:is|was|of)\b\W{1,4})?)\Z|#\s?\Z"
)
_MONTH_BEGINNINGS = frozenset(
    ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
)
_TOKEN = frozenset(string.ascii_letters + string.digits + "-/")
_LONGEST_BEFORE = 40


class PatternScorer:
    """Finds what has the form of ``entities`` and passes their checks; everything found has the score 1."""

    name = "patterns"
    contextual = True

    def __init__(self, entities: Collection[str] = ENTITIES) -> None:
        unknown = sorted(set(entities) - set(KNOWN))
        if unknown or not entities:
            raise RecipeError(
                f"Expected entities={unknown or list(entities)} to be among {', '.join(KNOWN)}; correct them."
            )
        self.entities = tuple(entity for entity in KNOWN if entity in set(entities))
        self._numbers = _Alternatives(self._wanted(*_NUMBERS))
        self._letters = _Alternatives(self._wanted(*_LETTERS))
        self._month = _Alternatives(self._wanted(_AFTER_MONTH))
        self._state = _Alternatives(self._wanted(_AFTER_STATE, _AFTER_DOT))
        self._thing = _Alternatives(self._wanted(_AFTER_THING))
        self._year = _Alternatives(self._wanted(_YEAR))
        self._ipv6, self._email, self._url, self._capitals = (
            [(p, re.compile(p.expression)) for p in self._wanted(pattern)]
            for pattern in (_IPV6, _EMAIL, _URL, _CAPITALS)
        )

    def _wanted(self, *patterns: Pattern) -> list[Pattern]:
        return [pattern for pattern in patterns if pattern.entity in self.entities]

    @property
    def fingerprint(self) -> str:
        """The entities, and the version of what finds them."""
        return f"patterns 2: {' '.join(self.entities)}"

    def score(self, texts: Sequence[str]) -> list[list[ScoredToken]]:
        """For each text everything that was found."""
        return [self._found(text) for text in texts]

    def _found(self, text: str) -> list[ScoredToken]:
        found: list[ScoredToken] = []
        if first := _DIGIT.search(text):
            found.extend(self._numbers_in(text, first.start()))
        if text.count(":") > 1:
            found.extend(_all_matches(self._ipv6, text))
        if "@" in text:
            found.extend(_addresses(self._email, text))
        if _DOT_IN_WORD.search(text) or "://" in text:
            found.extend(_all_matches(self._url, text))
        if _CAPITAL_RUN.search(text):
            found.extend(_all_matches(self._capitals, text))
        return found

    def _numbers_in(self, text: str, digit: int) -> Iterator[ScoredToken]:
        position = 0
        while True:
            start = digit
            while start > position and text[start - 1] in _TOKEN:
                start -= 1
            while text[start] in "-/":
                start += 1
            found = self._at(text, start, position)
            if found:
                yield found
                position = found.end
            else:
                rest = _REST.match(text, digit)
                position = rest.end() if rest else digit + 1
            following = _DIGIT.search(text, position)
            if following is None:
                return
            digit = following.start()

    def _at(self, text: str, start: int, floor: int) -> ScoredToken | None:
        """What begins with the token at ``start``, or with the word before it; not before ``floor``."""
        if word := _WORD_BEFORE.search(text, max(floor, start - 12), start):
            if word.group()[:3].lower() in _MONTH_BEGINNINGS and (
                date := self._month.match(text, word.start())
            ):
                return date
            if postcode := self._state.match(text, word.start()):
                return postcode
        if not "0" <= text[start] <= "9":
            return self._letters.match(text, start) or self._cued(text, start)
        found = self._numbers.match(text, start)
        if found is None:
            return self._cued(text, start) or self._year.match(text, start)
        if found.label == "PHONE" and start > floor and text[start - 1] in "+(":
            return found._replace(start=start - 1)
        return found

    def _cued(self, text: str, start: int) -> ScoredToken | None:
        if _THING_BEFORE.search(text, max(0, start - _LONGEST_BEFORE), start):
            return self._thing.match(text, start)
        return None


class _Alternatives:
    """Patterns to be tried at one place, in order, until one matches and passes its check."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = patterns
        branches = [rf"(?P<n{number}>{pattern.expression})" for number, pattern in enumerate(patterns)]
        self._all = re.compile(rf"(?:{'|'.join(branches)})(?![A-Za-z0-9])" if branches else r"(?!)")
        self._single = [re.compile(rf"(?:{p.expression})(?![A-Za-z0-9])") for p in patterns]

    def match(self, text: str, start: int) -> ScoredToken | None:
        match = self._all.match(text, start)
        if match is None:
            return None
        # The first form that fits is found in one go; only where its check fails are the others tried singly.
        first = int((match.lastgroup or "n0")[1:])
        for number in range(first, len(self._patterns)):
            pattern = self._patterns[number]
            if number > first:
                match = self._single[number].match(text, start)
            if match and (length := pattern.check(match.group())):
                return ScoredToken(start, start + length, pattern.entity, 1.0)
        return None


def _addresses(patterns: Sequence[tuple[Pattern, re.Pattern[str]]], text: str) -> Iterator[ScoredToken]:
    """What an expression finds from its "@" on, with the letters and signs before that."""
    for pattern, expression in patterns:
        position = 0
        for match in expression.finditer(text):
            start = match.start()
            while start > position and (text[start - 1].isalnum() or text[start - 1] in _BEFORE_AT):
                start -= 1
            if start < match.start():
                yield ScoredToken(start, match.end(), pattern.entity, 1.0)
                position = match.end()


def _all_matches(patterns: Sequence[tuple[Pattern, re.Pattern[str]]], text: str) -> Iterator[ScoredToken]:
    for pattern, expression in patterns:
        group: int | str = "found" if "found" in expression.groupindex else 0
        for match in expression.finditer(text):
            if length := pattern.check(match.group(group)):
                start = match.start(group)
                yield ScoredToken(start, start + length, pattern.entity, 1.0)
