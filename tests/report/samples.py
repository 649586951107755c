"""A made-up audit with every section: no number in it was measured."""

from __future__ import annotations

import copy
import math
import random
from typing import Any

from tacit.privacy import Guarantee
from tacit.statistics import Estimate, clopper_pearson

NAME = "support-desk (made-up data)"


def measured(
    value: float, low: float, high: float, method: str = "bootstrap over 40 users"
) -> dict[str, Any]:
    return Estimate(value, low, high, 0.95, method).to_json()


def share(hits: int, trials: int) -> dict[str, Any]:
    return clopper_pearson(hits, trials).to_json()


def exposure_rows(chance: random.Random) -> list[dict[str, Any]]:
    rows = []
    for number in range(30):
        inserted = number >= 10
        times = [1, 5, 10, 20][(number - 10) // 5] if inserted else 0
        bits = min(19.93, -math.log2(1 - chance.random()) + 0.75 * times * chance.random())
        exact = bits > 6
        spread = 0.0 if exact else 0.25
        rows.append(
            {
                "id": f"canary-{number:02d}",
                "inserted": inserted,
                "repetitions": times,
                "exposure": measured(
                    bits, max(0, bits - spread), min(19.93, bits + spread), "exact" if exact else "sampled"
                ),
                "public": measured(one := -math.log2(1 - chance.random()) / 2, one, one, "exact"),
                "method": "exact" if exact else "sampled",
                "rank": [round(2 ** (19.93 - bits)) + 3, round(2 ** (19.93 - bits)) + 3],
                "alone": [round(2 ** (19.93 - bits)), round(2 ** (19.93 - bits))],
                "positions": 300,
            }
        )
    return rows


def roc_points(strength: float, steps: int = 200) -> list[list[float]]:
    return [[at / steps, (at / steps) ** strength] for at in range(steps + 1)]


def attack(name: str, auc: float, *, resolved: bool = True) -> dict[str, Any]:
    return {
        "name": name,
        "auc": measured(auc, auc - 0.02, min(1.0, auc + 0.02), "DeLong"),
        "p_value": 0.00001 if auc > 0.55 else 0.31,
        "adjusted": 0.00009 if auc > 0.55 else 0.62,
        "accuracy": share(round(1000 * (auc + 0.5) / 2), 1000),
        "accuracy_chance": 0.5,
        "tpr": [
            {
                "fpr": 0.01,
                "tpr": share(round(1000 * (auc - 0.45)), 1000) if resolved else None,
                "measured_fpr": share(4, 500) if resolved else None,
                "why": None,
            },
            {"fpr": 0.001, "tpr": None, "why": "needs 3,000 non-members"},
        ],
    }


def group_attack(name: str, auc: float) -> dict[str, Any]:
    return {
        "name": name,
        "auc": measured(auc, auc - 0.06, min(1.0, auc + 0.06), "bootstrap over 412 + 412 secrets"),
        "accuracy_at_median": measured((auc + 0.5) / 2, auc / 2, 0.99, "bootstrap over 412 + 412 secrets"),
        "p_value": 0.001,
        "adjusted": 0.002,
    }


def probed(accuracy: float, probe: str) -> dict[str, Any]:
    return {
        "accuracy": measured(accuracy, accuracy - 0.05, accuracy + 0.05, "bootstrap over 40 authors"),
        "among_first": measured(2 * accuracy, 2 * accuracy - 0.05, 2 * accuracy + 0.05),
        "p_value": 0.0001,
        "probe": probe,
    }


def sample_audit() -> dict[str, Any]:
    chance = random.Random(7)
    users = [(round(math.exp(chance.uniform(1, 6))), chance.gauss(0, 0.5)) for _ in range(60)]
    return {
        "format": 2,
        "created": "2026-11-18T09:30:00+00:00",
        "run": {
            "name": "support-desk",
            "method": "submix",
            "public_model": "smollm2-135m-instruct",
            "family": "transformer",
            "weights_fingerprint": "hmac-sha256:5d1c3b0a",
            "seeded": True,
        },
        "guarantee": Guarantee.certified(order=2.0, epsilon=2.0).to_json(),
        "mechanism": {
            "name": "certified",
            "order": 2.0,
            "epsilon": 2.0,
            "queries": 1024,
            "target": 0.00195,
            "parts": 8,
        },
        "verdict": {
            "line": "Leaks: a member's weights give planted secrets away. The answers keep what they claim.",
            "leaks": True,
            "confidence": 0.95,
            "attacks": [
                {
                    "attack": "membership of canaries and twins (reference), AUC",
                    "measured": measured(0.78, 0.76, 0.8, "DeLong"),
                    "chance": 0.5,
                    "p_value": 0.00001,
                    "named": True,
                    "adjusted": 0.00002,
                    "leaks": True,
                },
                {
                    "attack": "tab completion of users' own texts",
                    "measured": share(9, 90),
                    "chance": 1 / 30,
                    "p_value": 0.23,
                    "named": True,
                    "adjusted": 0.23,
                    "leaks": False,
                },
            ],
        },
        "claims": [
            {
                "claim": "Answers: epsilon 8 at delta 1e-5 for one part",
                "verdict": "supported",
                "reason": "The strongest attack shows 3.1, and would have shown up to 9.4.",
                "claimed_epsilon": 8.0,
                "measured_epsilon": 3.1,
                "control_epsilon": 9.1,
                "detectable_epsilon": 9.4,
                "delta": 1e-5,
                "confidence": 0.95,
                "method": "likelihood ratio of 2,000 transcripts, Clopper-Pearson",
            },
            {
                "claim": "One member's weights: epsilon 8 at delta 0",
                "verdict": "contradicted",
                "reason": "7 of 20 planted secrets have rank 1 among a million.",
                "claimed_epsilon": 8.0,
                "measured_epsilon": 12.6,
                "detectable_epsilon": 14.9,
                "delta": 0.0,
                "confidence": 0.95,
                "method": "k-ary one-run bound, s = 1",
            },
            {
                "claim": "One user's text: epsilon 16 at delta 1e-5",
                "verdict": "inconclusive",
                "reason": "Twenty canaries can show 14.9 at most; the claim is above.",
                "claimed_epsilon": 16.0,
                "measured_epsilon": 0.0,
                "detectable_epsilon": 14.9,
                "delta": 1e-5,
                "confidence": 0.95,
                "method": "k-ary one-run bound, s = 1",
            },
        ],
        "utility": {
            "public": measured(31.2, 29.8, 32.9),
            "run": measured(22.4, 21.1, 23.9),
            "unmitigated": measured(18.7, 17.5, 20.0),
            "text": "held-out dialogues",
        },
        "exposure": {
            "candidates": "1000000",
            "score": "logprob",
            "canaries": 20,
            "null": {
                "mean": 1.44,
                "limit": 4.32,
                "largest_mean": 5.19,
                "largest_limit": 8.61,
                "confidence": 0.95,
            },
            "rows": exposure_rows(chance),
            "per_repetition": [
                {
                    "repetitions": times,
                    "canaries": 5,
                    "mean": measured(mean, mean - 1.2, mean + 1.2, "bootstrap over canaries"),
                    "largest": mean + 3,
                    "null_largest_limit": 6.63,
                }
                for times, mean in ((1, 1.9), (5, 3.8), (10, 6.1), (20, 11.2))
            ],
            "together": {"p_value": 1e-9, "adjusted": 2e-8},
            "largest": {"p_value": 1e-4, "adjusted": 8e-4},
            "mean": measured(5.7, 4.1, 7.3, "bounded mean"),
            "public_mean": measured(1.2, 0.6, 1.8, "bounded mean"),
            "control": {"mean": measured(13.1, 12.0, 14.2), "largest": 19.9, "p_value": 1e-12},
            "positions": 6210,
            "seconds": 41.5,
        },
        "membership": {
            "sets": [
                {
                    "name": "canaries and twins",
                    "what": "planted sentences and their twins, by a coin each",
                    "members": 1000,
                    "non_members": 1000,
                    "flagged": False,
                    "blind": {
                        "auc": measured(0.506, 0.48, 0.532, "DeLong"),
                        "p_value": 0.6,
                        "separates": False,
                    },
                    "attacks": [
                        attack("loss", 0.66),
                        attack("zlib", 0.64),
                        attack("reference", 0.78),
                        attack("min-k++", 0.69),
                    ],
                    "roc": {"attack": "reference", "points": roc_points(0.3)},
                    "groups": {
                        "groups": 2000,
                        "size": 20,
                        "members": 1000,
                        "non_members": 1000,
                        "secrets": [412, 412],
                        "attacks": [
                            group_attack("perplexity_sum", 0.71),
                            group_attack("mean_reference", 0.93),
                        ],
                    },
                },
                {
                    "name": "dialogues",
                    "what": "dialogues of the corpus against later ones",
                    "members": 200,
                    "non_members": 90,
                    "flagged": True,
                    "blind": {
                        "auc": measured(0.71, 0.66, 0.76, "DeLong"),
                        "p_value": 1e-6,
                        "separates": True,
                    },
                    "attacks": [attack("loss", 0.7, resolved=False), attack("zlib", 0.52, resolved=False)],
                    "roc": {"attack": "loss", "points": roc_points(0.6, 90)},
                    "groups": None,
                    "groups_why": "groups of 100 need 200 texts of either kind, and there are 90",
                },
            ]
        },
        "extraction": {
            "tab": {
                "accuracy": share(7, 20),
                "attainable": 0.95,
                "public": share(0, 20),
                "per_repetition": [
                    {"repetitions": times, "accuracy": share(hits, 5)}
                    for times, hits in ((1, 0), (5, 1), (10, 2), (20, 4))
                ],
            },
            "tab_real": {
                "source": "real, picked by an independent model",
                "users": 90,
                "accuracy": share(9, 90),
                "attainable": 0.8,
                "public": share(1, 90),
                "others": share(1, 30),
                "other_users": 30,
                "p_value": 0.23,
            },
            "tries": {
                "rows": [
                    {
                        "p": 0.5,
                        "median_tries": 1800.0,
                        "within": [
                            {"tries": 100, "share": share(6, 20)},
                            {"tries": 10000, "share": share(13, 20)},
                        ],
                    },
                    {"p": 0.9, "median_tries": None, "within": []},
                ]
            },
            "codes": [
                {
                    "name": "one member",
                    "epsilon": None,
                    "rate": share(61, 100),
                    "chance": 0.004,
                    "verdict": "leaks",
                },
                {
                    "name": "plain mean",
                    "epsilon": None,
                    "rate": share(9, 100),
                    "chance": 0.004,
                    "verdict": "leaks",
                },
                {
                    "name": "certified",
                    "epsilon": 2.0,
                    "rate": share(0, 100),
                    "chance": 0.004,
                    "verdict": "none",
                },
            ],
        },
        "prediction": {
            "queries": 1024,
            "parts": 8,
            "realised": {
                "excess": 0,
                "largest_excess": -0.0002,
                "queries": 1024,
                "verdict": "supported",
                "statement": "No answer cost more than it was charged",
            },
            "likelihood_ratio": [
                {
                    "part": part,
                    "transcripts": 2000,
                    "queries": 64,
                    "auc": measured(0.6 + part / 50, 0.58 + part / 50, 0.62 + part / 50, "DeLong"),
                    "epsilon_lower": 1.2 + part / 4,
                    "claimed_epsilon": 8.0,
                    "delta": 1e-5,
                    "verdict": "supported",
                }
                for part in range(8)
            ],
            "black_box": {
                "generations": 500,
                "hits_inserted": 1,
                "hits_twins": 0,
                "p_value": 0.5,
                "queries_used": 6000,
                "booked": 6000,
                "chance": 1e-6,
                "p_claim": 1.0,
                "secret_rate": share(1, 500),
                "twin_rate": share(0, 500),
                "verdict": "inconclusive",
                "reason": "1 of 500 answers was a planted secret; 27 would contradict.",
                "control": "The control gives 61 of them in as many answers.",
            },
        },
        "linkability": {
            "what": "The probe learns on training text and is scored on held-out text of the same authors.",
            "label": None,
            "unseen": True,
            "authors": 40,
            "learnt": 800,
            "scored": 400,
            "chance": {"one_of_all": 0.025, "most_frequent": 0.03},
            "run": probed(0.21, "two layers of width 1000, 14 epochs"),
            "public": probed(0.12, "logistic regression, penalty 0.1"),
            "control": probed(0.34, "logistic regression, penalty 0.01"),
            "above_public": measured(0.09, 0.04, 0.14, "bootstrap over 40 authors"),
            "above_control": measured(-0.13, -0.19, -0.07, "bootstrap over 40 authors"),
            "discriminator": {
                "accuracy": 0.06,
                "most_frequent_author": 0.05,
                "one_of_all_authors": 0.025,
            },
        },
        "disparity": {
            "against": "the unmitigated Run",
            "users": 60,
            "mean": measured(3.7, 3.3, 4.1),
            "top": measured(2.6, 1.9, 3.3),
            "bottom": measured(5.1, 4.2, 6.0),
            "gap": measured(2.5, 1.3, 3.7),
            "slope": measured(-0.52, -0.7, -0.34),
            "points": [[samples, 5.6 - 0.52 * math.log(samples) + noise] for samples, noise in users],
            "caveats": ["Five users per group are few: read the slope over all users."],
        },
        "compare": None,
        "not_covered": [
            "Attackers who can change the training text.",
            "Side channels such as the time that an answer takes.",
        ],
        "notes": ["All numbers of this sample are made up."],
        "provenance": {
            "versions": {"tacit": "0.1.0", "torch": "2.8.0"},
            "manifest_commitment": "sha256:9f86d081884c7d65",
            "seeds": {"audit": 0},
            "settings": {"confidence": 0.95, "batch_tokens": 4096},
            "processor": "2 cores",
            "seconds": 312.0,
        },
    }


def sample_comparison() -> list[dict[str, Any]]:
    def row(name: str, method: str, perplexity: float, bits: float, auc: float, tab: int) -> dict[str, Any]:
        return {
            "name": name,
            "method": method,
            "guarantee": f"what {name} promises",
            "perplexity": measured(perplexity, perplexity - 0.8, perplexity + 0.9),
            "exposure_max": min(19.93, 1.7 * bits),
            "exposure_mean": measured(bits, bits - 0.9, bits + 0.9, "bootstrap over canaries"),
            "auc": measured(auc, auc - 0.02, auc + 0.02, "DeLong"),
            "tab": share(tab, 20),
            "linkability": measured(auc / 3, auc / 3 - 0.02, auc / 3 + 0.02, "bootstrap over 40 authors"),
            "linkability_chance": 0.03,
            "disparity_gap": measured(1.0, 0.2, 1.9),
            "comparable": True,
            "why": None,
        }

    rows = [
        row("finetuned", "finetune", 18.7, 15.2, 0.94, 14),
        row("confidential", "crt", 20.9, 2.2, 0.55, 1),
        row("regularised", "joint", 21.4, 5.8, 0.66, 4),
        row("ensemble, certified", "submix", 22.4, 1.6, 0.51, 0),
    ]
    weak = row("one epoch", "finetune", 27.5, 2.4, 0.56, 0)
    weak |= {"comparable": False, "why": "its perplexity is 25% above the others", "disparity_gap": None}
    return [*rows, weak]


def without(*names: str) -> dict[str, Any]:
    """The sample, where these sections were not measured."""
    audit = copy.deepcopy(sample_audit())
    return audit | dict.fromkeys(names)
