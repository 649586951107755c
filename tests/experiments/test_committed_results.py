"""What is committed of results: page, figures and the README's lines are made from `result.json` alone."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tacit.errors import InputError
from tacit.experiments import EXPERIMENTS, results_in
from tacit.experiments.pages import BEGIN, END, made_of, with_lines
from tests.experiments.test_results import sample

ROOT = Path(__file__).parents[2]
RESULTS, PAGE, README = "docs/results", "docs/results.md", "README.md"
LARGEST = 1_000_000  # bytes of a file


def differences(root: Path) -> list[str]:
    """Files under ``root`` that are not what the results make, and files that nothing made."""
    folder, page, readme = root / RESULTS, root / PAGE, root / README
    results = results_in(folder, [one.name for one in EXPERIMENTS])
    made = made_of(folder, page, results)
    before = readme.read_text(encoding="utf-8")
    made[readme] = with_lines(before, results, folder=f"{RESULTS}/", page=PAGE)
    found = [
        str(path.relative_to(root))
        for path, text in made.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    known = {*made, folder / "INTRODUCTION.md", *(folder / one.experiment / "result.json" for one in results)}
    return found + [
        str(path.relative_to(root)) for path in folder.rglob("*") if path.is_file() and path not in known
    ]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """What is committed, to be changed."""
    shutil.copytree(ROOT / RESULTS, tmp_path / RESULTS)
    for name in (PAGE, README):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_what_is_committed_is_what_the_results_make() -> None:
    remedy = f"run `tacit experiment page {RESULTS} {PAGE} --readme {README}`, and remove what nothing made"
    assert differences(ROOT) == [], remedy


def test_committed_results_are_of_real_runs_and_small() -> None:
    files = [path for path in (ROOT / RESULTS).rglob("*") if path.is_file()]
    assert all(path.stat().st_size < LARGEST for path in files)
    assert (ROOT / PAGE).stat().st_size < LARGEST
    names = {one.name for one in EXPERIMENTS}
    for result in results_in(ROOT / RESULTS):
        assert result.experiment in names
        assert result.scale != "tiny", "the tiny model stands for no result"
        assert result.provenance.machine
        assert result.provenance.seconds > 0


def test_a_number_that_was_typed_by_hand_is_found(copied: Path) -> None:
    assert differences(copied) == []
    text = (copied / PAGE).read_text(encoding="utf-8")
    number = re.search(r"\d\.\d+", text[text.index("## ") :])
    assert number
    (copied / PAGE).write_text(text.replace(number[0], "7.77"), encoding="utf-8")
    assert differences(copied) == [PAGE]


def test_a_result_that_the_page_does_not_tell_is_found(copied: Path) -> None:
    sample("new-result", "A new result").save(copied / RESULTS / "new-result")
    assert set(differences(copied)) == {PAGE, README, f"{RESULTS}/new-result/tradeoff.svg"}


def test_a_result_that_changed_is_found(copied: Path) -> None:
    path = next((copied / RESULTS).glob("*/result.json"))
    content = json.loads(path.read_text(encoding="utf-8"))
    content["findings"][0]["here"] = "Something else."
    path.write_text(json.dumps(content), encoding="utf-8")
    assert PAGE in differences(copied)


def test_a_figure_that_was_drawn_over_or_that_nothing_made_is_found(copied: Path) -> None:
    figure = next((copied / RESULTS).glob("*/*.svg"))
    figure.write_text(figure.read_text(encoding="utf-8").replace("<path", "<path ", 1), encoding="utf-8")
    stray = figure.with_name("stray.svg")
    stray.write_text("<svg/>", encoding="utf-8")
    assert differences(copied) == [str(path.relative_to(copied)) for path in (figure, stray)]


def test_the_readmes_lines_are_made(copied: Path) -> None:
    readme = copied / README
    text = readme.read_text(encoding="utf-8")
    begin = text.index(BEGIN) + len(BEGIN)
    readme.write_text(text[:begin] + "\n\nAll is well.\n\n" + text[text.index(END) :], encoding="utf-8")
    assert differences(copied) == [README]


def test_lines_of_a_readme_are_the_overviews_and_how_claims_fared() -> None:
    overview = sample("overview").model_copy(update={"summary": ("It leaks.", "It costs.")})
    before = f"# A\n\n{BEGIN}\nwhat was there\n{END}\n\n## B\n"
    text = with_lines(
        before, [overview, sample("other", "Other")], folder="docs/results/", page="docs/results.md"
    )
    assert text.startswith(
        f"# A\n\n{BEGIN}\n\n![Perplexity over epsilon](docs/results/overview/tradeoff.svg)\n\n"
    )
    assert text.endswith(f"{END}\n\n## B\n")
    assert "- It leaks.\n- It costs." in text
    assert "2 experiments" in text
    assert (
        "of 2 claims, the papers' and ours, 0 were found to hold here, 2 not to hold, and 0 are undecided"
        in text
    )
    assert "what was there" not in text
    assert (
        with_lines(text, [overview, sample("other", "Other")], folder="docs/results/", page="docs/results.md")
        == text
    )
    with pytest.raises(InputError, match="has no place for results"):
        with_lines("# A\n", [overview], folder="", page="")


def test_a_result_in_a_folder_of_another_name_is_refused(tmp_path: Path) -> None:
    sample("one").save(tmp_path / "two")
    with pytest.raises(InputError, match="rename two to one"):
        results_in(tmp_path)


def test_results_come_in_the_order_that_is_asked_for(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        sample(name).save(tmp_path / name)
    assert [one.experiment for one in results_in(tmp_path, ["c", "b"])] == ["c", "b", "a"]
