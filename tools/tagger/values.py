"""Values for the slots of the templates: people, places, organisations, addresses, dates, codes.

Names, cities, companies and addresses come from Faker in many locales and from words.txt; everything is
drawn by one seeded generator, so that the same seed and the same version of Faker give the same values.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from random import Random

from faker import Faker

from tools.tagger import numbers
from tools.tagger.numbers import LETTERS

Piece = tuple[str, str]  # text and label; "" is public, "?" is not learnt from

HERE = Path(__file__).parent
_SLOT = re.compile(r"\{(\w+)\}")


def read_word_lists(path: Path = HERE / "words.txt") -> dict[str, list[str]]:
    """Read "## name" and its words, separated by commas."""
    lists: dict[str, list[str]] = {}
    name = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            name = line.removeprefix("## ")
        elif line and not line.startswith("#"):
            lists[name] = [word.strip() for word in line.split(",")]
    return lists


class Pools:
    """Values of Faker, drawn once for every locale, because Faker is slow."""

    def __init__(self, words: dict[str, list[str]], seed: int, size: int, locales: int) -> None:
        self.people = words["person locales"][-locales:]
        self.places = words["address locales"][:locales]
        self.other_scripts = words["other scripts"][:locales]
        self.prefixes: list[str] = []
        self._values: dict[tuple[str, str], list[str]] = {}
        for locale in dict.fromkeys(("en_US", *self.people, *self.places, *self.other_scripts)):
            fake = Faker(locale)
            fake.seed_instance(f"{seed} {locale}")
            times = range(size * (4 if locale == "en_US" else 1))
            for kind in (
                "first_name",
                "last_name",
                "name",
                "city",
                "company",
                "address",
                "street_address",
                "postcode",
            ):
                draw = getattr(fake, kind)
                self._values[kind, locale] = [draw() for _ in times]
            self.prefixes += [prefix for prefix in dict.fromkeys(fake.prefix() for _ in range(60)) if prefix]
        fake = Faker("en_US")
        fake.seed_instance(seed)
        self.countries = list(dict.fromkeys(fake.country() for _ in range(25 * size)))
        self.states = list(dict.fromkeys(fake.state() for _ in range(1000)))
        self.state_codes = list(dict.fromkeys(fake.state_abbr() for _ in range(1000)))
        self.country_codes = list(dict.fromkeys(fake.country_code() for _ in range(1000)))
        self.jobs = list(dict.fromkeys(fake.job() for _ in range(25 * size)))

    def of(self, kind: str, locale: str) -> list[str]:
        """Return the values of a kind in a locale."""
        return self._values[kind, locale]

    def all(self, kind: str) -> list[list[str]]:
        """Return the values of a kind in every locale."""
        return [values for (other, _), values in self._values.items() if other == kind]


class Values:
    """Draws a value of each kind, from at most so many ``locales``."""

    def __init__(self, seed: int, *, pool: int = 400, locales: int = 100) -> None:
        self.rng = rng = Random(seed)
        self.words = words = read_word_lists()
        self.pools = Pools(words, seed, pool, locales)

        def labelled(label: str, draw: Callable[[], str]) -> Callable[[], list[Piece]]:
            return lambda: [(draw(), label)]

        def listed(name: str) -> Callable[[], str]:
            return lambda: self.any(name)

        self.kinds: dict[str, Callable[[], list[Piece]]] = {
            "NAME": labelled("PERSON", self.name),
            "FIRST": labelled("PERSON", self.first_name),
            "LAST": labelled("PERSON", self.last_name),
            "INITIAL": labelled("PERSON", self.initial),
            "TITLE": labelled("TITLE", self.title),
            "TNAME": self.titled,
            "job": labelled("TITLE", self.job),
            "CITY": labelled("LOCATION", self.city),
            "COUNTRY": labelled("LOCATION", self.country),
            "STATE": labelled("LOCATION", self.state),
            "PLACE": labelled("LOCATION", self.place),
            "ORG": labelled("ORGANISATION", self.organisation),
            "ADDRESS": labelled("ADDRESS", self.address),
            "STREET": labelled("ADDRESS", self.street),
            "STREETNAME": labelled("ADDRESS", self.street_name),
            "ZIP": labelled("ADDRESS", self.postcode),
            "BUILDING": labelled("ADDRESS", lambda: str(rng.randint(1, rng.choice((60, 400, 9999))))),
            "STATECODE": labelled("LOCATION", lambda: rng.choice(self.pools.state_codes)),
            "COUNTRYCODE": labelled("LOCATION", lambda: rng.choice(self.pools.country_codes)),
            "NRP": labelled("GROUP", self.group),
            "NRPNOUN": labelled("GROUP", listed("faiths")),
            "DEMONYM": labelled("GROUP", self.demonym),
            "LANGUAGE": labelled("?", listed("languages")),
            "CARBRAND": labelled("?", listed("car brands")),
            "DATE": labelled("DATE", lambda: numbers.date(rng, words)),
            "YEAR": labelled("DATE", lambda: str(rng.randint(1890, 2026))),
            "MONTH": labelled("DATE", listed("months")),
            "MONTHYEAR": labelled("DATE", lambda: f"{self.any('months')} {rng.randint(1950, 2026)}"),
            "AGE": labelled("AGE", lambda: numbers.age(rng, words)),
            "PHONE": labelled("CODE", lambda: numbers.phone(rng)),
            "EMAIL": labelled("CODE", self.email),
            "CODE": labelled("CODE", lambda: numbers.code(rng)),
        }
        self.public: dict[str, Callable[[], str]] = {
            "thing": lambda: (
                rng.choice(("the ", "the ", "a ", "my ", "your ", "this ", "")) + self.any("items")
            ),
            "Thing": lambda: f"The {self.any('items')}",
            "THING": lambda: f"the {self.any('items')}".upper(),
            "things": lambda: plural(self.any("items")),
            "Things": lambda: plural(self.any("items")).title(),
            "verb": listed("verbs"),
            "Verb": lambda: self.any("verbs").capitalize(),
            "VERB": lambda: self.any("verbs").upper(),
            "verbs": lambda: rng.choice(
                ("checked", "ordered", "likes", "needs", "found", "wants", "wrote about")
            ),
            "adjective": listed("adjectives"),
            "symptom": listed("symptoms"),
            "cuisine": listed("cuisines"),
            "weekday": listed("weekdays"),
            "time": lambda: numbers.time(rng),
            "money": lambda: numbers.money(rng),
            "number": lambda: numbers.number(rng, words),
            "digit": lambda: str(rng.randint(0, 10)),
        }

    def any(self, name: str) -> str:
        """Return a word of a list."""
        return self.rng.choice(self.words[name])

    def _happens(self, chance: float) -> bool:
        return self.rng.random() < chance

    def _pooled(self, kind: str, locales: list[str]) -> str:
        locale = self.rng.choice(self.pools.other_scripts if self._happens(0.03) else locales)
        return self.rng.choice(self.pools.of(kind, locale))

    # People

    def first_name(self, locale: str = "") -> str:
        """Return a first name of a locale, or of any."""
        if locale:
            return self.rng.choice(self.pools.of("first_name", locale))
        return (
            self.any("first names") if self._happens(0.2) else self._pooled("first_name", self.pools.people)
        )

    def last_name(self, locale: str = "") -> str:
        """Return a family name of a locale, or of any; a few are two."""
        if locale:
            name = self.rng.choice(self.pools.of("last_name", locale))
        else:
            name = (
                self.any("last names") if self._happens(0.2) else self._pooled("last_name", self.pools.people)
            )
        return f"{name}-{self._pooled('last_name', [locale or 'en_US'])}" if self._happens(0.04) else name

    def initial(self) -> str:
        """Return an initial, mostly with its full stop."""
        return self.rng.choice(LETTERS) + self.rng.choice((".", ".", ""))

    def name(self) -> str:
        """Return a whole name in one of the forms that people write."""
        rng = self.rng
        locale = rng.choice(self.pools.other_scripts if self._happens(0.03) else self.pools.people)
        if self._happens(0.07):
            return rng.choice(self.pools.of("name", locale))
        locale = locale if self._happens(0.75) else ""
        first, last = self.first_name(locale), self.last_name(locale)
        initials = f"{rng.choice(LETTERS)}.{rng.choice(LETTERS)}."
        forms = {
            f"{first} {last}": 60, f"{first} {self.initial()} {last}": 10,
            f"{first} {self.first_name(locale)} {last}": 6,
            f"{last}, {first}": 4, f"{self.initial()} {last}": 3, f"{initials} {last}": 2,
            f"{last} {first}": 3, f"{first} {last} {self.any('suffixes')}": 2,
            f"{first} {last} {self.last_name(locale)}": 3,
            f"{first} {last.upper()}": 3,
        }  # fmt: skip
        return rng.choices(list(forms), list(forms.values()))[0]

    def title(self) -> str:
        """Return a form of address."""
        kind = self.rng.random()
        if kind < 0.2:
            return self.rng.choice(self.pools.prefixes)
        return self.any("titles" if kind < 0.5 else "common titles")

    def titled(self) -> list[Piece]:
        """Return a name with its title."""
        name = self.last_name() if self._happens(0.55) else self.name()
        return [(self.title(), "TITLE"), (" ", ""), (name, "PERSON")]

    def job(self) -> str:
        """Return an occupation."""
        return self.any("jobs") if self._happens(0.55) else self.rng.choice(self.pools.jobs)

    def group(self) -> str:
        """Return a nationality, a faith or a party."""
        return self.any("nationalities" if self._happens(0.75) else "beliefs")

    def demonym(self) -> str:
        """Return what one or several people of a group are called."""
        if self._happens(0.4):
            return self.any("demonyms")
        group = self.group()
        return group if group.endswith(("s", "sh", "ch", "ese")) or self._happens(0.5) else f"{group}s"

    # Places

    def city(self) -> str:
        """Return a real city, or an invented one of any locale."""
        city = self.any("cities") if self._happens(0.45) else self._pooled("city", self.pools.places)
        return city.upper() if self._happens(0.04) else city

    def country(self) -> str:
        """Return a country's English name."""
        return self.rng.choice(self.pools.countries)

    def state(self) -> str:
        """Return a state of the United States."""
        return self.rng.choice(self.pools.states)

    def place(self) -> str:
        """Return a city, country, region or state, or a city with what it lies in."""
        kind = self.rng.random()
        if kind < 0.45:
            return self.city()
        if kind < 0.65:
            return self.country()
        if kind < 0.78:
            return self.any("regions")
        if kind < 0.85:
            return self.state()
        larger = self.rng.choice((self.country(), self.state(), self.rng.choice(self.pools.state_codes)))
        return f"{self.city()}, {larger}"

    def postcode(self) -> str:
        """Return a postcode of any country."""
        return (
            self._pooled("postcode", self.pools.places) if self._happens(0.6) else numbers.postcode(self.rng)
        )

    def street_name(self) -> str:
        """Return a street's name without a number."""
        rng, kind = self.rng, self.rng.random()
        middle = rng.choice(
            (self.any("street middles"), self.any("street middles"), self.last_name(), self.name())
        )
        if kind < 0.6:
            return f"{middle} {self.any('street endings')}"
        if kind < 0.8:
            return f"{self.any('street starts')} {middle}"
        return middle.split()[-1].capitalize() + self.any("street glued")

    def street(self) -> str:
        """Return a street with a number, and perhaps a flat."""
        rng = self.rng
        if self._happens(0.35):
            return self._pooled("street_address", self.pools.places).replace("\n", ", ")
        if self._happens(0.05):
            return f"{self.any('boxes')} {rng.randint(1, 9999)}"
        number = f"{rng.randint(1, rng.choice((30, 150, 999, 4999, 19999)))}{self.any('number endings')}"
        if self._happens(0.05):
            number = f"{number}-{rng.randint(2, 99)}"
        name = self.street_name()
        forms = (
            f"{number} {name}",
            f"{number} {name}",
            f"{name} {number}",
            f"{name}, {number}",
            f"{number}, {name}",
        )
        street = rng.choice(forms)
        if self._happens(0.04):
            street = rng.choice((name, f"No. {street}", f"{name} Nr. {number}", f"House {street}"))
        if self._happens(0.22):
            letter, storey = rng.choice(LETTERS), rng.randint(1, 30)
            flat = (
                f"{self.any('units')} {rng.choice((str(rng.randint(1, 400)), letter, f'{storey}{letter}'))}"
            )
            forms = (
                f"{street}, {flat}",
                f"{street} {flat}",
                f"{flat}, {street}",
                f"{flat}\n{street}",
                f"{street}\n{flat}",
            )
            street = rng.choice(forms)
        return street

    def address(self) -> str:
        """Return a whole address, in lines or in one."""
        rng = self.rng
        if self._happens(0.40):
            address = self._pooled("address", self.pools.places)
        else:
            city, code = self.city(), self.postcode()
            city = city.upper() if self._happens(0.15) else city
            state = rng.choice((rng.choice(self.pools.state_codes), self.state(), self.any("provinces")))
            forms = (
                f"{city}, {state} {code}", f"{city} {state} {code}", f"{code} {city}", f"{code} {city}", city,
                f"{city}\n{code}", f"{code}\n{city}", f"{city} {code}", f"{code}-{city}", f"{city}, {code}",
                f"{city}\n{state}\n{code}", f"{code} {city} ({state})", f"{city} - {state}\n{code}",
                f"{self.any('cities')}\n{city}\n{code}", f"{code}-{city} {state}", f"{city}-{state}\n{code}",
                f"{city}, {state}\n{code}", f"{code} {city} {rng.choice('CKNSVØ')}",
                f"{self.city()}\n{city} {code}",
            )  # fmt: skip
            address = f"{self.street()}\n{rng.choice(forms)}"
            if self._happens(0.05):  # as in Hungary, the town first
                address = f"{code} {city}\n{self.street()}"
            if self._happens(0.06):
                address = f"{self.any('buildings')} {rng.choice(LETTERS)}\n{address}"
        if self._happens(0.22):
            country = self.country() if self._happens(0.7) else self.any("regions")
            address += f"\n{country.upper() if self._happens(0.2) else country}"
        return re.sub(r"\s*\n\s*", rng.choice(("\n", "\n", ", ", ", ", ", ", " ")), address.strip())

    # Organisations

    def organisation(self) -> str:
        """Return a company, school, authority, club or newspaper."""
        rng, kind = self.rng, self.rng.random()
        ending = f" {self.any('company endings')}" if self._happens(0.4) else ""
        if kind < 0.22:
            return self._pooled("company", self.pools.people)
        if kind < 0.34:
            return self._plain_words()
        if kind < 0.50:
            start = rng.choice(
                (self.any("organisation words"), self.last_name(), self.any("brands"), self.city())
            )
            return f"{'The ' if self._happens(0.1) else ''}{start} {self.any('industries')}{ending}"
        if kind < 0.58:
            return f"{self.any('organisation words')} {self.any('organisation words')}"
        if kind < 0.66:
            return f"{self.any('brands')}{ending}"
        if kind < 0.72:
            return self.any("acronyms")
        if kind < 0.75:
            return numbers.filled(rng.choice(("??", "???", "???", "????")), rng)
        if kind < 0.79:
            return f"{self.last_name()} {rng.choice(('&', 'and', '+'))} {self.last_name()}"
        return self._expand(self.any("universities" if kind < 0.88 else "bodies"))

    def _plain_words(self) -> str:
        """Return a name made of everyday words: Blue Kettle, FastLink, Anna's, Quality Shoe Repair."""
        return self._expand(self.any("plain names")) + (
            f" {self.any('company endings')}" if self._happens(0.15) else ""
        )

    def _expand(self, pattern: str) -> str:
        parts: dict[str, Callable[[], str]] = {
            "CITY": self.city, "COUNTRY": self.country, "STATE": self.state, "LAST": self.last_name,
            "FIRST": self.first_name, "NATIONALITY": lambda: self.any("nationalities"),
            "Subject": lambda: self.any("Subject"),
            "Orgword": lambda: self.any("organisation words"),
            "Adjective": lambda: self.any("organisation adjectives"),
            "Noun": lambda: self.any("organisation nouns"),
            "noun": lambda: self.any("organisation nouns").lower(),
            "Industry": lambda: self.any("industries"),
        }  # fmt: skip
        return _SLOT.sub(lambda slot: parts[slot[1]](), pattern)

    def email(self) -> str:
        """Return an e-mail address."""
        rng = self.rng
        joint, tail = rng.choice((".", "_", "", "-")), rng.choice(("", "", "7", "99"))
        user = f"{self.first_name('en_US')}{joint}{self.last_name('en_US')}{tail}".lower()
        host = rng.choice(("example", "mail", "post", "gmail", self.any("brands").lower()))
        return f"{user}@{host}.{rng.choice(('com', 'org', 'net', 'de', 'co.uk', 'fr'))}"


def plural(word: str) -> str:
    """Return a word's plural, well enough."""
    return word if word.endswith("s") else f"{word}s"
