"""`tacit corpus screen`, `calibrate`: what is masked, and what that misses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tacit.cli import console
from tacit.cli.corpus import CorpusPath
from tacit.cli.corpus_options import (
    ConfigOption,
    DocumentOption,
    FormatOption,
    MessagesOption,
    RevisionOption,
    SkipBadOption,
    SplitOption,
    TextOption,
    UserOption,
    corpus_section,
)
from tacit.errors import InputError
from tacit.files import read_json, refuse_existing, write_json

PolicyOption = Annotated[str, typer.Option(help="YAML file, or one of default, patterns, paper, spans.")]
TaggerOption = Annotated[
    str | None, typer.Option(help="Of --policy paper: a Hugging Face token classifier, by folder or id.")
]
RedactOption = Annotated[float | None, typer.Option(help="pi: the score from which on text is masked.")]
ConservativeOption = Annotated[
    str | None, typer.Option(help="pi_c: the score that makes a data point private, or 'everything'.")
]
SentencesOption = Annotated[int, typer.Option(help="Sentences in a data point.")]
LinesOption = Annotated[
    bool, typer.Option(help="A line's end bounds a sentence; without, a blank line does.")
]


def screen(
    corpus: CorpusPath,
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="JSONL file to write; its report lies beside it.")
    ],
    user: UserOption = None,
    text: TextOption = None,
    messages: MessagesOption = None,
    form: FormatOption = "auto",
    document: DocumentOption = "file",
    split: SplitOption = None,
    config: ConfigOption = None,
    revision: RevisionOption = None,
    skip_bad: SkipBadOption = False,
    policy: PolicyOption = "default",
    tagger: TaggerOption = None,
    redact: RedactOption = None,
    conservative: ConservativeOption = None,
    calibration: Annotated[
        Path | None, typer.Option(help="File of `corpus calibrate`: take its thresholds for pi and pi_c.")
    ] = None,
    spans: Annotated[str | None, typer.Option(help="Column with spans of secrets, for the policy.")] = None,
    miss_rate: Annotated[
        float | None, typer.Option(help="Share of --spans that pi misses, at random.")
    ] = None,
    miss_seed: Annotated[int, typer.Option(help="Of the spans that are missed.")] = 0,
    placeholders: Annotated[
        bool, typer.Option("--placeholders", help="Write a secret's kind, outside the proof.")
    ] = False,
    sentences: SentencesOption = 1,
    lines: LinesOption = True,
    dedup: Annotated[
        Literal["exact", "bloom", "near", "off"],
        typer.Option(help="How repeats are found; all but 'exact' are outside the proof."),
    ] = "exact",
    expected_points: Annotated[
        int, typer.Option(help="Of --dedup bloom: points to make room for.")
    ] = 10_000_000,
    similarity: Annotated[float, typer.Option(help="Of --dedup near: from which on points are near.")] = 0.8,
    partition: Annotated[
        Path | None, typer.Option(help="Folder of a partition: nothing is deduplicated across its parts.")
    ] = None,
    secrets: Annotated[
        Path | None, typer.Option(help="File of secrets, one per line: count the points that they change.")
    ] = None,
    as_json: console.JsonFlag = False,
) -> None:
    """Split documents into data points of whole sentences, mask repeats and secrets, tell public from
    private.

    OUT has a line for each data point, with its place in the document; OUT.report.json the counts. Both are
    for their owner alone: masks hide what was found, and no more. How much is missed, `tacit corpus
    calibrate` measures.

    Examples:

        tacit corpus screen dialogues.jsonl screened.jsonl --user user --text text

        tacit corpus screen repeated.jsonl s.jsonl --user user --text text --policy patterns --dedup bloom

        tacit corpus screen sim.jsonl s.jsonl --user user --text text --policy spans --miss-rate 0.1
    """
    from tacit.corpus import Partition
    from tacit.corpus.screening import DedupSettings, ScreenSettings, SplitSettings
    from tacit.corpus.screening.binding import report_path
    from tacit.corpus.screening.corpus_files import screen_corpus
    from tacit.corpus.screening.phrases import read_phrases

    for path in (out, report_path(out)):
        refuse_existing(path)
    section = corpus_section(
        corpus,
        user=user,
        text=text,
        messages=messages,
        chat="plain",
        form=form,
        document=document,
        split=split,
        config=config,
        revision=revision,
        skip_bad=skip_bad,
    )
    chosen = _policy(
        policy,
        tagger,
        _calibrated(calibration) | _changes(redact, conservative, placeholders=placeholders),
        _spans_section(policy, spans, miss_rate, miss_seed),
    )
    settings = ScreenSettings(
        chosen,
        SplitSettings(sentences=sentences, lines=lines),
        DedupSettings(kind=dedup, expected_points=expected_points, similarity=similarity),
    )
    with console.progress() as progress:
        report = screen_corpus(
            section,
            out,
            settings,
            progress,
            partition=None if partition is None else Partition.load(partition),
            secrets=read_phrases(secrets) if secrets is not None else (),
        )
    if as_json:
        console.show_json({"written": str(out), "report": str(report_path(out))} | report)
        return
    counts = report["counts"]
    rows: dict[str, Any] = {
        "written": str(out),
        "documents": counts["documents"],
        "data_points": counts["points"],
        "private points": counts["private"],
        "private, without bare masks": counts["private_without_bare"],
        "public points": counts["public"],
        "duplicates": counts["duplicates"],
        "secrets masked": ", ".join(f"{count:,} {label}" for label, count in counts["labels"].items())
        or "none",
        "unsettled": counts["unsettled"],
    }
    if report["group"] is not None:
        rows["points that the secrets change (u)"] = report["group"]["differing_points"]
        rows["of them public"] = report["group"]["differing_public_points"]
        rows["points of one secret, at most"] = report["group"]["most_points_of_one"]
    console.show(rows, as_json=False, title=corpus)
    for note in report["notes"]:
        console.say(f"note: {note}")


def calibrate(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="JSON file to write, e.g. calibration.json.")],
    labelled: Annotated[Path, typer.Option(help="JSON lines with a text and the spans of its secrets.")],
    text: Annotated[str, typer.Option(help="Column with the text.")] = "text",
    spans: Annotated[str, typer.Option(help="Column with the spans.")] = "spans",
    labels: Annotated[
        str | None, typer.Option(help="Kinds of spans that count, e.g. NAME,PHONE; default all.")
    ] = None,
    policy: PolicyOption = "default",
    tagger: TaggerOption = None,
    redact: RedactOption = None,
    conservative: ConservativeOption = None,
    recall: Annotated[
        float | None, typer.Option(help="Choose pi for this recall on one half, and measure on the other.")
    ] = None,
    conservative_recall: Annotated[float | None, typer.Option(help="Choose pi_c for this recall.")] = None,
    sentences: SentencesOption = 1,
    lines: LinesOption = True,
    confidence: Annotated[float, typer.Option(help="Of the bounds on gamma and delta2.")] = 0.95,
    one_per_document: Annotated[
        bool, typer.Option("--one-per-document", help="Count one secret of each document, drawn by a hash.")
    ] = False,
    as_json: console.JsonFlag = False,
) -> None:
    """Measure what a policy misses: recall by label, upper bounds on gamma and delta2, and what stays public.

    A guarantee quotes the bounds: with no miss among 200 secrets, delta2 is at most 1.5%, not 0.

    Examples:

        tacit corpus calibrate calibration.json --labelled sim.jsonl --policy patterns --labels PHONE,ORDER

        tacit corpus calibrate c.json --labelled sim.jsonl --recall 0.9 --conservative-recall 0.99
    """
    from tacit.corpus.screening import SplitSettings, calibration
    from tacit.corpus.screening.labelled import read_labelled

    refuse_existing(out)
    if recall is None and conservative_recall is not None:
        raise InputError("--conservative-recall chooses pi_c beside pi; give --recall too.")
    wanted = None if recall is None else calibration.Wanted(recall, conservative_recall)
    settings = calibration.CalibrationSettings(SplitSettings(sentences, lines), confidence, one_per_document)
    kinds = None if labels is None else {label.strip() for label in labels.split(",")}
    documents = read_labelled(labelled, text=text, spans=spans, labels=kinds)
    chosen = _policy(policy, tagger, _changes(redact, conservative), ())
    with console.progress() as progress:
        progress.phase("measuring", None)
        result = calibration.calibrate(documents, chosen, settings, wanted)
    write_json(out, result, private=True)
    if as_json:
        console.show_json(result)
        return
    thresholds = result["thresholds"]
    everything = thresholds["conservative"] is None
    rows: dict[str, Any] = {
        "pi": thresholds["redact"],
        "pi_c": "none: everything is private" if everything else thresholds["conservative"],
        "secrets": result["measured_on"]["secrets"],
        "gamma": _bound(result["gamma"]),
        "not fully masked": _bound(result["not_fully_masked"]),
        "delta2": _bound(result["delta2"]),
        "points left public": f"{result['public_share']['value']:.3f}",
        "characters masked": f"{result['masked_share_of_characters']:.3f}",
        "points that did not settle": result["unsettled_points"],
    }
    console.show(rows, as_json=False, title=str(labelled))
    by_label = [
        {
            "label": label,
            "secrets": found["n"],
            "recall": _interval(found),
            "recall at pi_c": _interval(result["conservative_recall"][label]),
        }
        for label, found in result["recall"].items()
    ]
    console.show_rows(by_label, as_json=False, name="recall")
    for note in result["notes"]:
        console.say(f"note: {note}")


def _policy(name: str, tagger: str | None, changes: dict[str, Any], spans: Sequence[Any]) -> Any:
    from tacit.corpus.screening.policy_file import chosen_policy

    with console.progress():
        return chosen_policy(name, tagger=tagger, changes=changes, spans=spans)


def _changes(redact: float | None, conservative: str | None, *, placeholders: bool = False) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if redact is not None:
        changes["redact"] = redact
    if conservative == "everything":
        changes["conservative"] = None
    elif conservative is not None:
        try:
            changes["conservative"] = float(conservative)
        except ValueError:
            raise InputError(
                f"--conservative '{conservative:.40}': expected a number such as 0.1, or 'everything'."
            ) from None
    if placeholders:
        changes["placeholders"] = True
    return changes


def _calibrated(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    remedy = "give a file that 'tacit corpus calibrate' wrote"
    thresholds = read_json(path, remedy).get("thresholds")
    if not isinstance(thresholds, dict) or set(thresholds) != {"redact", "conservative"}:
        raise InputError(f"{path}: has no thresholds; {remedy}.")
    return thresholds


def _spans_section(
    policy: str, spans: str | None, miss_rate: float | None, seed: int
) -> list[dict[str, Any]]:
    if spans is None and miss_rate is None and policy != "spans":
        return []
    return [{"kind": "spans", "column": spans or "spans", "miss_rate": miss_rate or 0.0, "seed": seed}]


def _bound(share: dict[str, Any]) -> str:
    return (
        f"{share['value']:.4f}, at most {share['upper']:.4f} ({share['misses']:,} of {share['n']:,} missed)"
    )


def _interval(share: dict[str, Any]) -> str:
    return f"{share['value']:.3f} [{share['low']:.3f}, {share['high']:.3f}]"
