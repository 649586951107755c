"""Help texts: every command has one, and every example in it is run."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from tacit.cli.app import app
from tacit.corpus import SimulationPlan, write_customersim
from tacit.experiments.pages import BEGIN, END
from tacit.ledger import default_ledger
from tests.cli.conftest import RECIPE, Tacit, write_corpus


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


EXAMPLES = [
    (path, example)
    for path, command in commands()
    for example in re.findall(r"^\s*(tacit .+)$", command.help, re.MULTILINE)
]


@pytest.mark.parametrize(
    ("path", "command"),
    list(commands()),
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_every_command_explains_itself(tacit: Tacit, path: tuple[str, ...], command: Any) -> None:
    result = tacit(*path, "--help")
    assert result.code == 0
    assert "Example" in result.out
    assert any(example_path == path for example_path, _ in EXAMPLES)
    undocumented = [option.name for option in command.params if not getattr(option, "help", None)]
    assert not undocumented
    swallowed = [option.name for option in command.params if re.search(r"<\w+>", option.help)]
    assert not swallowed, "help is Markdown, which takes <MASK> for HTML and shows nothing in its place"


OUTPUTS: dict[tuple[str, ...], tuple[int, ...]] = {
    ("corpus", "simulate"): (1,),
    ("corpus", "plant"): (2, 3),
    ("corpus", "partition"): (2,),
    ("corpus", "screen"): (2,),
    ("corpus", "calibrate"): (1,),
    ("corpus", "convert"): (3,),
    ("models", "create"): (1,),
}


@pytest.mark.parametrize(("path", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_every_example_runs(tacit: Tacit, folder: Path, path: tuple[str, ...], example: str) -> None:
    for name in ("d.jsonl", "more.jsonl", "repeated.jsonl"):
        write_corpus(folder / name)
    (folder / "public.txt").write_text("The quick brown fox.\n" * 9)
    # Short rows, so that authors have several: triplets compare rows by default.
    (folder / "recipe.yaml").write_text(RECIPE.replace("block_size: 64", "block_size: 16"))
    for name in ("other", "docs"):
        rows = [json.loads(line) for line in (folder / "dialogues.jsonl").read_text().splitlines()]
        renamed = [{"author": row["user"], "body": row["text"]} for row in rows]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in renamed))
    if path in (("corpus", "screen"), ("corpus", "calibrate"), ("corpus", "convert")):
        write_labelled_corpora(folder)
    pq.write_table(pa.table({"sender": ["a", "b"], "body": ["one", "two"]}), folder / "mail.parquet")
    arguments = shlex.split(example)[1:]
    if "runs/first" in arguments:
        corpus = plant_canaries(tacit) if "canaries.json" in arguments else "dialogues.jsonl"
        if "crt" in arguments:
            corpus = "with_spans.jsonl"
            assert tacit("corpus", "simulate", corpus, "--users", "16", "--dialogues", "1").code == 0
        assert tacit("train", "recipe.yaml", "training.max_steps=1", f"corpus.path={corpus}").code == 0
    if path == ("tune",) and "canaries.json" in arguments:
        plant_canaries(tacit)
    if path == ("compare",) and "runs/triplet-over-lambda" in arguments:
        common = ("tune", "recipe.yaml", "training.max_steps=1", "--documents", "0", "--over")
        assert tacit(*common, "training.max_steps=1,2").code == 0
        triplet = ("method=triplet", "output=runs/triplet")
        assert tacit(*common, "regularisation.lambda=0,1", *triplet).code == 0
    elif path == ("compare",):
        assert tacit("train", "recipe.yaml", "training.max_steps=1", "output=runs/second").code == 0
        for run in ("runs/first", "runs/second"):
            assert tacit("audit", run, "--documents", "0", "--no-report").code == 0
    if path == ("experiment", "page"):
        assert tacit("experiment", "crt-amplification", "--scale", "tiny").code == 0
        amplified = folder / "experiments/crt-amplification-tiny"
        if "--add" in arguments:  # any result may be added; this one is made in a second
            shutil.copytree(amplified, folder / "experiments/overview-small")
            (folder / "README.md").write_text(f"{BEGIN}\n{END}\n")
        (folder / "results").mkdir()
        amplified.rename(folder / "results/crt-amplification")
        (folder / "results/INTRODUCTION.md").write_text("# Results\n")
    if path == ("audit", "service"):
        audit_the_service(tacit, arguments)
        return
    if "runs/submix" in arguments or "runs/parts" in arguments:
        halves, name = ("true", "submix") if "runs/submix" in arguments else ("false", "parts")
        made = ("method=submix", f"output=runs/{name}", f"ensemble={{parts: 2, halves: {halves}}}")
        assert tacit("train", "recipe.yaml", "training.max_steps=1", *made).code == 0
    if "parts/private/partition.key" in arguments:
        common = ("--user", "user", "--text", "text", "--parts", "2")
        assert tacit("corpus", "partition", "dialogues.jsonl", "parts", *common).code == 0
    if path[0] in ("ledger", "keys") and path[-1] != "path":
        arguments = with_ledger(tacit, path, arguments)
    if path == ("serve",):
        with_ledger(tacit, path if arguments[0] == "serve" else ("ledger", "init"), arguments)
        if arguments[0] == "serve":
            with serving([*arguments, "--port", "0", "--admin-port", "0"]) as said:
                assert "Serving" in said
            return
        if arguments[0] == "keys":
            assert tacit("ledger", "init", "runs/submix", "--epsilon", "2").code == 0
    for position in OUTPUTS.get(path, ()):
        (folder / arguments[len(path) - 1 + position]).unlink(missing_ok=True)
    result = tacit(*arguments)
    if example == "tacit models pull gpt2":
        assert result.code == 3  # tests reach no hub: the failure is the one sentence that it should be
        assert "gpt2" in result.err
    else:
        assert result.code == 0, result.err
        assert result.out


def write_labelled_corpora(folder: Path) -> None:
    write_customersim(SimulationPlan(users=4, dialogues_per_user=2), folder / "sim.jsonl")
    spans = [{"slot": "Ref", "start": 7, "end": 15, "value": "AB12CD34"}]
    turns = [{"speaker": "SYSTEM", "text": "It is  AB12CD34.", "spans": spans}]
    (folder / "multiwoz.jsonl").write_text(json.dumps({"dialogue_id": "MUL1", "turns": turns}) + "\n")
    slots = [{"slot": "phone_number", "start": 5, "exclusive_end": 13}]
    frames = [{"service": "Hotels_1", "slots": slots}]
    said = [{"speaker": "USER", "utterance": "Call 555-0101.", "frames": frames}]
    (folder / "dialogues_001.json").write_text(json.dumps([{"dialogue_id": "1_0", "turns": said}]))
    section = folder / "bigPatentData" / "train" / "g"
    section.mkdir(parents=True)
    patent = json.dumps({"publication_number": "US-1-A", "description": "A wheel."}).encode()
    (section / "data_0.gz").write_bytes(gzip.compress(patent))


def plant_canaries(tacit: Tacit) -> str:
    common = ("--user", "user", "--text", "text", "--users", "8", "--length", "3", "--include", "1")
    assert tacit("corpus", "plant", "dialogues.jsonl", "planted.jsonl", "canaries.json", *common).code == 0
    return "planted.jsonl"


def audit_the_service(tacit: Tacit, arguments: list[str]) -> None:
    """The example as it stands, against a service that was trained on the planted corpus."""
    made = ("method=submix", "ensemble={parts: 2}", "training.max_steps=1", "output=runs/submix")
    assert tacit("train", "recipe.yaml", *made, f"corpus.path={plant_canaries(tacit)}").code == 0
    assert tacit("ledger", "init", "runs/submix", "--epsilon", "2").code == 0
    key = tacit("keys", "create", "auditor", "--json").json()["key"]
    assert tacit(*arguments).code == 2  # without a key nothing is asked
    with (
        pytest.MonkeyPatch.context() as patch,
        serving(["serve", "runs/submix", "--queries", "1000", "--port", "0", "--admin-port", "0"]) as said,
    ):
        (url,) = re.findall(r"http://[\w.]+:\d+/v1", said)
        patch.setenv("TACIT_API_KEY", key)
        asked = [url if word.startswith("http") else word for word in arguments]
        result = tacit(*asked, "--generations", "2")
        assert result.code == 0, result.err
        assert "tokens asked" in result.out
        kept = Path("runs/submix/service_audit.json")
        assert str(kept) in result.out
        assert kept.stat().st_mode & 0o077 == 0


@contextmanager
def serving(arguments: list[str], cwd: Path | None = None) -> Iterator[str]:
    """A server that runs while the block does, and what it said; it must end well when it is asked to."""
    command = [sys.executable, "-m", "tacit", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = ""
        while "guarantee" not in said:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            said += line
        try:
            yield said
        finally:
            process.terminate()
            process.communicate(timeout=60)
        assert process.returncode == 0


def with_ledger(tacit: Tacit, path: tuple[str, ...], arguments: list[str]) -> list[str]:
    """Make the ledger that an example speaks of, and give it the key that it revokes."""
    made = ("method=submix", "ensemble={parts: 2}", "training.max_steps=1")
    for output in ("runs/submix", "runs/again"):
        if not Path(output).is_dir() and (output in arguments or output == "runs/submix"):
            assert tacit("train", "recipe.yaml", *made, f"output={output}").code == 0
    if path != ("ledger", "init"):
        assert tacit("ledger", "init", "runs/submix", "--epsilon", "2").code == 0
    if path == ("ledger", "new-anchor"):
        Path(default_ledger() + ".anchor").unlink()
    if path == ("keys", "quota"):
        assert tacit("keys", "create", "acme").code == 0
    if path == ("keys", "revoke"):
        return [*arguments[:2], tacit("keys", "create", "acme", "--json").json()["id"]]
    return arguments
