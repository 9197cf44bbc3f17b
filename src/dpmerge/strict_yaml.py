"""Small YAML files that a person wrote, read without trusting them.

Guarantees: what is read is what the text says: no aliases (which can grow without bound), no tags, no field twice.
Refuses (InvalidInputError): anything else, and files above a limit.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from dpmerge.errors import InvalidInputError
from dpmerge.files import read_bytes

LARGEST_YAML = 100_000
"""Bytes."""


class PlainLoader(yaml.SafeLoader):
    """YAML without aliases (which can grow without bound) and without duplicate keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise InvalidInputError("listing", "*", "YAML without aliases", found="an alias")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        counted = Counter(self.construct_object(key, deep=True) for key, _ in node.value)
        if repeated := [key for key, times in counted.items() if times > 1]:
            raise InvalidInputError(str(repeated[0]), repeated[0], "each field once", found="the same field twice")
        return super().construct_mapping(node, deep)


def read_yaml(file: Path, name: str, *, loader: type[PlainLoader] = PlainLoader, limit: int = LARGEST_YAML) -> Any:
    """What a small YAML file says."""
    text = read_bytes(file, limit, "a readable YAML file")
    try:
        # A SafeLoader, narrowed further.
        return yaml.load(text, Loader=loader)  # noqa: S506
    except InvalidInputError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, LookupError, AttributeError) as error:
        # What a scalar with a tag of the wrong kind raises is up to PyYAML's constructors.
        reason = " ".join(str(error).split())[:120]
        raise InvalidInputError(name, None, "one YAML object", found=f"broken YAML ({reason})") from None
