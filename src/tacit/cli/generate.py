"""`tacit generate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import console
from tacit.errors import InputError
from tacit.recipes import DEFAULT_MODEL
from tacit.runs import Run

if TYPE_CHECKING:
    from tacit.privacy import Guarantee

# A budget only bounds what these answers reveal together with all others; this command forgets it at its end.
ONE_CALL = "The budget covers this call only: calls add up, and nothing here remembers them."
NOT_BOOKED = (
    "These people have an account (domain {domain} in {ledger}), and this call was not booked there: what "
    "the account says was revealed and what was revealed here add up. Only tacit serve answers from it."
)


def generate(
    run_folder: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A Run; none samples a public model.")
    ] = None,
    prompt: Annotated[str, typer.Option(help="Text to continue.")] = "",
    model: Annotated[
        str | None,
        typer.Option(help=f"The public model, when no Run is given; default: {DEFAULT_MODEL}."),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Most new tokens.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="For experiments: makes the sample repeatable.")] = None,
    mechanism: Annotated[
        str | None,
        typer.Option(
            help="How an ensemble answers: submix, certified, individual, subsample_aggregate, gnmax, "
            "public, nonprivate. Default: submix, or certified where there is one model per part."
        ),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Budget of an ensemble, in nats per part.")] = None,
    queries: Annotated[
        int | None, typer.Option(help="Answers the budget is meant for; default: as many as --tokens.")
    ] = None,
    order: Annotated[float | None, typer.Option(help="Renyi order of the budget; default: 2.")] = None,
    target: Annotated[
        float | None,
        typer.Option(help="Price per answer (SubMix: distance of the halves); default: epsilon/queries."),
    ] = None,
    mixing: Annotated[
        str | None, typer.Option(help="SubMix: per_part (default), or averaged as printed in the paper.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="SubMix: symmetric (default), or one-sided as in the paper.")
    ] = None,
    guard: Annotated[
        float | None, typer.Option(help="SubMix: no answer costs a part more than this.")
    ] = None,
    cap: Annotated[float | None, typer.Option(help="No part weighs more than this.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep the public model's k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the public model's nucleus of this mass.")] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1: tokens of the text so far become less likely.")
    ] = None,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(metavar="TOKEN=BIAS", help="Add to a token id's logit in every model; may be repeated."),
    ] = None,
    random_stopping: Annotated[
        float | None,
        typer.Option(
            metavar="C",
            help="The paper's random stopping within C times --queries: hides STOP in one direction only.",
        ),
    ] = None,
    lazy: Annotated[bool, typer.Option("--lazy", help="Certified: run one secret part per token.")] = False,
    masks: Annotated[
        bool,
        typer.Option("--masks", help="Let a model of screened text write masks; else it never does."),
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
    ] = False,
    as_json: console.JsonFlag = False,
) -> None:
    """Continue a prompt: privately from an ensemble, or from one model as far as its Run promises.

    Examples:

        tacit generate runs/submix --prompt "USR: Where is my parcel?" --epsilon 2 --queries 100

        tacit generate runs/parts --mechanism certified --epsilon 2 --queries 1000 --prompt "SYS:"

        tacit generate runs/first --prompt "USR: Where is my parcel?"

        tacit generate --model smollm2-135m-instruct --prompt "Once" --tokens 20
    """
    if run_folder is not None and model is not None:
        raise InputError("A Run brings its own public model; leave --model out, or the Run.")
    if tokens < 1:
        raise InputError(f"Expected --tokens >= 1, not {tokens}.")
    run = Run.open(run_folder) if run_folder is not None else None
    if run is not None and run.manifest.weights == "members":
        if seed is not None:
            raise InputError("A seed would make private answers predictable; leave --seed out.")
        if epsilon is None:
            raise InputError("An ensemble answers within a budget; give one, e.g. --epsilon 2 --queries 100.")
        usual = "submix" if run.manifest.ensemble and run.manifest.ensemble.halves else "certified"
        answer = _privately(
            run,
            prompt,
            tokens=tokens,
            settings={
                "name": mechanism or usual,
                "order": 2.0 if order is None else order,
                "mixing": mixing or "per_part",
                "weights": weights or "symmetric",
                "guard": guard,
                "cap": cap,
            },
            target=target,
            budget=(epsilon, tokens if queries is None else queries),
            random_stopping=random_stopping,
            decoding={
                "temperature": temperature,
                "top_k": top_k,
                "top_p": top_p,
                "repetition_penalty": 1.0 if repetition_penalty is None else repetition_penalty,
                "logit_bias": dict(map(_bias, logit_bias or ())),
            },
            lazy=lazy,
            device=device,
            trust_remote_code=trust_remote_code,
        )
        _show(prompt, answer, as_json=as_json)
        return
    private_only = {
        "--epsilon": epsilon,
        "--mechanism": mechanism,
        "--queries": queries,
        "--order": order,
        "--target": target,
        "--mixing": mixing,
        "--weights": weights,
        "--guard": guard,
        "--cap": cap,
        "--top-k": top_k,
        "--top-p": top_p,
        "--repetition-penalty": repetition_penalty,
        "--logit-bias": logit_bias or None,
        "--random-stopping": random_stopping,
        "--lazy": lazy or None,
    }
    for option, value in private_only.items():
        if value is not None:
            raise InputError(
                f"{option} is for an ensemble (method: submix), not for one model; leave it out."
            )
    answer = _plainly(
        run,
        prompt,
        model,
        tokens,
        temperature,
        seed,
        masks=masks,
        device=device,
        trust_remote_code=trust_remote_code,
    )
    _show(prompt, answer, as_json=as_json)


def _bias(option: str) -> tuple[int, float]:
    token, _, bias = option.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise InputError(f"--logit-bias {option}: expected TOKEN=BIAS, e.g. 42=-5.") from None


def _privately(
    run: Run,
    prompt: str,
    *,
    tokens: int,
    settings: dict[str, Any],
    target: float | None,
    budget: tuple[float, int],
    random_stopping: float | None,
    decoding: dict[str, Any],
    lazy: bool,
    device: str,
    trust_remote_code: bool,
) -> dict[str, Any]:
    from tacit.mechanisms import Decoding, RandomStopping
    from tacit.mechanisms.choice import MechanismChoice
    from tacit.models.ensemble import load_ensemble
    from tacit.models.process import keep_freed_memory
    from tacit.prediction import Budget, PrivatePredictor

    stopping = None if random_stopping is None else RandomStopping(budget[1], random_stopping)
    allowance = Budget(*budget, stopping)
    choice = MechanismChoice(**settings, target=allowance.target if target is None else target)
    how = Decoding(**decoding)
    with console.progress() as bars:
        bars.phase("loading", None)
        keep_freed_memory()
        ensemble = load_ensemble(run, device=device, trust_remote_code=trust_remote_code)
        predictor = PrivatePredictor(ensemble, choice, allowance, slots=1, lazy=lazy)
        bars.phase("answering", None)
        prediction = predictor.generate(prompt, max_tokens=tokens, decoding=how)
    guarantee = predictor.guarantee
    return {
        "text": prediction.text,
        "tokens": len(prediction.tokens),
        "guarantee": " ".join([str(guarantee), *_outside_any_ledger(run, guarantee)]),
        "privacy": guarantee.to_json(),
    }


def _outside_any_ledger(run: Run, guarantee: Guarantee) -> list[str]:
    """What has to be said of answers that nothing counts beyond this call."""
    from tacit.prediction.accounts import remembered_account

    told = [ONE_CALL] if guarantee.epsilon is not None else []
    account = remembered_account(run)
    if account is not None and guarantee.kind != "public":
        told.append(NOT_BOOKED.format(domain=account.domain, ledger=account.ledger))
    return told


def _plainly(
    run: Run | None,
    prompt: str,
    model: str | None,
    tokens: int,
    temperature: float,
    seed: int | None,
    *,
    masks: bool,
    device: str,
    trust_remote_code: bool,
) -> dict[str, Any]:
    from tacit.models.generation import generate as sample
    from tacit.models.generation import generator_from
    from tacit.models.loading import load_public_model
    from tacit.models.trained import load_trained

    generator = generator_from(seed)
    if run is not None:
        trained = load_trained(run, device=device, trust_remote_code=trust_remote_code)
        source, tokenizer = trained.model, trained.public.tokenizer
        guarantee = run.manifest.guarantee["statement"]
    else:
        name = model if model is not None else DEFAULT_MODEL
        loaded = load_public_model(name, device=device, trust_remote_code=trust_remote_code)
        source, tokenizer = loaded.model, loaded.tokenizer
        guarantee = loaded.statement
    if masks and tokenizer.mask_token is None:
        raise InputError("--masks is for a model of screened text; this one has no <MASK>; leave it out.")
    text = sample(
        source,
        tokenizer,
        prompt,
        max_new_tokens=tokens,
        temperature=temperature,
        generator=generator,
        masks=masks,
    )
    return {"text": text, "guarantee": guarantee}


def _show(prompt: str, answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        console.show_json({"prompt": prompt} | answer)
        return
    typer.echo(prompt + answer["text"])
    console.say(f"guarantee: {answer['guarantee']}")
