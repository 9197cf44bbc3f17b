"""Certificates as somebody forges them who has a public one and this package, and no secret."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpmerge.certificate.commitments import CertifiedFile
from dpmerge.certificate.dsse import CERTIFICATE_NAME, Certificate, certificate_bytes, read_certificate
from dpmerge.certificate.keys import read_private
from dpmerge.certificate.model_card import CARD_NAME, model_card
from dpmerge.certificate.old_versions import in_camel_case
from dpmerge.certificate.predicate import NEWEST, Predicate, Version
from dpmerge.terms.documents import validated

EXAMPLES = Path(__file__).parents[2] / "examples"

FOREIGN = "ab" * 16
"""The id of a ledger that nobody has."""


def example_of_0_1(name: str, home: Path) -> Path:
    """A copy of an example whose manifests state no more than version 0.1 knew, so that version 1 can speak of it."""
    shutil.copytree(EXAMPLES / name, home)
    for file in home.glob("*/privacy.json"):
        facts = json.loads(file.read_text())
        for later in ("stopping", "schedule", "record_losses"):
            del facts[later]
        file.write_text(json.dumps(facts))
    return home


def certificate_in(folder: Path) -> Certificate:
    return read_certificate((folder / CERTIFICATE_NAME).read_bytes())


def forged(
    honest: Path,
    out: Path,
    change: Callable[[dict[str, Any]], object] = lambda declared: None,
    *,
    files: Mapping[str, bytes] | None = None,
    version: Version = NEWEST,
    key: Path | None = None,
) -> Path:
    """Another certificate made of an honest one: changed words, other files, figures and card that fit them."""
    shutil.copytree(honest, out)
    for name, content in (files or {}).items():
        (out / name).write_bytes(content)
    known = certificate_in(honest)
    fields = {field.alias or name for name, field in Predicate.model_fields.items()}
    declared = {name: value for name, value in known.content.items() if name in fields}
    if version == 1:
        declared = {name: value for name, value in declared.items() if name not in ("binding", "drawNumber")}
    if known.version < 3:
        declared = in_camel_case(declared)
    change(declared)
    subjects = {name: described(out / name) for name in {*known.subjects, *(files or {})}}
    signer = None if key is None else read_private(key)
    text = certificate_bytes(validated(Predicate, declared, "forged", case="camel"), subjects, signer, version)
    (out / CERTIFICATE_NAME).write_bytes(text)
    content = read_certificate(text)
    (out / CARD_NAME).write_text(model_card(content.content, content.files, content.version))
    return out


def described(file: Path) -> CertifiedFile:
    content = file.read_bytes()
    return CertifiedFile(hashlib.sha256(content).hexdigest(), len(content))
