"""Strict JSON documents: the one reader of every document a person may have written.

Guarantees: what is accepted has each field once, no unknown ones and the right types; the first problem is told in one
line that names the field, what stood there and what is accepted. A document has one case: certificates are written in
lowerCamelCase (in-toto's convention), everything else in snake_case, and one model serves both.
Refuses: bytes that are not UTF-8, broken or deeply nested JSON, duplicate fields, text that shows something else than
it says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from dpmerge.errors import InvalidInputError

Case = Literal["snake", "camel"]
"""How a document writes its fields."""

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
AnyText = Annotated[str, Field(min_length=1, max_length=500)]
Text = Annotated[str, Field(min_length=1, max_length=500, pattern="^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$")]
"""One line: it is printed, and must not look like a line of ours."""


class Strict(BaseModel):
    """A frozen piece of a document: unknown fields and values of another type are errors."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
    )

    def document(self, case: Case = "snake") -> dict[str, Any]:
        """As JSON values, without what is not stated."""
        if case == "camel":
            return self.model_dump(by_alias=True, exclude_none=True)
        return {_written(name): value for name, value in self.model_dump(exclude_none=True).items()}


Model = TypeVar("Model", bound=Strict)


def _written(name: str, case: Case = "snake", field: FieldInfo | None = None) -> str:
    """How a field is written; `schema_` stands for schema, a name that pydantic keeps for itself."""
    return name.removesuffix("_") if case == "snake" else (field and field.alias) or to_camel(name)


def strict_json(text: str | bytes, name: str) -> Any:
    """The value of JSON text in which no object has a field twice."""
    accepted = "one JSON object"
    try:
        # Left to itself the parser would guess at UTF-16 and accept surrogates.
        plain = text.decode("utf-8") if isinstance(text, bytes) else text
        return json.loads(plain, object_pairs_hook=without_duplicates)
    except InvalidInputError:
        raise
    except UnicodeDecodeError as error:
        found = f"bytes that are not UTF-8 ({error.reason})"
        raise InvalidInputError(name, text, "JSON text in UTF-8", found=found) from None
    except RecursionError:
        raise InvalidInputError(name, text, accepted, found="JSON nested too deeply") from None
    except ValueError as error:
        raise InvalidInputError(name, text, accepted, found=f"broken JSON ({error})") from None


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's fields, each of which may be named once, in text that can be written down."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise InvalidInputError(name, value, "each field once", found="the same field twice")
        if not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
            raise InvalidInputError(ascii(name), value, "Unicode text", found="half of a surrogate pair")
        fields[name] = value
    return fields


UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Controls, and marks that turn text round or that nobody sees. (Joiners are letters to some scripts, and are not.)"""


def require_seen(content: Any, place: str = "") -> None:
    """Refuse text, names of fields included, that would show something else than it says."""
    if isinstance(content, str):
        if UNSEEN.search(content):
            raise InvalidInputError(place, content, "text without control characters and marks that turn text round")
    elif isinstance(content, dict):
        for name, value in content.items():
            require_seen(name, place)
            require_seen(value, f"{place}.{name}" if place else name)
    elif isinstance(content, list):
        for number, value in enumerate(content):
            require_seen(value, f"{place}[{number}]")


def validated(model: type[Model], content: Any, name: str, *, case: Case = "snake") -> Model:
    """The content as a `model`, or the first thing wrong with it.

    Args:
        model: what the content has to be.
        content: JSON values.
        name: what an error calls the document as a whole.
        case: how the document writes its fields.

    Raises:
        InvalidInputError: naming the field, what stood there and what is accepted.
    """
    try:
        if case == "camel":
            return model.model_validate(content, by_alias=True, by_name=False)
        return model.model_validate(_renamed(model, content), by_alias=False, by_name=True)
    except ValidationError as error:
        raise _explained(error, model, name, case)[0] from None
    except RecursionError:
        raise InvalidInputError(name, content, "one JSON object", found="JSON nested too deeply") from None


def made(model: type[Model], **fields: Any) -> Model:
    """The model with these fields, or the first thing wrong with them, as `validated` says it.

    Raises:
        InvalidInputError: naming the field, its value and what is accepted.
    """
    try:
        return model(**fields)
    except ValidationError as error:
        raise _explained(error, model, model.__name__, "snake")[0] from None


def problems(model: type[Strict], content: Any, name: str) -> list[InvalidInputError]:
    """Everything that is wrong with the content, one error a field; rules across fields only once those are right."""
    try:
        model.model_validate(_renamed(model, content), by_alias=False, by_name=True)
    except InvalidInputError as error:
        return [error]
    except ValidationError as error:
        return _explained(error, model, name, "snake")
    except RecursionError:
        return [InvalidInputError(name, content, "one JSON object", found="JSON nested too deeply")]
    return []


def _renamed(model: type[Strict], content: Any) -> Any:
    """The content with its schema under the name that the model has for it."""
    if isinstance(content, dict) and "schema_" in model.model_fields:
        if "schema_" in content:  # it would be read beside the schema, or in its place
            raise InvalidInputError("schema_", content["schema_"], "schema", found="an unknown field")
        return {("schema_" if key == "schema" else key): value for key, value in content.items()}
    return content


def _explained(error: ValidationError, model: type[Strict], name: str, case: Case) -> list[InvalidInputError]:
    by_field: dict[str, list[_Place]] = {}
    for problem in error.errors(include_url=False):
        place = _Place(problem, model, case)
        by_field.setdefault(place.named, []).append(place)
    # Of a value that fits neither of two types the branch that got furthest says most.
    return [max(places, key=lambda place: place.depth).error(name) for places in by_field.values()]


class _Place:
    """Where in a document a problem is, in the words of the model that describes it."""

    def __init__(self, problem: Any, model: type[Strict], case: Case) -> None:
        self.problem = problem
        self.case: Case = case
        self.path = ""
        self.named = ""  # the path as far as a field has a name
        self.depth = 0
        self.owners: list[type[Strict]] = [model]
        self.field: FieldInfo | None = None
        self.in_list = False
        for part in problem["loc"]:
            self._enter(part)

    def _enter(self, part: int | str) -> None:
        if isinstance(part, int):
            self.path += f"[{part}]"
            self.depth += 1
            self.in_list = True
            return
        part = _written(part) if self.case == "snake" else part
        fields = self._fields()
        tagged = [o for o in self.owners if _tag(o) == part]
        unknown = self.problem["type"] == "extra_forbidden" and part == self.problem["loc"][-1]
        if part in fields and not (tagged and len(self.owners) > 1):
            self.field = fields[part]
            self.owners = list(models_in(self.field.annotation))
            self.in_list = False
            self._name(part)
        elif tagged and not (unknown and len(self.owners) == 1):
            self.owners = tagged
        elif unknown:
            self._name(part)

    def _name(self, part: str) -> None:
        self.path += f".{part}" if self.path else part
        self.named = self.path

    def error(self, name: str) -> InvalidInputError:
        value, kind = self.problem["input"], self.problem["type"]
        if kind == "extra_forbidden":
            return InvalidInputError(self.path, value, self._known(), found="an unknown field")
        accepted = str(self.field.description) if self.field is not None else "one JSON object with " + self._known()
        if self.owners and self.in_list and self.field is not None:
            accepted = "an object with " + self._known()
        if kind == "missing":
            return InvalidInputError(self.path, value, accepted, found="nothing")
        if kind == "value_error":
            # A rule that concerns several fields explains itself.
            reason = self.problem["ctx"]["error"]
            if isinstance(reason, InvalidInputError):
                return reason.within(self.path) if self.path else reason
        return InvalidInputError(self.path or name, value, accepted)

    def _known(self) -> str:
        return ", ".join(self._fields())

    def _fields(self) -> dict[str, FieldInfo]:
        """The fields that may stand here, as they are written."""
        named = ((name, field) for owner in self.owners for name, field in owner.model_fields.items())
        return {_written(name, self.case, field): field for name, field in named}


def _tag(model: type[Strict]) -> str | None:
    """The value of `kind` by which a union tells its members apart, if this is such a member."""
    kind = model.model_fields.get("kind")
    values = get_args(kind.annotation) if kind is not None else ()
    return str(values[0]) if len(values) == 1 else None


MISSING: Any = type("Missing", (), {"__repr__": lambda _: "nothing"})()
"""Stands where a JSON value has no such field."""


def models_in(annotation: Any) -> Iterator[type[Strict]]:
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def differences(before: Any, after: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two JSON values differ, in order: the place, and what stands there in each (`MISSING` where nothing does).

    1 and 1.0 are the same number; True is none.
    """
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted({*before, *after}):
            inside = f"{place}.{name}" if place else str(name)
            yield from differences(before.get(name, MISSING), after.get(name, MISSING), inside)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from differences(old, new, f"{place}[{number}]")
    elif isinstance(before, bool) != isinstance(after, bool) or before != after:
        yield place, before, after


def schema_of(model: type[Strict], schema: str, title: str, *, case: Case = "snake") -> dict[str, Any]:
    """The JSON Schema of a document; what it cannot say (rules across fields) is checked when it is read.

    Args:
        model: what the document is.
        schema: the schema's id, as the document names it.
        title: what it is, in words.
        case: how the document writes its fields.
    """
    made = model.model_json_schema(by_alias=case == "camel")
    if case == "snake" and "schema_" in made["properties"]:
        made["properties"] = {_written(name): value for name, value in made["properties"].items()}
        made["required"] = [_written(name) for name in made["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": schema,
        "title": title,
        **{name: value for name, value in made.items() if name != "title"},
    }
