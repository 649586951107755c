"""Every command through its entry point: results for people, JSON for programs, and what is on disk."""

from __future__ import annotations

import json
import logging
import shutil
import stat
from pathlib import Path

import pytest

from tacit.corpus import CanaryManifest, Partition
from tests.cli.conftest import RECIPE, Tacit


def test_train_evaluate_generate(tacit: Tacit, folder: Path) -> None:
    (folder / "recipe.yaml").write_text(RECIPE)
    plan = tacit("train", "recipe.yaml", "--dry-run", "--json").json()
    assert plan["users"] + plan["held_out_users"] == 30
    assert not (folder / "runs").exists()
    trained = tacit("train", "recipe.yaml", "--json")
    assert trained.code == 0
    assert trained.json()["guarantee"].startswith("no guarantee (unit: user)")
    result = tacit("evaluate", "runs/first", "--json")
    report = result.json()
    assert set(report["models"]) == {"public", "finetune"}
    for model in report["models"].values():
        for measure in ("perplexity", "user_perplexity", "bits_per_byte"):
            assert model[measure]["low"] <= model[measure]["value"] <= model[measure]["high"]
    assert "outside any guarantee" in report["caveats"][-1]
    assert json.loads((folder / "runs/first/metrics.json").read_text())["evaluation"] == report
    assert stat.S_IMODE((folder / "runs/first/metrics.json").stat().st_mode) == 0o600
    by_user = json.loads((folder / "runs/first/private/perplexity_by_user.json").read_text())
    assert len(by_user["public"]) == plan["held_out_users"]
    table = tacit("evaluate", "runs/first")
    assert "perplexity" in table.out
    assert "no guarantee" in table.out
    one, two, other = (
        tacit("generate", "runs/first", "--prompt", "The baker", "--tokens", "8", "--seed", seed, "--json")
        for seed in ("1", "1", "2")
    )
    assert one.json() == two.json() != other.json()
    assert "no guarantee" in one.json()["guarantee"]


def test_evaluation_refuses_a_corpus_that_changed(tacit: Tacit, folder: Path) -> None:
    (folder / "recipe.yaml").write_text(RECIPE)
    assert tacit("train", "recipe.yaml", "training.max_steps=1").code == 0
    with (folder / "dialogues.jsonl").open("a") as handle:
        handle.write(json.dumps({"user": "new", "text": "A new text."}) + "\n")
    refused = tacit("evaluate", "runs/first")
    assert refused.code == 2
    assert "has changed since" in refused.err
    other = tacit(
        "evaluate", "runs/first", "--corpus", "dialogues.jsonl", "--user", "user", "--text", "text", "--json"
    )
    assert other.json()["models"]["public"]["users"] == 31


def test_other_text_is_not_called_held_out(tacit: Tacit, folder: Path) -> None:
    (folder / "recipe.yaml").write_text(RECIPE)
    assert tacit("train", "recipe.yaml", "training.max_steps=1").code == 0
    own = tacit("evaluate", "runs/first", "--json").json()
    assert own["text"] == {"corpus": str(folder / "dialogues.jsonl"), "held_out": True}
    private = folder / "runs/first/private"
    by_user = (private / "perplexity_by_user.json").read_text()
    lines = (folder / "dialogues.jsonl").read_text().splitlines(keepends=True)
    (folder / "other.jsonl").write_text("".join(lines[:6]))
    corpus = ("--corpus", "other.jsonl", "--user", "user", "--text", "text")
    other = tacit("evaluate", "runs/first", *corpus, "--json").json()
    assert other["text"] == {"corpus": str(folder / "other.jsonl"), "held_out": False}
    metrics = json.loads((folder / "runs/first/metrics.json").read_text())
    assert metrics == {"evaluation": own, "evaluation_other_text": other}
    assert (private / "perplexity_by_user.json").read_text() == by_user
    assert len(json.loads((private / "perplexity_by_user_other_text.json").read_text())["public"]) == 3
    shown = tacit("evaluate", "runs/first", *corpus).out
    assert "3 users" in shown
    assert "held-out" not in shown
    assert "held-out users" in tacit("evaluate", "runs/first").out
    assert "held-out" not in tacit("evaluate", *corpus).out


def test_public_text_is_not_called_private(tacit: Tacit, folder: Path) -> None:
    (folder / "recipe.yaml").write_text(RECIPE)
    assert tacit("train", "recipe.yaml", "training.max_steps=1", "corpus.public=true").code == 0
    assert not any(
        "private text" in told for told in tacit("evaluate", "runs/first", "--json").json()["caveats"]
    )


def test_one_user_has_no_interval(tacit: Tacit, folder: Path) -> None:
    lines = (folder / "dialogues.jsonl").read_text().splitlines(keepends=True)
    (folder / "one.jsonl").write_text(lines[0])
    report = tacit("evaluate", "--corpus", "one.jsonl", "--user", "user", "--text", "text", "--json").json()
    assert report["models"]["public"]["perplexity"]["low"] is None
    assert any("no interval" in caveat for caveat in report["caveats"])
    assert not any("too narrow" in caveat for caveat in report["caveats"])


