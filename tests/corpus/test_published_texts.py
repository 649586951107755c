"""BigPatent, Reddit and Avocado, in samples of the layouts that they are published in."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tacit.corpus.published_texts import TextCounts, TextLayout, own_words, write_texts
from tacit.errors import CorpusError

MAIL = """\
Message-ID: <1@avocado.example>
From: "Ann Smith" <Ann.Smith@avocado.example>
To: bob@avocado.example
Subject: Re: the contract
Content-Type: text/plain; charset="utf-8"

I have signed it.

-----Original Message-----
From: bob@avocado.example

Please sign it.
"""


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def written(out: Path) -> list[tuple[str, str]]:
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert all(set(row) == {"user", "text"} for row in rows)
    return [(row["user"], row["text"]) for row in rows]


def patent(number: str, **fields: str) -> dict[str, str]:
    return {"publication_number": number, "application_number": "US-1", "abstract": "a", **fields}


def mailbox(folder: Path, number: str, *mails: str, kind: str = "EM") -> None:
    with zipfile.ZipFile(folder / f"{number}.zip", "a") as held:
        for place, mail in enumerate(mails, 1):
            held.writestr(f"{number}/{number}-{place:06d}-{kind}.txt", mail)


@pytest.mark.parametrize(("field", "texts"), [("description", "long"), ("abstract", "short")])
def test_patents_of_a_section_are_users(tmp_path: Path, field: Any, texts: str) -> None:
    section = tmp_path / "train" / "g"
    section.mkdir(parents=True)
    for place in (1, 2):
        content = lines(patent(f"US-{place}-A", description=f"long {place}", abstract=f"short {place}"))
        (section / f"data_{place}.gz").write_bytes(gzip.compress(content.encode()))
    (section / "README").write_text("not a patent")
    counts = write_texts("bigpatent", section, tmp_path / "out.jsonl", field=field)
    assert written(tmp_path / "out.jsonl") == [("US-1-A", f"{texts} 1"), ("US-2-A", f"{texts} 2")]
    assert counts == TextCounts(documents=2, users=2)


def test_deleted_authors_and_texts_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "corpus-webis-tldr-17.json"  # JSON lines, whatever its name says
    path.write_text(
        lines(
            {"author": "ann", "body": "I went home.\nTL;DR: home", "subreddit": "life", "summary": "home"},
            {"author": "[deleted]", "body": "Who am I?"},
            {"author": None, "body": "Nobody."},
            {"author": "bob", "body": "[removed]"},
            {"author": "bob", "body": "[deleted]\n"},
            {"author": "bob", "body": ""},
            {"author": "ann", "body": "Again."},
        )
    )
    counts = write_texts("reddit", path, tmp_path / "out.jsonl")
    assert written(tmp_path / "out.jsonl") == [("ann", "I went home.\nTL;DR: home"), ("ann", "Again.")]
    assert counts == TextCounts(documents=2, users=1, without_author=2, without_text=3)


def test_mails_belong_to_their_senders_and_count_once(tmp_path: Path) -> None:
    box = tmp_path / "text"
    box.mkdir()
    answer = "From: bob@avocado.example\r\nSubject: thanks\r\n\r\n> I have signed it.\r\nThank you, Zoë.\r\n"
    mailbox(box, "001", MAIL, answer)
    mailbox(box, "002", MAIL, "Subject: no sender\n\nHello.", "From: bob@avocado.example\n\n> only a quote\n")
    mailbox(box, "002", "From: bob@avocado.example\n\nan attachment", kind="AT")
    counts = write_texts("avocado", box, tmp_path / "out.jsonl")
    assert written(tmp_path / "out.jsonl") == [
        ("ann.smith@avocado.example", "I have signed it."),
        ("bob@avocado.example", "Thank you, Zoë."),
    ]
    assert counts == TextCounts(documents=2, users=2, without_author=1, without_text=1, copies=1)


@pytest.mark.parametrize(
    ("body", "own"),
    [
        ("Mine.\n\n-----Original Message-----\ntheirs", "Mine."),
        ("Mine.\n--- Forwarded by Bob ---\ntheirs", "Mine."),
        ("Mine.\n________________________________\nFrom: Bob", "Mine."),
        ("Mine.\nOn Monday, Bob wrote:\n> theirs", "Mine."),
        ("Before.\n> theirs\n  > theirs\nAfter.", "Before.\nAfter."),
        ("On the whole, what Bob wrote: fine.", "On the whole, what Bob wrote: fine."),
        ("a - b\n- item", "a - b\n- item"),
    ],
)
def test_what_a_mail_quotes_is_cut_off(body: str, own: str) -> None:
    assert own_words(body) == own


@pytest.mark.parametrize("layout", ["bigpatent", "reddit", "avocado"])
def test_what_cannot_be_read_is_refused_and_nothing_is_left(tmp_path: Path, layout: TextLayout) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    out = tmp_path / "out.jsonl"
    with pytest.raises(CorpusError, match="holds no text"):
        write_texts(layout, folder, out)
    broken = folder / ("001.zip" if layout == "avocado" else "part.json")
    broken.write_text("no such thing")
    with pytest.raises(CorpusError, match="no zip of e-mails" if layout == "avocado" else "line 1"):
        write_texts(layout, folder, out)
    with pytest.raises(CorpusError, match=r"does not exist|no zip"):
        write_texts(layout, tmp_path / "nowhere", out)
    assert not out.exists()
