"""The regularisation paper's corpora in their original layouts, and what is planted into them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tacit.errors import InputError
from tacit.experiments import Workshop
from tacit.experiments.reg_texts import ground_of

MODEL = {"layers": 1, "hidden": 8, "tied": True, "vocabulary": 200}
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "lazy",
    "dogs",
    "while",
    "seven",
    "grey",
    "geese",
    "watch",
    "from",
    "far",
    "hills",
]


def settings(**corpus: Any) -> dict[str, Any]:
    return {"corpora": {"some": corpus}, "ladder": [1, 3], "model": MODEL}


def documents(workshop: Workshop, chosen: dict[str, Any], seed: int = 1) -> list[dict[str, str]]:
    ground = ground_of(workshop, chosen, "some", seed)
    lines = (ground.folder / "documents.jsonl").read_text().splitlines()
    assert len(lines) == ground.documents
    return [json.loads(line) for line in lines]


def text_by(author: str, number: int) -> str:
    return f"{' '.join(WORDS[number:] + WORDS[:number])} says {author}"


def test_speakers_are_those_with_enough_speeches(tmp_path: Path) -> None:
    speeches = [
        f"{name}:\n{text_by(name.lower(), n)}\nto the end" for name in ("ANN", "BOB") for n in range(4)
    ]
    (tmp_path / "play.txt").write_text("\n\n".join([*speeches, "CARL:\nonce"]))
    chosen = settings(kind="speakers", text="play.txt", fewest=4, users=2)
    rows = documents(Workshop(tmp_path / "work", tmp_path), chosen)
    assert [row["user"] for row in rows] == ["ANN"] * 4 + ["BOB"] * 4
    assert rows[0]["text"].endswith("says ann to the end")


def test_mail_of_avocado_is_its_senders_and_counts_once(tmp_path: Path) -> None:
    folder = tmp_path / "avocado-1.0.2" / "data" / "text"
    folder.mkdir(parents=True)

    def mail(sender: str, body: str) -> str:
        return f"From: Somebody <{sender}@avocado.com>\nTo: all\nSubject: this\n\n{body}\n"

    for box in ("001", "002"):
        with zipfile.ZipFile(folder / f"{box}.zip", "w") as mailbox:
            for n in range(5):  # the same mails in both mailboxes
                mailbox.writestr(f"{box}/{box}-00000{n}-EM.txt", mail("Ann", text_by("ann", n)))
            for n in range(3):
                mailbox.writestr(f"{box}/{box}-00001{n}-EM.txt", mail(f"bob{box}", text_by(box, n)))
            mailbox.writestr(f"{box}/{box}-000020-EM.txt", mail("carl", ""))
            mailbox.writestr(f"{box}/{box}-000021-AT.txt", "an attachment")
    chosen = settings(kind="avocado", text="avocado-1.0.2/data/text", users=2, documents=7)
    rows = documents(Workshop(tmp_path / "work", tmp_path), chosen)
    assert [row["user"] for row in rows] == ["ann@avocado.com"] * 5 + ["bob001@avocado.com"] * 2
    assert rows[0]["text"] == text_by("ann", 0)


def test_posts_of_reddit_are_their_authors(tmp_path: Path) -> None:
    posts = [{"author": name, "body": text_by(name, n)} for n in range(4) for name in ("ann", "bob")]
    posts += [{"author": "[deleted]", "body": "gone"}, {"author": "carl", "body": "once"}]
    (tmp_path / "corpus-webis-tldr-17.json").write_text("".join(json.dumps(one) + "\n" for one in posts))
    chosen = settings(kind="reddit", text="corpus-webis-tldr-17.json", users=2, documents=6)
    rows = documents(Workshop(tmp_path / "work", tmp_path), chosen)
    assert [row["user"] for row in rows] == ["ann", "bob"] * 3


def test_every_user_gets_a_canary_for_every_number_of_repetitions(tmp_path: Path) -> None:
    shop, chosen = Workshop(tmp_path), settings(kind="customersim", users=2, dialogues=[2, 3])
    ground = ground_of(shop, chosen, "some", 1)
    users = {row["user"] for row in documents(shop, chosen)}
    assert len(users) == 4
    assert {(one.user, one.repetitions) for one in ground.manifest.canaries} == {
        (user, rung) for user in users for rung in (1, 3)
    }
    planted = [json.loads(line) for line in ground.corpus.read_text().splitlines()]
    assert len(planted) == ground.documents + 4 * (1 + 3)
    assert all(len(one.secret.split()) == 5 for one in ground.manifest.canaries)


def test_a_seed_has_its_own_canaries_and_weights_and_the_same_text(tmp_path: Path) -> None:
    shop, chosen = Workshop(tmp_path), settings(kind="customersim", users=2, dialogues=[2])
    one, other = (ground_of(shop, chosen, "some", seed) for seed in (1, 2))
    assert ground_of(shop, chosen, "some", 1) == one
    assert (one.folder / "documents.jsonl").read_bytes() == (other.folder / "documents.jsonl").read_bytes()
    assert {one.secret for one in one.manifest.canaries}.isdisjoint(
        {one.secret for one in other.manifest.canaries}
    )
    weights = [(ground.model / "model.safetensors").read_bytes() for ground in (one, other)]
    assert weights[0] != weights[1]


def test_missing_text_is_told(tmp_path: Path) -> None:
    chosen = settings(kind="speakers", text="play.txt", fewest=1, users=1)
    with pytest.raises(InputError, match=r"play\.txt is missing; --data"):
        ground_of(Workshop(tmp_path / "work", tmp_path), chosen, "some", 1)
    assert not list((tmp_path / "work" / "texts").iterdir())
