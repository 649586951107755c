"""CustomerSim: gold spans are complete, values are distinct, the dial and the seed do what they say."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter, OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from faker.providers.address.en_US import Provider as AddressProvider
from faker.providers.person.en_US import Provider as PersonProvider
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.corpus import customersim, dialogue_templates
from tacit.corpus.customersim import LABELS, Dialogue, SimulationPlan, simulate, write_customersim
from tacit.errors import InputError, OutputExists


def values_of(dialogue: Dialogue) -> dict[str, str]:
    """The value of every label; fails if a label has two values in one dialogue."""
    values: dict[str, str] = {}
    for span in dialogue.spans:
        value = dialogue.text[span.start : span.end]
        assert values.setdefault(span.label, value) == value
    return values


def distinct_values(dialogues: Sequence[Dialogue]) -> int:
    return len({item for dialogue in dialogues for item in values_of(dialogue).items()})


@pytest.fixture(scope="module")
def dialogues() -> list[Dialogue]:
    return list(simulate(SimulationPlan(users=60, dialogues_per_user=5, repeat_secrets=0.3, seed=11)))


def test_size_and_identity(dialogues: list[Dialogue]) -> None:
    assert Counter(Counter(dialogue.user for dialogue in dialogues).values()) == {5: 60}
    assert len({dialogue.id for dialogue in dialogues}) == 300
    assert list(dialogues[0].to_json()) == ["id", "user", "text", "spans"]


def test_every_dialogue_holds_every_secret_and_spans_are_ordered_and_disjoint(
    dialogues: list[Dialogue],
) -> None:
    for dialogue in dialogues:
        assert set(values_of(dialogue)) == set(LABELS)
        for earlier, later in zip(dialogue.spans, dialogue.spans[1:], strict=False):
            assert earlier.start < earlier.end <= later.start


def test_no_secret_occurs_outside_a_span(dialogues: list[Dialogue]) -> None:
    for dialogue in dialogues:
        starts = {label: [s.start for s in dialogue.spans if s.label == label] for label in LABELS}
        for label, value in values_of(dialogue).items():
            found = [match.start() for match in re.finditer(re.escape(value), dialogue.text)]
            assert found == starts[label]


def test_nothing_outside_the_spans_is_a_number(dialogues: list[Dialogue]) -> None:
    for dialogue in dialogues:
        rest = list(dialogue.text)
        for span in dialogue.spans:
            rest[span.start : span.end] = "*" * (span.end - span.start)
        assert not re.search(r"\d", "".join(rest))


def test_no_value_is_part_of_another_anywhere_in_the_corpus(dialogues: list[Dialogue]) -> None:
    corpus = "\n".join(dialogue.text for dialogue in dialogues)
    spans = Counter(dialogue.text[s.start : s.end] for dialogue in dialogues for s in dialogue.spans)
    for value, count in spans.items():
        if (
            corpus.count(value) != count
        ):  # then it may only be the beginning of a longer word, as in Davis, Davison
            assert len(re.findall(rf"(?<!\w){re.escape(value)}(?!\w)", corpus)) == count


def test_turns_alternate_and_the_agent_opens_and_closes(dialogues: list[Dialogue]) -> None:
    for dialogue in dialogues:
        speakers = [line.split(": ", 1)[0] for line in dialogue.text.split("\n")]
        assert speakers == [("SYS", "USR")[turn % 2] for turn in range(len(speakers))]
        assert speakers[-1] == "SYS"


def test_length_and_variety(dialogues: list[Dialogue]) -> None:
    tokens = [len(re.findall(r"\w+|[^\w\s]", dialogue.text)) for dialogue in dialogues]
    assert 150 < sum(tokens) / len(tokens) < 250
    assert max(tokens) > 1.5 * min(tokens)
    masked = [
        re.sub("|".join(map(re.escape, values_of(dialogue).values())), "*", dialogue.text)
        for dialogue in dialogues
    ]
    assert len(set(masked)) == len(dialogues)
    formats = {re.sub(r"\d", "9", values_of(dialogue)["PHONE"]) for dialogue in dialogues}
    assert len(formats) == len(customersim._PHONE_FORMATS)


def test_without_repeats_every_value_belongs_to_one_dialogue() -> None:
    dialogues = list(simulate(SimulationPlan(users=40, dialogues_per_user=5, seed=3)))
    assert distinct_values(dialogues) == len(dialogues) * len(LABELS)
    phones = {re.sub(r"\D", "", values_of(dialogue)["PHONE"])[-10:] for dialogue in dialogues}
    assert len(phones) == len(dialogues)


def test_with_certain_repeats_a_user_keeps_the_first_dialogues_values() -> None:
    first: dict[str, dict[str, str]] = {}
    for dialogue in simulate(SimulationPlan(users=10, dialogues_per_user=4, repeat_secrets=1.0, seed=3)):
        assert first.setdefault(dialogue.user, values_of(dialogue)) == values_of(dialogue)
    assert len({value for values in first.values() for value in values.values()}) == 10 * len(LABELS)


def test_the_dial_is_monotone_and_hits_its_expected_share() -> None:
    fresh = [
        distinct_values(list(simulate(SimulationPlan(users=50, repeat_secrets=dial, seed=5))))
        for dial in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    ]
    assert fresh == sorted(fresh, reverse=True)
    assert len(set(fresh)) == len(fresh)
    # 50 users x 4 later dialogues x 5 slots: 1000 coins, standard deviation below 16.
    for dial, count in zip((0.0, 0.2, 0.4, 0.6, 0.8, 1.0), fresh, strict=True):
        assert abs(count - 250 - 1000 * (1 - dial)) < 64


def test_users_never_share_a_value(dialogues: list[Dialogue]) -> None:
    owner: dict[str, str] = {}
    for dialogue in dialogues:
        for value in values_of(dialogue).values():
            assert owner.setdefault(value, dialogue.user) == dialogue.user


@settings(max_examples=15, deadline=None)
@given(
    users=st.integers(1, 6),
    more=st.integers(0, 6),
    dial=st.floats(0, 1, allow_nan=False),
    seed=st.integers(0, 2**70),
)
def test_more_users_leave_the_earlier_ones_alone(users: int, more: int, dial: float, seed: int) -> None:
    smaller = SimulationPlan(users, 2, dial, seed)
    larger = SimulationPlan(users + more, 2, dial, seed)
    assert list(simulate(smaller)) == list(simulate(larger))[: 2 * users]


def test_more_dialogues_and_another_dial_leave_the_first_dialogues_alone() -> None:
    short = list(simulate(SimulationPlan(users=5, dialogues_per_user=2, seed=9)))
    long = list(simulate(SimulationPlan(users=5, dialogues_per_user=4, repeat_secrets=0.5, seed=9)))
    assert [d for d in short if d.id.endswith("-000")] == [d for d in long if d.id.endswith("-000")]


def test_seeds_differ() -> None:
    one, other = (next(simulate(SimulationPlan(seed=seed))) for seed in (0, 1))
    assert set(values_of(one).values()).isdisjoint(values_of(other).values())


def test_file_is_byte_identical_across_processes(tmp_path: Path) -> None:
    plan = SimulationPlan(users=4, dialogues_per_user=3, repeat_secrets=0.5, seed=21)
    counts: list[int] = []
    write_customersim(plan, tmp_path / "here.jsonl", counts.append)
    assert counts == list(range(1, 13))
    script = (
        "from pathlib import Path; from tacit.corpus.customersim import *; import sys;"
        "write_customersim(SimulationPlan(4, 3, 0.5, 21), Path(sys.argv[1]))"
    )
    for hash_seed in ("1", "2"):
        path = tmp_path / f"{hash_seed}.jsonl"
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run([sys.executable, "-c", script, str(path)], check=True, env=environment)
        assert path.read_bytes() == (tmp_path / "here.jsonl").read_bytes()


def test_file_holds_the_dialogues(tmp_path: Path) -> None:
    plan = SimulationPlan(users=2, dialogues_per_user=2, seed=1)
    write_customersim(plan, tmp_path / "sim.jsonl")
    lines = (tmp_path / "sim.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [dialogue.to_json() for dialogue in simulate(plan)]


def test_an_existing_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "sim.jsonl"
    path.write_text("precious")
    with pytest.raises(OutputExists):
        write_customersim(SimulationPlan(users=1), path)
    assert path.read_text() == "precious"


def test_an_interrupted_file_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(count: int) -> None:
        if count == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_customersim(SimulationPlan(users=3), tmp_path / "sim.jsonl", interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("users", 0),
        ("users", -3),
        ("users", 2.0),
        ("users", True),
        ("dialogues_per_user", 0),
        ("users", 10**9),
        ("repeat_secrets", -0.01),
        ("repeat_secrets", 1.01),
        ("repeat_secrets", float("nan")),
        ("repeat_secrets", "half"),
        ("seed", -1),
        ("seed", None),
    ],
)
def test_a_bad_plan_names_field_and_value(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{field}={re.escape(repr(value))}"):
        SimulationPlan(**{field: value})


def test_a_plan_has_limits_that_no_slip_of_the_keyboard_passes() -> None:
    with pytest.raises(InputError, match=r"seed=1157920892.* to be a whole number from 0 to"):
        SimulationPlan(seed=2**256)
    with pytest.raises(InputError, match=r"users=1000000 x dialogues_per_user=1000 .* 100,000,000 dialogues"):
        SimulationPlan(users=10**6, dialogues_per_user=1000)


def test_bounds_are_inclusive() -> None:
    assert SimulationPlan(users=1, dialogues_per_user=1, repeat_secrets=0, seed=0).repeat_secrets == 0
    assert SimulationPlan(repeat_secrets=1).repeat_secrets == 1


def test_names_do_not_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PersonProvider, "first_names", OrderedDict(Ann=1.0))
    monkeypatch.setattr(PersonProvider, "last_names", OrderedDict(Lee=1.0))
    names = [values_of(d)["NAME"] for d in simulate(SimulationPlan(users=100, dialogues_per_user=1, seed=2))]
    assert len(set(names)) == 100
    assert {"Ann Lee"} < set(names)


def test_exhausted_values_are_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(customersim, "_ORDER_FORMATS", ("#",))
    with pytest.raises(InputError, match=r"No unused order .* simulate fewer"):
        list(simulate(SimulationPlan(users=11, dialogues_per_user=1)))


def test_templates_keep_their_promises() -> None:
    source = Path(dialogue_templates.__file__).read_text(encoding="utf-8")
    slots = set(re.findall(r"\{(\w+)\}", source))
    assert slots == {*LABELS, "item", "day"}
    for goal in dialogue_templates.GOALS:
        assert all("{TRACKING}" in resolution for resolution in goal.resolutions)
        for label, phrases in {**dialogue_templates.VERIFY, **goal.verify}.items():
            assert all(f"{{{label}}}" in text for text in (*phrases.tell, *phrases.volunteer))
            assert not any("{" in text for text in phrases.ask)
    assert not any(item[0] in "aeiou" for item in dialogue_templates.ITEMS)  # they follow "a"


def test_faker_cannot_make_a_person_of_an_address() -> None:
    assert not set(customersim._STREET_SUFFIXES) & set(PersonProvider.last_names)
    assert not set(AddressProvider.city_prefixes) & set(PersonProvider.first_names)


def test_known_dialogue() -> None:
    """Freezes the sentences and the order of draws; Faker's lists may move values, so they are left out."""
    dialogue = next(simulate(SimulationPlan(users=1, seed=0)))
    masked = re.sub("|".join(map(re.escape, values_of(dialogue).values())), "*", dialogue.text)
    assert hashlib.sha256(masked.encode()).hexdigest()[:16] == "98dba5341422d118"
