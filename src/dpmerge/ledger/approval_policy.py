"""The policy of a ledger: how many people stand behind what cannot be taken back, and by which keys they are known.

Guarantees: a policy that asks for more than one person names at least so many, each once and with a key of their own:
one name with two keys, or two names with one key, would be one person counted twice.
Refuses: everything else, keys that are not ed25519, and approvals that never expire.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from securesystemslib.signer import SSlibKey

from dpmerge.errors import InvalidInputError

DAYS = 7
"""For so long a request waits, unless the policy says otherwise."""
MOST_DAYS = 90
_LONGEST_NAME = 200


@dataclass(frozen=True)
class Person:
    """Somebody whose word counts: a name, and the ed25519 public key as 64 hexadecimal digits."""

    name: str
    public: str

    @property
    def key(self) -> SSlibKey:
        return _key(self.public, self.name)

    @property
    def key_id(self) -> str:
        return str(self.key.keyid)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """So many people, the one who asks included, stand behind a final release, a cap, a vow or a release given up.

    `approvals` is that number: 1 asks for nobody else. A request is open for `days`.
    """

    approvals: int = 1
    people: tuple[Person, ...] = ()
    days: int = DAYS

    def __post_init__(self) -> None:
        _whole("approvals", self.approvals, 1, None)
        _whole("days", self.days, 1, MOST_DAYS)
        names: dict[str, str] = {}
        keys: dict[str, str] = {}
        for person in self.people:
            name = person.name
            if not (name.isprintable() and name.strip() == name and 0 < len(name) <= _LONGEST_NAME):
                raise InvalidInputError("person", name, f"a name of 1 to {_LONGEST_NAME} printable characters")
            same = unicodedata.normalize("NFKC", name).casefold()
            for known, of, what in ((names, same, "has two keys"), (keys, person.key_id, "has the key of")):
                if of in known:
                    problem = f"person: {name} {what}{' ' + known[of] if known is keys else ''}, and would count twice"
                    raise InvalidInputError("person", name, "name each person once, with one key", problem=problem)
                known[of] = name
        if self.approvals > 1 and len(self.people) < self.approvals:
            problem = f"approvals: {self.approvals} people are asked for, and {len(self.people)} named"
            remedy = "name them all, person NAME=PUBLIC-KEY (--person)"
            raise InvalidInputError("approvals", self.approvals, remedy, problem=problem)

    @property
    def needs_others(self) -> bool:
        return self.approvals > 1

    def by_key(self, key_id: str) -> Person | None:
        return next((person for person in self.people if person.key_id == key_id), None)

    def names(self, key_ids: Iterable[str]) -> list[str]:
        """Whose keys these are; a key that is nobody's any more, by the start of its id."""
        found = ((self.by_key(each), each) for each in key_ids)
        return [each[:16] if person is None else person.name for person, each in found]

    def body(self) -> dict[str, Any]:
        """As an entry states it. People are a list: their names are data, and no fields."""
        people = [{"name": person.name, "key": person.key_id, "public": person.public} for person in self.people]
        return {"approvals": self.approvals, "people": people, "days": self.days}

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Policy:
        """The policy that an entry states."""
        people = tuple(Person(each["name"], each["public"]) for each in body["people"])
        policy = cls(approvals=body["approvals"], people=people, days=body["days"])
        if [person.key_id for person in people] != [each["key"] for each in body["people"]]:
            raise InvalidInputError("people", None, "the id of each key", found="the id of another one")
        return policy


def _whole(field: str, value: object, least: int, most: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        raise InvalidInputError(field, value, f"a whole number from {least}{f' to {most}' if most else ' on'}")


@lru_cache(maxsize=1000)
def _key(public: str, name: str) -> SSlibKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    # One key has one text: written otherwise, it would be another person's.
    if not re.fullmatch("[0-9a-f]{64}", public):
        raise InvalidInputError("key", name, "an ed25519 public key as 64 hexadecimal digits", found="something else")
    return SSlibKey.from_crypto(Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)))


NOBODY_ELSE = Policy()
"""Of a ledger that has no policy."""
