"""Checks that tell a number of a kind from other numbers: sums, ranges, calendars.

Each takes the text that a pattern found and says how many of its characters are such a number: 0 for none.
"""

from __future__ import annotations

import ipaddress
import re

_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LEAST_CARD, _MOST_CARD = 12, 19
_LEAST_IBAN, _MOST_IBAN = 15, 34
_LEAST_PHONE, _MOST_PHONE = 7, 15
_CODE_DIGITS = 3
_LEAST_CODE = 6
_LEAST_JOINED_CODE = 9


def digits_of(text: str) -> str:
    """The decimal digits of a text."""
    return "".join(character for character in text if "0" <= character <= "9")


def card(text: str) -> int:
    """A payment card: 12 to 19 digits whose Luhn sum (ISO/IEC 7812-1) is a multiple of ten."""
    digits = digits_of(text)
    return len(text) if _LEAST_CARD <= len(digits) <= _MOST_CARD and luhn(digits) else 0


def luhn(digits: str) -> bool:
    """Whether the Luhn sum of a string of digits is a multiple of ten."""
    total = 0
    for position, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + position % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def iban(text: str) -> int:
    """An international bank account number, alone or before further groups in capitals: ISO 13616, mod 97."""
    for end in [len(text), *(space.start() for space in reversed(list(re.finditer(" ", text))))]:
        compact = text[:end].replace(" ", "").upper()
        if _LEAST_IBAN <= len(compact) <= _MOST_IBAN and mod97(compact):
            return end
    return 0


def mod97(compact: str) -> bool:
    """Whether an IBAN without blanks leaves 1 when divided by 97, its letters read as 10 to 35."""
    moved = compact[4:] + compact[:4]
    return int("".join(str(int(character, 36)) for character in moved)) % 97 == 1


def ssn(text: str) -> int:
    """A number that the US Social Security Administration could have issued."""
    area, group, serial = re.split("[- ]", text)
    issued = area not in ("000", "666") and area < "900" and group != "00" and serial != "0000"
    return len(text) if issued else 0


def ip_address(text: str) -> int:
    """An IPv4 or IPv6 address."""
    for end in (len(text), len(text.rstrip(":."))):
        try:
            ipaddress.ip_address(text[:end])
        except ValueError:
            continue
        return end
    return 0


def date(text: str) -> int:
    """Three numbers that are a day in some usual order: year first, day first or month first."""
    first, second, third = re.findall(r"\d+", text)[:3]
    if len(first) == 4:
        return len(text) if _is_day(int(third), int(second)) and len(third) <= 2 else 0
    if len(third) not in (2, 4) or len(first) > 2 or len(second) > 2:
        return 0
    either = _is_day(int(first), int(second)) or _is_day(int(second), int(first))
    return len(text) if either else 0


def _is_day(day: int, month: int) -> bool:
    return 1 <= month <= 12 and 1 <= day <= _MONTH_DAYS[month - 1]


def phone(text: str) -> int:
    """7 to 15 digits (ITU E.164) that are not a list of small numbers."""
    digits = digits_of(re.split(r"(?i)x|ext", text)[0])
    groups = re.findall(r"\d+", text)
    telling = any(len(group) >= 3 for group in groups) or all(len(group) == 2 for group in groups)
    return len(text) if _LEAST_PHONE <= len(digits) <= _MOST_PHONE and telling else 0


def code(text: str) -> int:
    """A code of letters and digits, not a word with a number, an ordinal, a measure or a decade."""
    letters = sum(character.isalpha() for character in text)
    digits = len(digits_of(text))
    if not letters or not digits or letters + digits < _LEAST_CODE:
        return 0
    if _MEASURE.fullmatch(text) or (_WORD_AND_NUMBER.fullmatch(text) and digits < _CODE_DIGITS):
        return 0
    if ("-" in text or "/" in text) and digits < _CODE_DIGITS:
        # "COVID-19" is a word; a longer one in capitals is none.
        return len(text) if text == text.upper() and letters + digits >= _LEAST_JOINED_CODE else 0
    return len(text)


_MEASURE = re.compile(
    r"\d+(?:st|nd|rd|th|s|am|pm|[kmgt]?hz|[kmgt]i?b|[kcmn]?m|m?mhg|[km]?g|m?l|[km]?w|kwh|kmh|mph|px|x\d+|k|min|hrs?|"
    r"sec|days?|year|years|weeks?|months?|hours?|minutes?|people|pounds?|seater|inch(?:es)?|ft|feet|miles?)",
    re.IGNORECASE,
)
_WORD_AND_NUMBER = re.compile(r"[A-Z]?[a-z]{3,}-?\d+|\d+-?[A-Za-z]?[a-z]{3,}|[A-Z]{3,}-\d+")
