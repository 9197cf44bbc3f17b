"""Certificates of versions 1 and 2: the records of their runs are in snake_case, all else in lowerCamelCase.

Guarantees: what is read means the same; `Predicate.require_version` sees that nothing later is read into them.
Refuses: field names of later versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpmerge.terms.documents import validated
from dpmerge.terms.run_record import RunRecord


def in_camel_case(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of such a certificate with its runs as they are written now."""
    terms = content.get("terms")
    if not isinstance(terms, dict) or not isinstance(terms.get("runs"), list):
        return dict(content)  # whoever reads it says what is wrong
    runs = [
        validated(RunRecord, run, f"terms.runs[{place}]", case="snake").document("camel")
        for place, run in enumerate(terms["runs"])
    ]
    return {**content, "terms": {**terms, "runs": runs}}
