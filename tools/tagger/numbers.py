"""Values made of digits and letters: dates, ages, phone numbers, codes, amounts, times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_DIGITS = "0123456789"
_ALPHABETS = {"#": _DIGITS, "?": LETTERS, "*": LETTERS + _DIGITS}

PHONES = (
    "0#########", "0##########", "+## ### ######", "+1 ### ### ####", "(###) ###-####", "###-###-####",
    "###.###.####", "### ### ####", "##########", "+44 20 #### ####", "0#### ######", "(0##) #### ####",
    "1-###-###-####", "0## ## ## ## ##", "+49 ### #######", "06-########", "## ## ## ## ##",
    "001-###-###-####x###", "(##) ####-####", "0### ### ####",
)  # fmt: skip
CODES = (
    "********", "********", "??######", "TR####", "??####", "###-#####-####", "##########", "?########",
    "??-######-##", "W-########", "****-****-****", "#### #### #### ####", "??#########??", "##-####-##",
    "?#######?", "######", "#######", "???-###", "??## ???", "###-##-####", "????##", "#-####-#",
    "**********", "??########", "#########", "####-##-###", "????????",
)  # fmt: skip
POSTCODES = ("#####", "#####-####", "####", "######", "## ###", "### ##", "####-###")
LETTERED_POSTCODES = ("??# #??", "??## #??", "?# #??", "?#? #?#", "#### ??", "?## #??", "??-#####")


def filled(form: str, rng: Random) -> str:
    """Fill # with digits, ? with capitals, * with either."""
    return "".join(rng.choice(_ALPHABETS[mark]) if mark in _ALPHABETS else mark for mark in form)


def phone(rng: Random) -> str:
    """Return a phone number."""
    return filled(rng.choice(PHONES), rng)


def code(rng: Random) -> str:
    """Return an order, reference, passport or other number, sometimes in small letters."""
    found = filled(rng.choice(CODES), rng)
    return found.lower() if rng.random() < 0.12 else found


def postcode(rng: Random) -> str:
    """Return a postcode of digits, or one with letters, at times without its blank or in small letters."""
    if rng.random() < 0.4:
        return filled(rng.choice(POSTCODES), rng)
    found = filled(rng.choice(LETTERED_POSTCODES), rng)
    if rng.random() < 0.4:
        found = found.replace(" ", "")
    return found.lower() if rng.random() < 0.3 else found


def date(rng: Random, words: Mapping[str, Sequence[str]]) -> str:
    """Return a date as people write them, in digits or in words."""
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(1915, 2029)
    name = words["months"][month - 1]
    if rng.random() < 0.25:
        name = name[:3] + rng.choice(("", "."))
    th = f"{day}{ {1: 'st', 2: 'nd', 3: 'rd', 21: 'st', 22: 'nd', 23: 'rd'}.get(day, 'th') }"
    short, ordinal = f"{year % 100:02d}", words["ordinals"][day - 1]
    season = rng.choice(("spring", "summer", "autumn", "fall", "winter"))
    in_words = (
        f"{day} {name} {year}", f"{name} {day}, {year}", f"{name} {day} {year}", f"{th} {name} {year}",
        f"{name} {th}, {year}", f"{day} {name}", f"{name} {day}", f"{name} {th}", f"the {th} of {name}",
        f"the {ordinal} of {name}", f"{name} {year}", f"{day}. {name} {year}", f"{day}-{name}-{year}",
        f"{day} {name} {short}", f"{name.lower()} {day}", f"{day} {name.lower()} {year}",
        f"{th} of {name}, {year}", f"{name}, {year}", f"{rng.choice(('early', 'late', 'mid'))} {name}",
        f"{season} {year}",
    )  # fmt: skip
    in_digits = (
        f"{month}/{day}/{year}", f"{day:02d}/{month:02d}/{year}", f"{day}/{month}/{short}", f"{month}/{year}",
        f"{day:02d}.{month:02d}.{year}", f"{day}.{month}.{short}", f"{year}-{month:02d}-{day:02d}",
        f"{year}/{month:02d}/{day:02d}", f"{day:02d}-{month:02d}-{year}", f"{month:02d}/{short}",
    )  # fmt: skip
    return rng.choice(in_words if rng.random() < 0.7 else in_digits)


def age(rng: Random, words: Mapping[str, Sequence[str]]) -> str:
    """Return years of age, mostly in digits."""
    years = rng.choice((rng.randint(1, 17), rng.randint(18, 99), rng.randint(18, 70)))
    if rng.random() < 0.85:
        return str(years)
    if years < 20:
        return words["number words"][years - 1]
    tens, ones = words["tens"][years // 10 - 2], years % 10
    return f"{tens}{rng.choice(('-', ' '))}{words['number words'][ones - 1]}" if ones else tens


def number(rng: Random, words: Mapping[str, Sequence[str]]) -> str:
    """Return a number that tells nothing about anybody."""
    return rng.choice((
        str(rng.randint(1, 12)), str(rng.randint(1, 99)), str(rng.randint(100, 2500)),
        str(10 * rng.randint(1, 50)), f"{rng.randint(1, 999)},{rng.randint(100, 999)}",
        f"{rng.randint(0, 99)}.{rng.randint(1, 99)}",
        rng.choice(words["number words"]),
    ))  # fmt: skip


def money(rng: Random) -> str:
    """Return an amount with its currency."""
    amount = f"{rng.randint(1, 999)}"
    amount = rng.choice((amount, f"{amount}.{rng.randint(0, 99):02d}", f"{amount},000"))
    before, after = rng.choice("$€£"), rng.choice(("euros", "pounds", "USD", "dollars"))
    return rng.choice((f"{before}{amount}", f"{amount} {after}"))


def time(rng: Random) -> str:
    """Return a time of day."""
    hour, minute = rng.randint(0, 23), rng.choice((0, 15, 30, 45, rng.randint(0, 59)))
    twelve = hour % 12 + 1
    return rng.choice((
        f"{hour}:{minute:02d}", f"{hour:02d}:{minute:02d}", f"{twelve} pm", f"{twelve}am",
        f"{twelve}:{minute:02d} am", "noon",
    ))  # fmt: skip
