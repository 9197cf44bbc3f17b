"""The JSON Schemas of every document dpmerge writes, by name."""

from __future__ import annotations

from typing import Any

from dpmerge.certificate.predicate import certificate_schema
from dpmerge.certificate.revocation_list import revocations_schema
from dpmerge.errors import InvalidInputError
from dpmerge.ledger.ledger_schema import ledger_schema
from dpmerge.planning.plan_file import plan_schema
from dpmerge.portfolio.manifest import json_schema as run_schema

SCHEMAS = {
    "run": run_schema,
    "plan": plan_schema,
    "certificate": certificate_schema,
    "ledger": ledger_schema,
    "revocations": revocations_schema,
}


def json_schema(document: str = "run") -> dict[str, Any]:
    """The JSON Schema of a document; what it cannot say (rules across fields) is checked when the document is read.

    Args:
        document: `run` (a manifest), `plan`, `certificate` (the predicate inside it), `ledger` (an export) or
            `revocations` (a list of them).

    Raises:
        InvalidInputError: there is no such document.

    >>> json_schema("plan")["$id"], json_schema("certificate")["$id"]
    ('dpmerge/plan/v1', 'urn:dpmerge:privacy-certificate:v3')
    """
    if document not in SCHEMAS:
        raise InvalidInputError("document", document, ", ".join(SCHEMAS))
    return SCHEMAS[document]()
