"""Published collections of texts by many people, as JSON lines with ``user`` and ``text``.

* BigPatent, a section as it unpacks (``train/g``): files of JSON lines, each a patent and a user of its own.
* Reddit, JSON lines with ``author`` and ``body``, as Webis-TLDR-17 and Pushshift have them. Who deleted the
  account is nobody: all of them would be one user. Texts that were deleted or removed are left out too.
* Avocado (LDC2015T03), ``data/text``: a zip for each mailbox, an e-mail in each ``*-EM.txt``. A user is who
  sent a message, whoever kept it. What it quotes is somebody else's text and is cut off; copies count once.

What was left out is counted; a line or a mailbox that cannot be read is refused by its name.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from email.parser import HeaderParser
from email.utils import parseaddr
from pathlib import Path
from typing import Final, Literal

from tacit.corpus.rows import BadRow, Row, UnusableRow, checked_text, checked_user, refuse_bad
from tacit.corpus.sources import CorpusSource, iter_rows
from tacit.errors import CorpusError
from tacit.files import new_file

TextLayout = Literal["bigpatent", "reddit", "avocado"]
PatentField = Literal["description", "abstract"]

_NOBODY: Final = "[deleted]"
_GONE: Final = frozenset({"[deleted]", "[removed]"})
_LINES: Final = ("*.gz", "*.json", "*.jsonl")
_QUOTED_BELOW: Final = re.compile(r"^\s*(-+\s*(Original Message|Forwarded by)\b|_{20,}\s*$|On .+ wrote:\s*$)")


@dataclass
class TextCounts:
    """What was written, and what was left out."""

    documents: int = 0
    users: int = 0
    without_author: int = 0
    without_text: int = 0
    copies: int = 0


def write_texts(
    layout: TextLayout, source: Path, out: Path, *, field: PatentField = "description"
) -> TextCounts:
    """Write a published collection as JSON lines; ``field`` says what of a patent is its text."""
    counts, users = TextCounts(), set()
    with new_file(out) as handle:
        for user, text in published_texts(layout, source, counts, field=field):
            users.add(_digest(user))
            handle.write(json.dumps({"user": user, "text": text}, ensure_ascii=False).encode() + b"\n")
    counts.users = len(users)
    return counts


def published_texts(
    layout: TextLayout,
    source: Path,
    counts: TextCounts | None = None,
    *,
    field: PatentField = "description",
) -> Iterator[tuple[str, str]]:
    """Users with their texts, one after the other; a source without any is refused in the end."""
    counts = counts or TextCounts()
    match layout:
        case "bigpatent":
            found = _patents(source, counts, field)
        case "reddit":
            found = _posts(source, counts)
        case "avocado":
            found = _messages(source, counts)
    for one in found:
        counts.documents += 1
        yield one
    if not counts.documents:
        raise CorpusError(f"{source}: holds no text; give the folder or file of a {layout} collection.")


def _patents(source: Path, counts: TextCounts, field: PatentField) -> Iterator[tuple[str, str]]:
    for row in _rows(source, counts, user="publication_number", text=field):
        yield row.user, row.text


def _posts(source: Path, counts: TextCounts) -> Iterator[tuple[str, str]]:
    for row in _rows(source, counts, user="author", text="body"):
        if row.user == _NOBODY:
            counts.without_author += 1
        elif row.text.strip() in _GONE:
            counts.without_text += 1
        else:
            yield row.user, row.text


def _rows(source: Path, counts: TextCounts, *, user: str, text: str) -> Iterator[Row]:
    """Rows of a file of JSON lines, whatever it is called, or of all such files of a folder."""

    def on_bad(row: BadRow) -> None:
        if row.reason in ("null user", "empty user"):
            counts.without_author += 1
        elif row.reason == "empty document":
            counts.without_text += 1
        else:
            refuse_bad(replace(row, remedy="correct it, or take it out"))

    if source.is_dir():
        files = sorted({path for pattern in _LINES for path in source.rglob(pattern) if path.is_file()})
    else:
        files = [source]
    for path in files:
        yield from iter_rows(CorpusSource(str(path), format="jsonl", user=user, text=text), on_bad=on_bad)


def _messages(source: Path, counts: TextCounts) -> Iterator[tuple[str, str]]:
    seen: set[bytes] = set()
    mailboxes = sorted(source.rglob("*.zip")) if source.is_dir() else [source]
    for mailbox in mailboxes:
        for message in _mails(mailbox):
            parsed = HeaderParser().parsestr(message)
            name, address = parseaddr(parsed.get("From", ""))
            user, text = (address or name).lower(), own_words(str(parsed.get_payload()))
            known = _digest(f"{user}\0{text}")
            if not _is_usable(checked_user, user):
                counts.without_author += 1
            elif not _is_usable(checked_text, text):
                counts.without_text += 1
            elif known in seen:
                counts.copies += 1
            else:
                seen.add(known)
                yield user, text


def _is_usable(checked: Callable[[object], str], value: str) -> bool:
    try:
        checked(value)
    except UnusableRow:
        return False
    return True


def _mails(mailbox: Path) -> Iterator[str]:
    try:
        with zipfile.ZipFile(mailbox) as held:
            for name in sorted(held.namelist()):
                if name.endswith("-EM.txt"):
                    yield held.read(name).decode("utf-8", "replace").replace("\r\n", "\n")
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as problem:
        raise CorpusError(
            f"{mailbox} is no zip of e-mails that can be read ({problem}); give the data/text of Avocado."
        ) from None


def own_words(body: str) -> str:
    """A message without what it quotes: up to the message below, and without lines that begin with '>'."""
    kept = []
    for line in body.split("\n"):
        if _QUOTED_BELOW.match(line):
            break
        if not line.lstrip().startswith(">"):
            kept.append(line.rstrip())
    return "\n".join(kept).strip()


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
