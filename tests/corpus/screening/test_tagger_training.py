"""Training the tagger: templates and labels fit, and the same inputs give the same bytes."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from tacit.corpus.screening.tagger import LABELS, EmbeddedTagger
from tacit.corpus.screening.tagger.weights import assemble, load_weights, save_weights
from tools.tagger import corpora
from tools.tagger.learning import Encoded, Learner, Types, collate
from tools.tagger.sentences import Example, Span, disturb, is_held_out, mask, read_templates, write_sentence
from tools.tagger.train import Plan, train, whole_numbers
from tools.tagger.values import Values

ROOT = Path(__file__).parents[3]
TINY = Plan(texts=300, epochs=1, pool=4, locales=2)


@pytest.fixture(scope="module")
def values() -> Values:
    return Values(3, pool=6, locales=3)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path | None]:
    """Corpora of a few invented lines, in the layouts of the real ones."""
    folder = tmp_path_factory.mktemp("corpora")
    lines = (
        "Ada I-PER",
        "Lund I-PER",
        "left O",
        "Oslo I-LOC",
        "in O",
        "1999 O",
        ". O",
        "",
        "-DOCSTART- O",
        "",
    )
    (folder / "wikigold").write_text("\n".join(lines * 6))
    turn = {
        "text": "The hotel's phone is 01223456789",
        "spans": [{"slot": "Phone", "start": 21, "end": 32, "value": "x"}],
    }
    dialogue = {"dialogue_id": "D1", "turns": [turn, {"text": "Thank you .", "spans": []}]}
    (folder / "multiwoz").write_text(
        "\n".join(json.dumps(dialogue | {"dialogue_id": f"D{i}"}) for i in range(9))
    )
    row = {"text": "SYS: Name?\nUSR: Ada Lund", "spans": [{"start": 16, "end": 24, "label": "NAME"}]}
    (folder / "customersim").write_text("\n".join(json.dumps(row | {"id": f"d{i}"}) for i in range(9)))
    patent = {"abstract": "A lamp comprises a shade and a bulb that glows. The bulb is held by a spring."}
    (folder / "patents").write_text("\n".join([json.dumps(patent)] * 3))
    (folder / "wikitext").write_text(
        "= Lamp = \n\n The lamp was made in Oslo by a <unk> . It is on the table in the hall . \n"
    )
    return {name: folder / name for name in ("wikigold", "multiwoz", "customersim", "patents", "wikitext")}


def test_every_template_is_filled_and_its_spans_are_where_they_say(values: Values) -> None:
    templates = read_templates()
    assert len(templates) > 700
    assert 0.1 < np.mean([is_held_out(template) for template in templates]) < 0.2
    for template in templates:
        example = write_sentence(template, values)
        assert not {"{", "}", "|"} & set(example.text.replace(" | ", "")), template
        for span in example.spans:
            assert example.text[span.start : span.end].strip()
            assert span.label in (*LABELS, "?")


def test_disturbing_keeps_spans_on_their_words(values: Values) -> None:
    example = Example("I met Ada Lund, in Oslo.", (Span(6, 14, "PERSON"), Span(19, 23, "LOCATION")))
    rng, forms = Random(0), set()
    for _ in range(400):
        other = disturb(example, rng)
        forms.add(other.text)
        for span in other.spans:
            expected = "ada lund" if span.label == "PERSON" else "oslo"
            assert other.text[span.start : span.end].lower() == expected
    assert {"i met ada lund, in oslo.", "I MET ADA LUND, IN OSLO.", "I met Ada Lund , in Oslo ."} <= forms
    masks = {mask(example, rng).text for _ in range(200)}
    assert {
        "I met <MASK>, in <MASK>.",
        "I met <MASK> Lund, in Oslo.",
        "I met Ada <MASK>, in <MASK>.",
    } <= masks
    for _ in range(50):
        other = mask(example, rng)
        assert {other.text[span.start : span.end].strip() for span in other.spans} <= {
            "Ada",
            "Lund",
            "Ada Lund",
            "Oslo",
        }


def test_tokens_get_the_label_of_their_span() -> None:
    types = Types(load_weights().lists)
    example = Example("I met Ada Lund in 1999", (Span(6, 14, "PERSON"), Span(18, 22, "?")))
    assert types.encode(example).labels.tolist() == [0, 0, 1, 1, 0, -1]


def test_corpora_are_read_with_their_labels(paths: dict[str, Path | None]) -> None:
    assert all(paths.values())
    document = corpora.wikigold_sentences(paths["wikigold"] or Path())[0]
    example = corpora.wikigold_example(document[0], spaced=False)
    assert example.text == "Ada Lund left Oslo in 1999."
    assert example.spans == (Span(0, 8, "PERSON"), Span(14, 18, "LOCATION"), Span(22, 26, "?"))
    _, turn, secrets = next(corpora.multiwoz_turns(paths["multiwoz"] or Path()))
    assert turn.spans == (Span(21, 32, "CODE"),)
    assert secrets == (Span(21, 32, "Phone"),)
    assert corpora.wikitext_sentences(paths["wikitext"] or Path()) == ["It is on the table in the hall."]
    _, dialogue = next(corpora.customersim_dialogues(paths["customersim"] or Path()))
    assert {corpora.lines_of(dialogue, 1, Random(i)).spans for i in range(9)} == {
        (),
        (Span(5, 13, "PERSON"),),
    }


def test_training_twice_gives_the_same_bytes_and_a_tagger(
    paths: dict[str, Path | None], tmp_path: Path
) -> None:
    threads = torch.get_num_threads()
    files = []
    for name in ("one.npz", "two.npz"):
        save_weights(tmp_path / name, train(paths, replace(TINY, seed=1)))
        files.append((tmp_path / name).read_bytes())
    assert files[0] == files[1]
    save_weights(tmp_path / "three.npz", train(paths, replace(TINY, seed=2)))
    assert (tmp_path / "three.npz").read_bytes() != files[0]
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()
    tagger = EmbeddedTagger(load_weights(tmp_path / "one.npz"))
    assert tagger.fingerprint != EmbeddedTagger().fingerprint
    tagger.score(["I am Ada Lund"])


def test_what_is_learnt_is_what_is_shipped() -> None:
    """The learner's logits, and those of its weights as whole numbers, differ by rounding only."""
    torch.manual_seed(0)
    learner = Learner(torch.Generator().manual_seed(5))
    with torch.no_grad():
        learner.head.mul_(20)
        learner.table.mul_(5)
    lists = load_weights().lists
    arrays = whole_numbers(learner) | {f"list-{name}": bits for name, bits in lists.bits.items()}
    arrays["scores"] = load_weights().scores
    text = "Hello, I'm Ada Lund of 12 Main Street\nOslo, born 1999."
    types = Types(lists)
    encoded: Encoded = types.encode(Example(text, ()))
    inputs, _ = collate([encoded], types, None)
    expected = learner(*inputs).detach().numpy()[0, :, 0]
    tagger = EmbeddedTagger(assemble(arrays, "test"))
    assert np.abs(tagger.logits(text)[:, 0] - expected).max() < 0.2
    assert np.abs(expected).max() > 0.5


def test_the_commands_of_the_tagger_page_are_modules() -> None:
    """Run as files they would not find the tools beside them, which no installation has."""
    (block,) = re.findall(r"```console\n(.*?)```", (ROOT / "docs" / "tagger.md").read_text(), re.DOTALL)
    commands = [shlex.split(line) for line in block.replace("\\\n", " ").strip().splitlines()]
    assert [words[:2] for words in commands] == [["python", "-m"]] * 3
    assert all(ROOT.joinpath(*words[2].split(".")).with_suffix(".py").is_file() for words in commands)