@pytest.mark.parametrize("adapter", ["{rank: 4}", "{kind: full}"])
def test_a_run_is_used_from_any_folder(
    tacit: Tacit, folder: Path, tiny_lstm: Path, monkeypatch: pytest.MonkeyPatch, adapter: str
) -> None:
    (folder / "recipe.yaml").write_text(RECIPE.replace("{rank: 4, trunk_layers: 2}", adapter))
    shutil.copytree(tiny_lstm, folder / "lstm")
    assert tacit("train", "recipe.yaml", "model.name=lstm", "training.max_steps=1").code == 0
    manifest = json.loads((folder / "runs/first/run.json").read_text())
    assert manifest["public_model"]["name"] == str(folder / "lstm")
    assert manifest["recipe"]["model"]["name"] == str(folder / "lstm")
    assert manifest["recipe"]["corpus"]["path"] == str(folder / "dialogues.jsonl")
    if "rank" in adapter:
        config = json.loads((folder / "runs/first/adapter/adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == str(folder / "lstm")
    monkeypatch.chdir(folder.parent)
    run = folder.relative_to(folder.parent) / "runs/first"
    for command in (("evaluate", run), ("generate", run, "--tokens", "2")):
        done = tacit(*command)
        assert done.code == 0, done.err
    (folder / "lstm").rename(folder / "moved")
    hub = "huggingface_hub.snapshot_download"
    monkeypatch.setattr(hub, lambda *_, **__: pytest.fail("asked the hub"))
    for name in (str(folder / "lstm"), "lstm"):  # what earlier versions recorded
        manifest["public_model"]["name"] = name
        (folder / "runs/first/run.json").write_text(json.dumps(manifest))
        gone = tacit("evaluate", run)
        assert gone.code == 2
        [line] = gone.err.splitlines()
        assert name in line


def test_a_hub_that_does_not_answer_is_one_sentence(
    tacit: Tacit, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        for library in ("huggingface_hub.utils._http", "datasets.load"):
            logging.getLogger(library).warning("Retrying in 1s")
        raise ConnectionError

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    source = ("nobody/nothing", "--format", "datasets", "--user", "user", "--text", "text", "--no-tokens")
    failed = tacit("corpus", "stats", *source)
    assert failed.code == 3
    [line] = failed.err.splitlines()
    assert line.startswith("tacit: The hub did not deliver the dataset nobody/nothing")


def test_simulate_is_repeatable_and_counted(tacit: Tacit, folder: Path) -> None:
    for name in ("a", "b"):
        assert tacit("corpus", "simulate", f"{name}.jsonl", "--users", "3", "--dialogues", "2").code == 0
    assert (folder / "a.jsonl").read_bytes() == (folder / "b.jsonl").read_bytes()
    stats = tacit("corpus", "stats", "a.jsonl", "--user", "user", "--text", "text", "--json").json()
    assert (stats["users"], stats["documents"], stats["duplicate_documents"]) == (3, 6, 0)
    assert stats["tokens"] > stats["documents"]
    assert 1 / 3 <= stats["largest_user_share"] < 1
    text = tacit("corpus", "stats", "a.jsonl", "--user", "user", "--text", "text", "--no-tokens").out
    assert "of bytes" in text


def test_plant_keeps_rows_and_hides_secrets(tacit: Tacit, folder: Path) -> None:
    result = tacit(
        *("corpus", "plant", "dialogues.jsonl", "planted.jsonl", "canaries.json", "--user", "user"),
        *("--text", "text", "--users", "5", "--ladder", "1,3", "--include", "1", "--json"),
    )
    assert result.code == 0
    for name in ("canaries.json", "planted.jsonl"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    manifest = CanaryManifest.load(folder / "canaries.json")
    assert result.json()["commitment"] == manifest.commitment
    original = (folder / "dialogues.jsonl").read_text().splitlines()
    planted = [json.loads(line) for line in (folder / "planted.jsonl").read_text().splitlines()]
    assert planted[: len(original)] == [json.loads(line) for line in original]
    assert len(planted) - len(original) == 5 * (1 + 3)
    assert not any(canary.secret in result.out for canary in manifest.canaries)


def test_plant_writes_nothing_when_it_fails(tacit: Tacit, folder: Path) -> None:
    common = ("--user", "user", "--text", "text", "--users", "99")
    result = tacit("corpus", "plant", "dialogues.jsonl", "planted.jsonl", "canaries.json", *common)
    assert result.code == 2
    assert not (folder / "planted.jsonl").exists()
    assert not (folder / "canaries.json").exists()


def test_plant_reads_other_formats(tacit: Tacit, folder: Path) -> None:
    (folder / "mail.csv").write_text("who,what\n" + "".join(f"p{i},Hello number {i}\n" for i in range(12)))
    common = ("--user", "who", "--text", "what", "--secret", "words", "--length", "3")
    assert tacit("corpus", "plant", "mail.csv", "out.jsonl", "c.json", *common).code == 0
    first = json.loads((folder / "out.jsonl").read_text().splitlines()[0])
    assert first == {"who": "p0", "what": "Hello number 0"}


def test_partition_reports_halves_and_moves_nobody(tacit: Tacit, folder: Path) -> None:
    common = ("--user", "user", "--text", "text", "--parts", "2", "--json")
    halves = tacit("corpus", "partition", "dialogues.jsonl", "parts", *common).json()["halves"]
    assert len(halves) == 4
    assert sum(half["users"] for half in halves) == 30
    assert all(half["tokens"] > 0 for half in halves)
    with (folder / "dialogues.jsonl").open("a") as handle:
        handle.write(json.dumps({"user": "new", "text": "A new text."}) + "\n")
    key = folder / "parts" / "private" / "partition.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert tacit("corpus", "partition", "dialogues.jsonl", "again", "--key", key, *common).code == 0
    before, after = Partition.load(folder / "parts"), Partition.load(folder / "again")
    assert all(before.slot_of(f"u{i}") == after.slot_of(f"u{i}") for i in range(30))
    assert "u1" not in (folder / "parts" / "partition.json").read_text()


def test_an_empty_half_is_legal_and_said(tacit: Tacit, folder: Path) -> None:
    result = tacit(
        "corpus", "partition", "dialogues.jsonl", "p", "--user", "user", "--text", "text", "--parts", "99"
    )
    assert result.code == 0
    assert "warning:" in result.err
    assert "public model" in result.err


def test_models(tacit: Tacit, folder: Path) -> None:
    (entry,) = tacit("models", "list", "--json").json()["models"]
    assert entry["cached"]
    assert tacit("models", "path").out.strip() == entry["location"]
    (folder / "public.txt").write_text("The quick brown fox.\n" * 20)
    made = tacit(
        "models",
        "create",
        "lstm",
        "--layers",
        "2",
        "--hidden",
        "8",
        "--tied",
        "--vocabulary-from",
        "public.txt",
    )
    assert made.code == 0
    stats = tacit(
        "corpus", "stats", "dialogues.jsonl", "--user", "user", "--text", "text", "--model", "lstm", "--json"
    )
    assert stats.json()["tokens"] > 0
    refused = tacit("models", "create", "other", "--tokenizer", "lstm", "--vocabulary-is-private")
    assert refused.code == 2


def test_an_lstm_goes_all_the_way(tacit: Tacit, folder: Path, tiny_lstm: Path) -> None:
    (folder / "recipe.yaml").write_text(RECIPE)
    overrides = (f"model.name={tiny_lstm}", "adapter.trunk_layers=1", "training.learning_rate=0.01")
    assert tacit("train", "recipe.yaml", *overrides).code == 0
    report = tacit("evaluate", "runs/first", "--json").json()
    assert report["difference"]["value"] < 0
    assert tacit("generate", "runs/first", "--tokens", "5").code == 0


def test_blocks_and_chat_and_text_reach_training(tacit: Tacit, folder: Path) -> None:
    (folder / "wiki.txt").write_text((folder / "dialogues.jsonl").read_text())
    (folder / "recipe.yaml").write_text(RECIPE.replace("user: user, text: text", "blocks: 32"))
    assert tacit("train", "recipe.yaml", "corpus.path=wiki.txt", "training.max_steps=1").code == 0
    assert "unit: block" in (folder / "runs/first/privacy.json").read_text()
    chats = [
        {"user": f"u{i}", "turns": [{"role": "user", "content": f"Where is parcel {i}?"}]} for i in range(20)
    ]
    (folder / "chat.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    common = ("corpus", "stats", "chat.jsonl", "--user", "user", "--messages", "turns")
    refused = tacit(*common)
    assert refused.code == 2
    assert "plain" in refused.err
    assert tacit(*common, "--chat", "plain", "--json").json()["documents"] == 20


def test_skip_bad_goes_on_and_counts(tacit: Tacit, folder: Path) -> None:
    with (folder / "dialogues.jsonl").open("ab") as handle:
        handle.write(b'{"user": "x", "text": ""}\n{broken\n{"user": null, "text": "t"}\n')
    common = ("corpus", "stats", "dialogues.jsonl", "--user", "user", "--text", "text")
    refused = tacit(*common)
    assert refused.code == 2
    assert "dialogues.jsonl, line 61" in refused.err
    skipped = tacit(*common, "--skip-bad", "--json")
    assert sum(skipped.json()["skipped"].values()) == 3
    assert "skipped 3 bad rows" in skipped.err


@pytest.mark.parametrize("command", [(), ("corpus",), ("models",)])
def test_no_arguments_show_help(tacit: Tacit, command: tuple[str, ...]) -> None:
    result = tacit(*command)
    assert "Usage:" in result.out + result.err


def test_version(tacit: Tacit) -> None:
    assert tacit("--version").out == "tacit 0.1.0\n"
