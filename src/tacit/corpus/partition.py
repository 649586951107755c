"""Which user's text may reach which model: k parts of two halves, fixed before any text is cut or shuffled.

Every user is in exactly one (part, half). With ``hash`` (the default) a user's place is a function of the
key and their own id, so adding or removing somebody moves nobody else: only then does the loss of a part
bound the loss of each user in it. ``balanced`` is Algorithm 1 of SubMix as printed, equal parts in random
order; there a user's place depends on who else is present.

The key is a secret. Whoever has it can tell in which part a person would be, so it is written apart from
the public description, for its owner's eyes only; the public description holds no ids and no counts. Its
file is one line, "tacit partition key 1" and 64 hexadecimal digits, so that no other file passes for a key.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import re
import secrets
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Literal, NamedTuple, Self, get_args

import pyarrow as pa

from tacit.corpus.limits import require_whole
from tacit.corpus.summary import CountTokens, counted_documents, tokens_are_known
from tacit.corpus.user_corpus import UserCorpus
from tacit.errors import CorpusError, InputError, PublicModelWarning, RecipeError, Tampered
from tacit.files import PRIVATE_FOLDER_MODE, make_parent, new_file, refuse_existing, write_json

Assign = Literal["hash", "balanced"]

HALVES = 2
KEY_BYTES = 32
MOST_PARTS = 10_000

_VERSION = 1
_HASH_BITS = 128
_EMPTY_HALVES_SHOWN = 5
_PUBLIC = "partition.json"
_PRIVATE = "private"
_KEY = "partition.key"
_KEY_FORMAT = "tacit partition key 1"
_HEX_KEY = re.compile(f"[0-9a-f]{{{2 * KEY_BYTES}}}")
_KEY_LINE_BYTES = len(_KEY_FORMAT) + 1 + 2 * KEY_BYTES + 1
_ASSIGNMENT = "assignment.arrow"
_ASSIGNMENT_SCHEMA = pa.schema([("user", pa.large_string()), ("slot", pa.uint32())])


class Slot(NamedTuple):
    """One half of one part, both counted from 0."""

    part: int
    half: int


@dataclass(frozen=True)
class PartSummary:
    """What one half of one part holds; ``tokens`` is None where nobody counted."""

    part: int
    half: int
    users: int
    documents: int
    tokens: int | None


@dataclass(frozen=True)
class Partition:
    """Every user's part and half; made by ``create``, kept by ``save``, found again by ``load``."""

    parts: int
    assign: Assign
    key: bytes = field(repr=False)
    _slots: Mapping[str, Slot] = field(repr=False)

    @classmethod
    def create(
        cls, corpus: UserCorpus, parts: int, assign: Assign = "hash", key: bytes | None = None
    ) -> Self:
        """Assign the corpus' users with ``key``, by default a fresh one from the operating system.

        A half may stay empty; its member is then the public model itself, and a PublicModelWarning says so.
        """
        require_whole("parts", parts, most=MOST_PARTS, example=8)
        if assign not in get_args(Assign):
            raise RecipeError(f"Expected assign='{assign}' to be 'hash' or 'balanced'.")
        if key is not None and len(key) != KEY_BYTES:
            # Its fingerprint is public, so a key that can be guessed can be found.
            raise RecipeError(
                f"Expected a random key of {KEY_BYTES} bytes, got {len(key)}; leave it out to draw one."
            )
        if not len(corpus):
            raise CorpusError("The corpus is empty; a partition needs at least one user.")
        if corpus.unit == "undivided":
            raise CorpusError("The corpus was read without users; cut it in blocks before partitioning it.")
        key = secrets.token_bytes(KEY_BYTES) if key is None else key
        partition = cls(parts, assign, key, MappingProxyType(_assigned(corpus.users, parts, assign, key)))
        partition._warn_of_empty_halves()
        return partition

    @property
    def slots(self) -> list[Slot]:
        """Every (part, half), in order."""
        return [Slot(part, half) for part in range(self.parts) for half in range(HALVES)]

    @property
    def key_fingerprint(self) -> str:
        """SHA-256 of the key: tells two partitions apart without telling the key."""
        return hashlib.sha256(self.key).hexdigest()

    @property
    def fingerprint(self) -> str:
        """The same for two partitions where everybody in both has the same place in both, by construction.

        With ``hash`` that needs the key and the number of parts only; a ``balanced`` one is like no other
        that has other users. It tells nothing about who they are.
        """
        digest = hashlib.sha256(f"{self.assign}:{self.parts}:{self.key_fingerprint}".encode())
        if self.assign == "balanced":
            for user in sorted(self._slots):
                digest.update(hmac.digest(self.key, user.encode(), "sha256"))
        return digest.hexdigest()

    @property
    def users(self) -> tuple[str, ...]:
        """Everybody who has a place, in the corpus' order."""
        return tuple(self._slots)

    def slot_of(self, user: str) -> Slot:
        """Where a user is."""
        try:
            return self._slots[user]
        except KeyError:
            raise CorpusError(
                "A user is not in this partition; partition the corpus that has them."
            ) from None

    def users_in(self, part: int, half: int | None = None) -> list[str]:
        """The users of one half, or of both where ``half`` is None."""
        self._check_slot(part, half)
        return [user for user, slot in self._slots.items() if slot.part == part and half in (None, slot.half)]

    def corpus_of(self, corpus: UserCorpus, part: int, half: int | None = None) -> UserCorpus:
        """The documents of one half, or of both where ``half`` is None: a view, empty where nobody is."""
        self._check_slot(part, half)
        here = []
        for user in corpus.users:
            slot = self.slot_of(user)
            if slot.part == part and half in (None, slot.half):
                here.append(user)
        return corpus.of_users(here)

    def summary(self, corpus: UserCorpus, count_tokens: CountTokens | None = None) -> list[PartSummary]:
        """Users, documents and tokens of every half; the tokens of blocks are known without a counter."""
        users: Counter[Slot] = Counter(self.slot_of(user) for user in corpus.users)
        documents: Counter[Slot] = Counter()
        for user, count in zip(corpus.users, corpus.document_counts().tolist(), strict=True):
            documents[self.slot_of(user)] += count
        tokens: Counter[Slot] = Counter()
        known = tokens_are_known(corpus, count_tokens)
        if known:
            for document, count in counted_documents(corpus, count_tokens):
                tokens[self.slot_of(document.user)] += count or 0
        return [
            PartSummary(slot.part, slot.half, users[slot], documents[slot], tokens[slot] if known else None)
            for slot in self.slots
        ]

    def save(self, folder: Path) -> None:
        """Write ``partition.json``, which may be published, and ``private/``, which may not.

        The folder may exist, and so may ``private/``, which is closed to everybody but its owner.
        """
        private = folder / _PRIVATE
        paths = [private / _KEY, private / _ASSIGNMENT, folder / _PUBLIC]
        for path in paths:
            refuse_existing(path)
        make_parent(folder)
        with contextlib.ExitStack() as undo:
            for new, new_mode in ((folder, 0o777), (private, PRIVATE_FOLDER_MODE)):
                if not new.exists():
                    new.mkdir(new_mode)
                    undo.callback(new.rmdir)
            private.chmod(PRIVATE_FOLDER_MODE)
            for path in paths:
                undo.callback(path.unlink, missing_ok=True)
            with new_file(private / _KEY, private=True) as handle:
                handle.write(f"{_KEY_FORMAT} {self.key.hex()}\n".encode())
            with new_file(private / _ASSIGNMENT, private=True) as handle:
                _write_assignment(handle, self._slots)
            # Last, because a folder with this file is a complete partition.
            write_json(folder / _PUBLIC, self._public_description())
            undo.pop_all()

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a saved partition; the assignment is derived again from the key and must agree."""
        public = _read_public(folder / _PUBLIC)
        private = folder / _PRIVATE
        try:
            key = _parsed_key((private / _KEY).read_bytes())
            with pa.OSFile(str(private / _ASSIGNMENT)) as file:
                table = pa.ipc.open_file(file).read_all()
        except OSError as problem:
            raise CorpusError(
                f"{private} cannot be read ({problem.strerror or 'a file is missing'}); put back the private "
                "folder that was written with the partition."
            ) from None
        except pa.ArrowException:
            raise Tampered(f"{private / _ASSIGNMENT} is damaged; partition the corpus again.") from None
        if key is None or hashlib.sha256(key).hexdigest() != public.get("key_fingerprint"):
            raise Tampered(f"{private / _KEY} is not the key of {folder / _PUBLIC}; put back the right one.")
        if table.schema != _ASSIGNMENT_SCHEMA:
            raise Tampered(f"{private / _ASSIGNMENT} is not an assignment; partition the corpus again.")
        users = table.column("user").to_pylist()
        slots = _assigned(users, public["parts"], public["assign"], key)
        saved = table.column("slot").to_pylist()
        if len(slots) != len(users) or [_number(slots[user]) for user in users] != saved:
            raise Tampered(f"{private / _ASSIGNMENT} disagrees with the key; partition the corpus again.")
        return cls(public["parts"], public["assign"], key, MappingProxyType(slots))

    def _public_description(self) -> dict[str, object]:
        return {
            "version": _VERSION,
            "assign": self.assign,
            "parts": self.parts,
            "halves": HALVES,
            "key_fingerprint": self.key_fingerprint,
        }

    def _check_slot(self, part: int, half: int | None) -> None:
        if not 0 <= part < self.parts or half not in (None, *range(HALVES)):
            raise ValueError(
                f"Expected part={part} in 0..{self.parts - 1} and half={half} in 0..{HALVES - 1} or None."
            )

    def _warn_of_empty_halves(self) -> None:
        taken = set(self._slots.values())
        empty = [f"part {slot.part} half {slot.half}" for slot in self.slots if slot not in taken]
        if empty:
            more = len(empty) - _EMPTY_HALVES_SHOWN
            shown = ", ".join(empty[:_EMPTY_HALVES_SHOWN]) + (f" and {more} more" if more > 0 else "")
            warnings.warn(
                f"{len(empty)} of {HALVES * self.parts} halves hold no user and will answer as the public "
                f"model: {shown}.",
                PublicModelWarning,
                stacklevel=3,
            )


def read_key(path: Path) -> bytes:
    """The key of a saved partition, for another corpus in which the same users are to keep their places."""
    remedy = "give the partition.key that tacit wrote into a partition's private folder"
    try:
        # A key file is one line; of a file that is none, not more is read than shows it.
        with path.open("rb") as handle:
            key = _parsed_key(handle.read(2 * _KEY_LINE_BYTES))
    except OSError as problem:
        raise InputError(f"{path}: cannot be read ({problem.strerror}); {remedy}.") from None
    if key is None:
        raise InputError(f"{path}: is not a partition key; {remedy}.")
    return key


def _parsed_key(content: bytes) -> bytes | None:
    name, _, digits = content.decode("latin-1").removesuffix("\n").rpartition(" ")
    if name == _KEY_FORMAT and _HEX_KEY.fullmatch(digits):
        return bytes.fromhex(digits)
    # Early versions wrote the bare bytes. Random ones are never all printable (1 in 10^13), unlike a text.
    if len(content) == KEY_BYTES and not (content.isascii() and content.decode().isprintable()):
        return content
    return None


def _assigned(users: Sequence[str], parts: int, assign: Assign, key: bytes) -> dict[str, Slot]:
    digests = {user: hmac.digest(key, user.encode(), "sha256") for user in users}
    slots = [Slot(part, half) for part in range(parts) for half in range(HALVES)]
    if assign == "hash":
        # The scaling favours some slot by at most 2k in 2^128, which nobody can ever observe.
        return {
            user: slots[(int.from_bytes(digest[: _HASH_BITS // 8]) * len(slots)) >> _HASH_BITS]
            for user, digest in digests.items()
        }
    dealt = {
        user: Slot(position % parts, position // parts % HALVES)
        for position, user in enumerate(sorted(digests, key=lambda user: (digests[user], user)))
    }
    return {user: dealt[user] for user in users}


def _number(slot: Slot) -> int:
    return slot.part * HALVES + slot.half


def _write_assignment(handle: IO[bytes], slots: Mapping[str, Slot]) -> None:
    columns = [
        pa.array(list(slots), pa.large_string()),
        pa.array([_number(slot) for slot in slots.values()], pa.uint32()),
    ]
    with pa.ipc.new_file(handle, _ASSIGNMENT_SCHEMA) as writer:
        writer.write_batch(pa.record_batch(columns, schema=_ASSIGNMENT_SCHEMA))


def _read_public(path: Path) -> dict[str, Any]:
    try:
        public = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise CorpusError(
            f"{path} cannot be read ({problem.strerror}); give the folder of a partition."
        ) from None
    except (ValueError, RecursionError):
        raise Tampered(f"{path} is not JSON; partition the corpus again.") from None
    if not isinstance(public, dict) or public.get("version") != _VERSION:
        raise CorpusError(f"{path} is not of version {_VERSION}; partition the corpus again.")
    try:
        require_whole("parts", public.get("parts"), most=MOST_PARTS, example=8)
        described = public.get("halves") == HALVES and public.get("assign") in get_args(Assign)
    except InputError:
        described = False
    if not described:
        raise Tampered(f"{path} does not describe a partition; partition the corpus again.")
    return public
