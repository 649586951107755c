"""`tacit audit`: attack what a Run claims, and say how that went."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tacit.cli import console
from tacit.cli.audit_tables import show_audit
from tacit.cli.run_by_default import RunByDefault
from tacit.errors import InputError
from tacit.runs import Run

if TYPE_CHECKING:
    from tacit.audit.plans import AnswerPlan


_DELTA = 1e-5  # where the audit bounds epsilon, and the plan counts canaries: tacit.audit.verdicts.DELTA


app = typer.Typer(
    cls=RunByDefault,
    no_args_is_help=True,
    help="Attack what a Run claims: `tacit audit RUN`, or one of the commands below.",
)


@app.command()
def run(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="The Run to audit.")],
    canaries: Annotated[
        Path | None, typer.Option(help="The manifest of the canaries that were planted into its corpus.")
    ] = None,
    words: Annotated[
        Path | None, typer.Option(help="The word list of word canaries, one word per line, if it was yours.")
    ] = None,
    mechanism: Annotated[
        str | None, typer.Option(help="Of an ensemble: submix, certified, individual, or a noise baseline.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Of an ensemble: the budget in nats.")] = None,
    queries: Annotated[int | None, typer.Option(help="Of an ensemble: answers the budget is for.")] = None,
    order: Annotated[float, typer.Option(help="Of an ensemble: Renyi order.")] = 2.0,
    guard: Annotated[float | None, typer.Option(help="Of SubMix: the most a query may cost a part.")] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            "--control",
            help="A Run of the same corpus without protection: who pays, and what these attacks find there.",
        ),
    ] = None,
    preset: Annotated[
        Literal["crt", "regularisation"] | None,
        typer.Option(help="A paper's own set-up; see docs/audit.md."),
    ] = None,
    documents: Annotated[
        int, typer.Option(help="Training and held-out documents to score, of each at most; 0: none.")
    ] = 1000,
    lines: Annotated[
        int, typer.Option(help="Lines with gold spans to score beside look-alikes; 0: none.")
    ] = 1000,
    spans: Annotated[
        str | None, typer.Option(help="Column of gold spans; default: 'spans', if the corpus has it.")
    ] = None,
    donors: Annotated[
        Path | None,
        typer.Option(help="Documents with spans, not trained on, for look-alikes that test nothing."),
    ] = None,
    authors: Annotated[
        int, typer.Option(help="Authors whom a probe tells apart by the model's states, at most; 0: none.")
    ] = 50,
    author_texts: Annotated[
        int,
        typer.Option(help="Texts of each author that it learns from and is scored on, of either at most."),
    ] = 20,
    label: Annotated[
        str | None, typer.Option(help="Column of whose a text is; default: the recipe's, or the user.")
    ] = None,
    group_size: Annotated[int, typer.Option(help="Texts in a group, of which 2,000 are drawn.")] = 20,
    real: Annotated[
        Literal["independent", "paper", "none"],
        typer.Option(help="Who picks users' own texts to complete: the public model, or --against."),
    ] = "independent",
    score: Annotated[
        Literal["logprob", "perplexity"], typer.Option(help="What candidates are ranked by.")
    ] = "logprob",
    positions: Annotated[
        int, typer.Option(help="Forward positions that ranking one prefix's canaries may take.")
    ] = 20_000,
    delta: Annotated[float, typer.Option(help="The delta at which epsilon is bounded.")] = _DELTA,
    confidence: Annotated[
        float, typer.Option(help="Of every bound, interval, test and band of chance.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(help="Of samples, splits and simulated transcripts.")] = 0,
    report: Annotated[bool, typer.Option(help="Write RUN/report.html beside RUN/audit.json.")] = True,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    as_json: console.JsonFlag = False,
) -> None:
    """Run every attack that the Run allows, and give a verdict on each claim.

    Writes RUN/audit.json and RUN/report.html for their owner alone: every number is a function of private
    text. A verdict is supported, contradicted or inconclusive, with what the audit could have detected.

    Examples:

        tacit audit runs/first --canaries canaries.json

        tacit audit runs/first --preset crt --documents 0

        tacit audit runs/first --authors 20 --author-texts 10

        tacit audit runs/parts --mechanism certified --epsilon 2 --queries 64
    """
    from tacit.attacks.exposure import ExposureSettings
    from tacit.attacks.groups import GroupPlan
    from tacit.audit.auditing import audit_run
    from tacit.audit.plans import AuditPlan
    from tacit.audit.presets import as_in_the_paper
    from tacit.corpus.canaries import CanaryManifest
    from tacit.report import write_report

    opened = Run.open(run_folder)
    plan = AuditPlan(
        manifest=None if canaries is None else CanaryManifest.load(canaries),
        words=None if words is None else word_list(words),
        answers=_answers(opened, mechanism, epsilon, queries, order, guard, delta, confidence, seed),
        against=None if against is None else Run.open(against),
        documents=documents,
        lines=lines,
        spans=spans,
        donors=None if donors is None else str(donors),
        authors=authors,
        author_texts=author_texts,
        label=label,
        groups=GroupPlan(size=group_size),
        real=real,
        delta=delta,
        confidence=confidence,
        seed=seed,
        exposure=ExposureSettings(score=score, budget=positions, confidence=confidence, seed=seed),
    )
    if preset is not None:
        plan = as_in_the_paper(plan, preset)
    with console.progress() as progress:
        found = audit_run(opened, plan, device=device, progress=progress)
    kept = found.save(opened)
    page = write_report(opened, found.to_json()) if report else None
    if as_json:
        console.show_json(found.to_json())
        return
    show_audit(found)
    if kept is not None:
        console.out.print(f"The earlier audit, which asked something else: {kept}", markup=False)
    console.out.print(f"{opened.folder / 'audit.json'}", markup=False)
    if page is not None:
        console.out.print(f"{page}", markup=False)


def _answers(
    opened: Run,
    mechanism: str | None,
    epsilon: float | None,
    queries: int | None,
    order: float,
    guard: float | None,
    delta: float,
    confidence: float,
    seed: int,
) -> AnswerPlan | None:
    from tacit.audit.plans import AnswerPlan
    from tacit.audit.transcripts_run import PredictionPlan
    from tacit.mechanisms.choice import MechanismChoice
    from tacit.prediction import Budget

    if mechanism is None and epsilon is None and queries is None and guard is None:
        return None
    if epsilon is None or queries is None:
        raise InputError("A budget has an epsilon and a number of queries; give --epsilon and --queries.")
    shape = opened.manifest.ensemble
    usual = "submix" if shape is not None and shape.halves else "certified"
    budget = Budget(epsilon, queries)
    choice = MechanismChoice(
        name=mechanism or usual,  # type: ignore[arg-type] # checked there
        order=order,
        target=budget.target,
        guard=guard,
    )
    prediction = PredictionPlan(
        epsilon=epsilon, repeats=min(256, queries), delta=delta, confidence=confidence, seed=seed
    )
    return AnswerPlan(choice, budget, prediction)


def word_list(path: Path) -> tuple[str, ...]:
    """The list that word canaries were drawn from."""
    try:
        return tuple(path.read_text(encoding="utf-8").split())
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; give a list with one word per line.") from None
    except OSError as problem:
        raise InputError(f"Cannot read the word list {path} ({problem.strerror}).") from None


@app.command()
def plan(
    epsilon: Annotated[float, typer.Option(help="The epsilon that is claimed.")],
    delta: Annotated[
        float, typer.Option(help="The delta it is claimed at; default: the one that tacit audit takes.")
    ] = _DELTA,
    confidence: Annotated[float, typer.Option(help="Of the bound.")] = 0.95,
    candidates: Annotated[int, typer.Option(help="Values that a planted secret can have.")] = 1_000_000,
    neighbours: Annotated[
        Literal["add/remove", "replace", "mask"],
        typer.Option(help="What the claim compares: tacit audit judges add/remove."),
    ] = "add/remove",
    include: Annotated[float, typer.Option(help="The coin by which a planted canary is inserted.")] = 0.5,
    owner: Annotated[
        Literal["existing", "new"],
        typer.Option(help="Whose text it is, as tacit corpus plant has it: with new users coins count too."),
    ] = "existing",
    accuracy: Annotated[
        float | None, typer.Option(help="Also for an attack whose guesses about coins are right so often.")
    ] = None,
    power: Annotated[float, typer.Option(help="How sure that attack shall be to show it.")] = 0.8,
    as_json: console.JsonFlag = False,
) -> None:
    """How many canaries would contradict a claim, or let an audit support it, by each way of auditing.

    All guesses are taken to be right, which is the best that any attack can do; --accuracy asks for less. To
    support a claim, an audit must be able to show one and a half times its epsilon. A coin leaves some of
    what is planted out; so many are planted that enough are in with a probability of 95%. Coins themselves
    are evidence only with new owners of one canary each, a fair coin and add/remove.

    Examples:

        tacit audit plan --epsilon 8

        tacit audit plan --epsilon 8 --owner new

        tacit audit plan --epsilon 2 --delta 1e-5 --neighbours replace --json

        tacit audit plan --epsilon 1 --owner new --accuracy 0.85 --power 0.9
    """
    from tacit.audit import plan_audit

    rows = plan_audit(
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        candidates=candidates,
        neighbours=neighbours,
        include=include,
        owner=owner,
        accuracy=accuracy,
        power=power,
    )
    title = (
        f"Canaries for a claim of epsilon = {epsilon:g} at delta = {delta:g}, neighbours {neighbours}, "
        f"confidence {confidence:g}"
    )
    shown = [row.to_json() if as_json else row.cells() for row in rows]
    console.show_rows(shown, as_json=as_json, name="designs", title=title)


@app.command()
def service(
    url: Annotated[str, typer.Argument(metavar="URL", help="The API, e.g. http://localhost:8000/v1.")],
    canaries: Annotated[Path, typer.Option(help="The manifest of the canaries that were planted.")],
    model: Annotated[
        str | None, typer.Option(help="The model's name; default: the first one served.")
    ] = None,
    generations: Annotated[int, typer.Option(help="Answers to ask for each canary.")] = 20,
    queries: Annotated[int, typer.Option(help="Tokens that the whole attack may cost.")] = 10_000,
    admin: Annotated[
        str | None,
        typer.Option(help="The operator's port, to read the meter; password in TACIT_ADMIN_PASSWORD."),
    ] = None,
    run_folder: Annotated[
        Path | None,
        typer.Option("--run", help="The Run that is served: keeps the result there, and in its report."),
    ] = None,
    control: Annotated[
        Path | None,
        typer.Option(help="A Run of the same text without protection: how many secrets it would give."),
    ] = None,
    extractable: Annotated[
        bool,
        typer.Option("--extractable", help="Your word for it, without a control: silence then counts."),
    ] = False,
    confidence: Annotated[float, typer.Option(help="Of every test and interval.")] = 0.95,
    as_json: console.JsonFlag = False,
) -> None:
    """Ask a running service for its canaries, as any client could, with the meter running.

    The API key is read from TACIT_API_KEY. Every token that is asked for is paid for from the budget. With
    --run the result is kept in RUN/service_audit.json and becomes part of RUN/audit.json and its report.
    Asked again, an earlier result is kept under its time; a contradiction stands until its file is removed.

    Examples:

        tacit audit service http://localhost:8000/v1 --canaries canaries.json --queries 500 --run runs/submix
    """
    from tacit.audit.audited import canaries_as_trained
    from tacit.audit.black_box import BlackBoxPlan, Endpoint, audit_service
    from tacit.audit.record import read_record
    from tacit.audit.service_record import ServiceRecord, rates_of_control, read_services
    from tacit.corpus.canaries import CanaryManifest

    key = os.environ.get("TACIT_API_KEY")
    if not key:
        raise InputError("The service wants an API key; put it into TACIT_API_KEY (tacit keys create).")
    manifest = CanaryManifest.load(canaries)
    opened = None if run_folder is None else Run.open(run_folder)
    if opened is not None:
        # Before anything is asked and paid for: the result can become part of it.
        read_record(opened)
        read_services(opened)
    unprotected = None if control is None else Run.open(control)
    endpoint = Endpoint(url, key, model, admin, os.environ.get("TACIT_ADMIN_PASSWORD"))
    asked = BlackBoxPlan(generations=generations, most_queries=queries, confidence=confidence)
    with console.progress() as progress:
        if opened is not None:
            manifest = canaries_as_trained(opened, manifest, progress)
        rates = None
        if unprotected is not None:
            rates = rates_of_control(unprotected, manifest, served=opened, progress=progress)
        found = audit_service(
            endpoint,
            manifest.canaries,
            asked,
            candidates=manifest.candidates,
            extractable=extractable,
            control_rates=rates,
            progress=progress,
        )
    kept = []
    if opened is not None:
        ServiceRecord.of(found, url=url, manifest=manifest).save(opened)
        kept = [opened.folder / "service_audit.json", *_into_the_report(opened)]
    if as_json:
        console.show_json(found.to_json())
        return
    content = {
        "verdict": found.verdict,
        "reason": found.reason,
        "secrets": str(found.secret_rate),
        "twins": str(found.twin_rate),
        "chance": found.chance,
        "p_value_against_twins": found.p_twins,
        "p_value_against_others": found.p_inserted,
        "tokens_asked": found.meter.asked,
        "tokens_booked": found.meter.booked,
        "ended": found.ended,
        "guarantee": found.guarantee,
    }
    console.show(content, as_json=False, title=f"What {url} gave away")
    for path in kept:
        console.out.print(f"{path}", markup=False)


def _into_the_report(opened: Run) -> list[Path]:
    """The Run's audit and report with its service in them; nothing where it was not audited yet."""
    from tacit.audit.record import FILE, read_record
    from tacit.audit.service_record import left_out, read_services, with_service
    from tacit.report import write_report

    audited = read_record(opened)
    if audited is None:
        return []
    record = with_service(audited, read_services(opened))
    record.save(opened)
    if why := left_out(record):
        console.say(why)
    return [opened.folder / FILE, write_report(opened, record.to_json())]


@app.command()
def card(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="The Run; audited or not.")],
    include_measurements: Annotated[
        bool,
        typer.Option(
            "--include-measurements",
            help="Also publish what was measured on private text, which no guarantee covers.",
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace RUN/README.md.")] = False,
    as_json: console.JsonFlag = False,
) -> None:
    """Write a Hugging Face model card, RUN/README.md: what may be published about a Run.

    Examples:

        tacit audit card runs/first
    """
    from tacit.audit.record import FILE, read_audit
    from tacit.report import write_model_card

    opened = Run.open(run_folder)
    audited = read_audit(opened) if (opened.folder / FILE).exists() else None
    written = write_model_card(
        opened, audited, include_measurements=include_measurements, overwrite=overwrite
    )
    console.show({"written": str(written)}, as_json=as_json, title="Model card")
