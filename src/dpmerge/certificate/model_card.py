"""The model card: a certificate in words, for the people who will use the model.

Guarantees: written from the certificate alone, so that verification can write it again and compare.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from dpmerge.terms.documents import UNSEEN

CARD_NAME = "README.md"

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_ADJACENCY = {
    "replace_one": "changing the data of one {unit} for any other",
    "add_remove": "adding or removing the data of one {unit}",
    "zero_out": "leaving the data of one {unit} empty, the number of records being public",
}
_CHOSEN = {
    "data_independent": "without looking at any model, so the choice costs nothing",
    "public_evaluation": "by scores on public data; every model that could have been scored is paid for",
    "private_validation": "by scores on a private validation set, drawn so that the choice is paid for",
    "uncharged": "by scores on public data that are **not paid for**: the guarantee does not cover the choice",
}


def model_card(content: Mapping[str, Any], files: Mapping[str, str], version: int) -> str:
    """The README of a release, from what its certificate says, in the words of the certificate's version."""
    terms, guarantee = content["terms"], content["guarantee"]
    return "\n".join(
        [
            *_front_matter(content),
            "# A model with a privacy certificate",
            "",
            *_headline(content),
            "",
            f"Neighbouring data sets differ by {_ADJACENCY[terms['adjacency']].format(unit=_plain(terms['unit']))}. "
            f"Data: {_plain(terms['dataset'])}. Setting: {content['setting']['model']} model; trusted: "
            f"{content['setting']['trusted']}.",
            "",
            "## How it was made",
            "",
            *_making(content),
            "",
            f"It was chosen {_CHOSEN[content['choice']['how']]} (rule: {_plain(content['choice']['rule'])}).",
            "",
            "## What the guarantee rests on",
            "",
            f"Accounting: {content['theorem'].replace('_', ' ')}, "
            f"{'privacy loss distributions' if terms['accounting'] == 'pld' else 'Rényi divergence'}.",
            "",
            f"| premise | holds | {'by whose word' if version < 3 else 'vouched for by'} |",
            "|---|---|---|",
            *(
                f"| {p['name'].replace('_', ' ')} | {'yes' if p['holds'] else '**no**'} | {_plain(p['vouchedBy'])} |"
                for p in content["premises"]
            ),
            "",
            f"Tuning of hyperparameters and choice of runs: {'' if content['tuning']['covered'] else 'not '}covered "
            f"({_plain(content['tuning']['because'])}).",
            "",
            "## The whole profile",
            "",
            "| δ | ε |",
            "|---|---|",
            *(f"| {p['delta']!r} | {p['epsilon']} |" for p in content["profile"]["epsilonAtDelta"]),
            "",
            *([f"It is μ-GDP with μ = {content['profile']['mu']}.", ""] if "mu" in content["profile"] else []),
            *_audit(content),
            "## Caveats",
            "",
            *_caveats(content),
            f"- this release: {content['setting']['alone']}",
            f"- arithmetic: {content['setting']['arithmetic']}",
            "",
            "## Check it yourself",
            "",
            "`privacy-certificate.json` holds all of the above with the mechanisms it was computed from. This computes "
            "every figure again and compares the files:",
            "",
            "    dpmerge verify .",
            "",
            f"Release {content['release']} of {len(files)} file{'' if len(files) == 1 else 's'}, charged "
            f"{content['chargedAt']}; ε = {guarantee['epsilon']} at δ = {guarantee['delta']!r}.",
            "",
        ]
    )


def _front_matter(content: Mapping[str, Any]) -> list[str]:
    bases = [base for base in content["baseModels"] if _HUB_NAME.fullmatch(base)]
    lines = ["---", "tags:", "- merge", "- differential-privacy", "- dpmerge"]
    if bases:
        lines += ["base_model:", *(f"- {json.dumps(base)}" for base in bases)]
    return [*lines, "---", ""]


def _headline(content: Mapping[str, Any]) -> list[str]:
    guarantee, terms = content["guarantee"], content["terms"]
    statement = f"(ε = {guarantee['epsilon']}, δ = {guarantee['delta']!r})-differential privacy"
    if not content["proved"]:
        return [
            f"**No guarantee is proved.** Under assumptions that these runs do not meet it would be {statement}, "
            f"per {_plain(terms['unit'])}."
        ]
    if not content["choice"]["paidFor"]:
        return [f"**{statement}, per {_plain(terms['unit'])}, not counting how the model was chosen.**"]
    lines = [f"**{statement}, per {_plain(terms['unit'])}.**"]
    if content["final"]:
        lines.append("It holds as long as nothing else of the runs it was made of is released, and they are locked.")
    return lines


def _making(content: Mapping[str, Any]) -> list[str]:
    outcomes = content["outcomes"]
    if len(outcomes) == 1:
        return [f"{_plain(outcomes[0]['recipe'])}, of runs on the same data; no further training."]
    lines = ["One of these was drawn at random, independently of the data:", "", "| probability | model | its own ε |"]
    lines += ["|---|---|---|"]
    lines += [f"| {o['probability']:.6g} | {_plain(o['recipe'])} | {o['epsilon']} |" for o in outcomes]
    if "drawn" in content:
        drawn = outcomes[content["drawn"]]
        lines += ["", f"Drawn: {_plain(drawn['recipe'])}; given that, ε = {drawn['epsilon']}."]
    return lines


def _audit(content: Mapping[str, Any]) -> list[str]:
    """What an attack has shown, where one was made."""
    if "audit" not in content:
        return []
    audit, found = content["audit"], content["auditFinding"]
    return [
        "## Attacked",
        "",
        f"An attack on {audit['trials']:,} simulated releases with one record and as many without it shows "
        f"ε ≥ {audit['lowerBound']} at the certificate's δ (confidence {audit['confidence']!r}, "
        f"{audit['estimator']} estimator, seed {audit['seed']}): {found['verdict']}, {found['tightness']} of what is "
        "certified. It is the release as stated above that was simulated, with the worst records; the model itself "
        "was not attacked.",
        "",
    ]


def _caveats(content: Mapping[str, Any]) -> list[str]:
    """One line for each doubt, with all it is about."""
    about: dict[str, list[str]] = {}
    for caveat in content["caveats"]:
        about.setdefault(caveat["text"], []).append(caveat["about"])
    return [f"- {_plain(', '.join(names))}: {_plain(text)}" for text, names in about.items()]


def _plain(text: str) -> str:
    """Text of others, so that it stays text in a table of Markdown."""
    one_line = UNSEEN.sub(lambda mark: ascii(mark[0])[1:-1], " ".join(str(text).split()))
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", one_line)
