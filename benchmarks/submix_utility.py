"""How much of an ensemble's improvement private answers keep: the table of SubMix's section 4.1.

Trains, by the library, an ensemble and a plain fine-tune on a corpus, and a surrogate ensemble on other text
that counts as public; then evaluates every mechanism on held-out text at order 2, epsilon 2 and B = 1,024
queries, with the paper's target (epsilon / B) and with one calibrated on the surrogate. Every model and every
part of the table is kept in a work folder: a second run takes up where the first was stopped.

Run: python benchmarks/submix_utility.py CORPUS [--surrogate TEXT] [--work FOLDER] [--parts K] [--single]

CORPUS is a text file, which is cut into blocks of --block tokens that are users each (wikitext-2: train.txt),
or JSONL with --user and --text columns (patents: --user number --text abstract). Without --surrogate the
corpus is cut in two by lines, and the second half counts as public. --quick is a smoke test: few steps, few
blocks. In full, 20 stretches of 1,024 queries at 17 models take hours on two cores; --support 4096 shortens
them and says so.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

from tacit.cli import console
from tacit.evaluation import Grid, Measurement, Sweep, Tuning, evaluate_mechanisms
from tacit.evaluation.mechanism_blocks import blocks_of_text
from tacit.evaluation.mechanism_report import MechanismReport
from tacit.evaluation.report import MeasuredText, held_out_text
from tacit.models.ensemble import Ensemble, load_ensemble
from tacit.progress import Progress
from tacit.recipes import DEFAULT_MODEL, Recipe, parse_recipe
from tacit.runs import Run, partial_folder
from tacit.training.ensemble import train_ensemble
from tacit.training.finetune import finetune

BASELINES = ("subsample_aggregate", "gnmax")
MIXTURES = ("submix", "certified", "individual")
# Few candidates, and few stretches to choose among them: the choice is coarse, and hours are saved.
GRID = Grid((0.5, 1.0, 4.0, 32.0), (1.0,), (None, 0.5, 0.7, 0.9))
GUARD = 16.0  # times epsilon / queries


def main() -> None:
    """Train what is missing, measure what is missing, print the table."""
    options = arguments()
    work: Path = options.work
    work.mkdir(parents=True, exist_ok=True)
    private, public = texts(options)
    with console.progress() as progress:
        ensemble = trained("ensemble", private, options, progress)
        as_parts = measured("one-per-part", options, lambda: one_per_part(ensemble, options, progress))
        tables = [as_parts]
        if not options.single:
            plain = trained("finetuned", private, options, progress)
            surrogate = trained("surrogate", public, options, progress)

            def measure(*mechanisms: Any, tuning: Tuning | None = None, stretches: int | None = None) -> Any:
                many = options.stretches if stretches is None else stretches
                return lambda: evaluate(ensemble, plain, options, progress, mechanisms, tuning, many)

            few = options.calibrating_stretches * options.queries // options.block  # of text in blocks
            support = options.support or 2048
            tuning = Tuning(surrogate, grid=GRID, support=support, max_blocks=few, beside_heuristic=True)
            tables = [
                measured("mixtures", options, measure(*MIXTURES, tuning=tuning)),
                measured("baselines", options, measure(*BASELINES, stretches=options.fewer)),
                as_parts,
            ]
    show(tables, options)


def one_per_part(run: Run, options: argparse.Namespace, progress: Progress) -> MechanismReport:
    """Certified mixing with every member a part of its own: of two halves it makes 2k parts, for nothing."""
    found = load_ensemble(run)
    ensemble = Ensemble(found.public, found.members, len(found.members), 1)
    text = held_out_text(run, found.public.tokenizer, progress)
    blocks = blocks_of_text(text, found.public, block_size=options.block, progress=progress)
    kept = blocks.first(blocks_for(options.fewer, options))
    measurement = Measurement(ensemble, kept, progress=progress, support=options.support)
    sweep = Sweep(("certified", "individual"), (options.epsilon,), (options.queries,), caps=(None, 0.5, 0.9))
    rows = measurement.rows(sweep.settings(ensemble.parts))
    return measurement.report(rows, MeasuredText.for_run(run, None))


def blocks_for(stretches: int, options: argparse.Namespace) -> int:
    """So many blocks make so many stretches. Documents end before their last block is full."""
    full: int = stretches * options.queries // options.block
    return full if options.user is None else 3 * full // 2


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--surrogate", type=Path, help="text that counts as public, in the corpus's format")
    parser.add_argument("--work", type=Path, default=Path("submix_utility"))
    parser.add_argument("--user", help="for JSONL; a text file has blocks as users")
    parser.add_argument("--text", help="for JSONL")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument(
        "--single",
        action="store_true",
        help="one model per part: certified and individual mixing only, and neither fine-tune nor surrogate",
    )
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--trunk", type=int, default=23, help="layers below that stay the public model's")
    parser.add_argument("--steps", type=int, default=200, help="per member")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--queries", type=int, default=1024)
    parser.add_argument("--stretches", type=int, default=20)
    parser.add_argument(
        "--fewer", type=int, default=20, help="stretches of baselines and of one model per part"
    )
    parser.add_argument("--calibrating-stretches", type=int, default=5, help="of the surrogate's text")
    parser.add_argument("--support", type=int, help="mix over so many tokens: fast, approximate")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.work = options.work.with_name(options.work.name + "-quick")
        options.parts, options.steps, options.batch = min(options.parts, 2), 3, 2
        options.queries, options.stretches, options.support = 2 * options.block, 2, 1024
        options.fewer = 2
    return options


def texts(options: argparse.Namespace) -> tuple[Path, Path]:
    """The private and the public text; one file is cut in two where it is all there is."""
    if options.surrogate is not None:
        return options.corpus, options.surrogate
    halves = [options.work / f"{name}{options.corpus.suffix}" for name in ("private", "public")]
    if not all(half.is_file() for half in halves):
        lines = options.corpus.read_text(encoding="utf-8").splitlines(keepends=True)
        middle = len(lines) // 2
        if options.quick:
            lines, middle = lines[:160], 80
        for half, part in zip(halves, (lines[:middle], lines[middle:]), strict=True):
            half.write_text("".join(part), encoding="utf-8")
    return halves[0], halves[1]


def recipe_for(name: str, corpus: Path, options: argparse.Namespace) -> Recipe:
    """What one of the three Runs is made by; all share model, adapter and schedule."""
    by_blocks = options.user is None
    members = options.parts * (1 if options.single else 2)
    columns = {"blocks": options.block} if by_blocks else {"user": options.user, "text": options.text}
    whole: dict[str, Any] = {
        "method": "finetune" if name == "finetuned" else "submix",
        "output": str(options.work / name),
        "model": {"name": options.model},
        "corpus": {"path": str(corpus), "public": name == "surrogate", **columns},
        "held_out": {"share": 0.2},
        "adapter": {"rank": 16, "alpha": 32, "trunk_layers": options.trunk},
        "training": {
            # One model reads as much as all members read together.
            "max_steps": options.steps * (members if name == "finetuned" else 1),
            "block_size": options.block,
            "batch_size": options.batch,
            "learning_rate": options.learning_rate,
            "seed": 1,
        },
        "performance": {"trunk_cache": "off" if options.quick else "disk"},
    }
    if name != "finetuned":
        whole["ensemble"] = {"parts": options.parts, "halves": not options.single}
    return parse_recipe(whole)


def trained(name: str, corpus: Path, options: argparse.Namespace, progress: Progress) -> Run:
    """A Run, trained now, taken up, or found finished."""
    folder = options.work / name
    if folder.is_dir():
        return Run.open(folder)
    progress.remark(f"training {folder}")
    train = finetune if name == "finetuned" else train_ensemble
    return train(recipe_for(name, corpus, options), resume=partial_folder(folder).is_dir(), progress=progress)


def evaluate(
    run: Run,
    plain: Run,
    options: argparse.Namespace,
    progress: Progress,
    mechanisms: tuple[Any, ...],
    tuning: Tuning | None,
    stretches: int,
) -> MechanismReport:
    """One part of the table."""
    sweep = Sweep(
        mechanisms,
        (options.epsilon,),
        (options.queries,),
        mixings=("per_part", "averaged"),
        weights=("symmetric", "paper"),
        guards=(None, GUARD * options.epsilon / options.queries),
    )
    return evaluate_mechanisms(
        run,
        sweep,
        block_size=options.block,
        max_blocks=blocks_for(stretches, options),
        nonprivate=plain,
        tuning=tuning,
        support=options.support,
        progress=progress,
    )


def measured(name: str, options: argparse.Namespace, measure: Any) -> dict[str, Any]:
    """A part of the table as JSON, from the work folder where it has been measured before."""
    settings = f"e{options.epsilon:g}-q{options.queries}-s{options.stretches}-n{options.support or 0}"
    kept = options.work / f"{name}-{settings}.json"
    if not kept.is_file():
        begun = time.monotonic()
        content = measure().to_json() | {"seconds": round(time.monotonic() - begun)}
        kept.write_text(json.dumps(content, indent=1), encoding="utf-8")
    found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
    return found


def show(tables: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """All parts as one table."""
    references = {one["name"]: _estimate(one["perplexity"]) for one in tables[0]["references"]}
    rows = [
        {"model": name, "target": None, "perplexity": value, "of_ensemble": None, "of_non-private": None}
        | {"answered": None, "(epsilon, delta)": None, "note": None}
        for name, value in references.items()
    ]
    for row in itertools.chain(*(table["mechanisms"] for table in tables)):
        mixing = f" {row['mixing']}" if row["mixing"] else ""
        paper = ", paper weights" if row["weights"] == "paper" else ""
        cap = "" if row["cap"] is None else f", cap {row['cap']:g}"
        guard = "" if row["guard"] is None else f", guard {row['guard']:.3g}"
        dp = None if row["dp_epsilon"] is None else f"({row['dp_epsilon']:.3g}, {row['dp_delta']:g})"
        rows.append(
            {
                "model": f"{row['mechanism']}{mixing}{paper}{guard}, k = {row['parts']}",
                "target": f"{row['target']:.3g} {row['target_source']}{cap}",
                "perplexity": _estimate(row["perplexity"]),
                "of_ensemble": _estimate(row["share_of_ensemble"]),
                "of_non-private": _estimate(row["share_of_nonprivate"]),
                "answered": _estimate(row["answered"]),
                "(epsilon, delta)": dp,
                "note": "; ".join(row["labels"]) or None,
            }
        )
    title = (
        f"{options.corpus}: {options.parts} parts, {options.steps} steps of {options.batch} blocks, LoRA "
        f"above layer {options.trunk}; order 2, epsilon {options.epsilon:g}, {options.queries:,} queries"
    )
    console.show_rows(rows, as_json=False, name="rows", title=title)
    for caveat in dict.fromkeys(itertools.chain(*(table["caveats"] for table in tables))):
        console.out.print(caveat, markup=False)


def _estimate(fields: dict[str, Any] | None) -> str | None:
    if fields is None:
        return None
    low, high = ("-" if fields[bound] is None else f"{fields[bound]:.3g}" for bound in ("low", "high"))
    return f"{fields['value']:.3g} [{low}, {high}]"


if __name__ == "__main__":
    main()
