"""Bodies of entries as version 0.1 wrote them: in lowerCamelCase where ledgers now write snake_case.

Guarantees: what is read means the same; the text that an entry's hash covers is never touched.
Refuses (ValueError): a field in both spellings.
"""

from __future__ import annotations

from typing import Any

_RENAMED = {
    "releaseNoise": "release_noise",
    "vouchedBy": "vouched_by",
    "disjointVouchedBy": "disjoint_vouched_by",
    "signedBy": "signed_by",
    "spentBefore": "spent_before",
    "releasesBefore": "releases_before",
    "revealDraw": "reveal_draw",
    "certificateVersion": "certificate_version",
    "unknownStart": "unknown_start",
    "lowerBound": "lower_bound",
}
_NAMES_ARE_DATA = frozenset({"identities", "marks", "files", "inputs", "asked", "tools"})
"""Objects whose fields are names of runs, files or options, and stay as they are."""


def in_snake_case(content: Any) -> Any:
    """The content with its fields as they are written now."""
    if isinstance(content, dict):
        if twice := [name for name in content if _RENAMED.get(name) in content]:
            raise ValueError(f"{twice[0]} stands beside {_RENAMED[twice[0]]}")
        return {
            _RENAMED.get(name, name): value if name in _NAMES_ARE_DATA else in_snake_case(value)
            for name, value in content.items()
        }
    return [in_snake_case(each) for each in content] if isinstance(content, list) else content
