"""What neither a model nor a history says, and somebody has to: asked for one by one, or listed all at once.

Guarantees: nothing is assumed that changes a number. What may stay unsaid (tuning, when to stop, losses) is a caveat.
Refuses (InvalidInputError): to go on while something is missing, or answers that are none of those accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from dpmerge.accounting.exposure import Adjacency
from dpmerge.errors import InvalidInputError
from dpmerge.terms.mechanism_schema import SamplingName
from dpmerge.terms.run_record import Ancestry, NoiseSource

Stated = dict[str, Any]
"""Option → what was said of it; None where nothing was."""


@dataclass(frozen=True)
class Question:
    """One thing to be said: the parameter, what it means, what is accepted, and when it is needed."""

    name: str
    words: str
    choices: tuple[str, ...] = ()
    kind: type = str
    needed: Callable[[Mapping[str, Any]], bool] = lambda _: True

    @property
    def option(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def accepted(self) -> str:
        said = {bool: "yes", int: "a whole number", float: "a number", str: "text"}[self.kind]
        return ", ".join(self.choices[:-1]) + f" or {self.choices[-1]}" if self.choices else said

    def parsed(self, text: str) -> Any:
        """An answer as the value it stands for."""
        text = text.strip()
        try:
            if self.kind is bool:
                return {"yes": True, "y": True, "no": False, "n": False}[text.lower()]
            value = self.kind(text)
        except (ValueError, KeyError):
            raise InvalidInputError(self.name, text, self.accepted) from None
        if not text or (self.choices and value not in self.choices):
            raise InvalidInputError(self.name, text, self.accepted)
        return value


Ask = Callable[[Question], str]
"""Puts a question to somebody, and gives the answer as it was typed."""

_SAMPLINGS: tuple[str, ...] = get_args(get_args(SamplingName)[0])
_STARTS: tuple[str, ...] = get_args(Ancestry.model_fields["start"].annotation)

QUESTIONS = (
    Question("dataset", "a name for the private data, yours; never a digest of it"),
    Question(
        "adjacency",
        "which data sets are neighbours: with one record exchanged, one more or less, or one emptied",
        tuple(adjacency.value for adjacency in Adjacency),
    ),
    Question(
        "noise_multiplier",
        "σ, the noise's standard deviation as a multiple of the clip norm; no history was found",
        kind=float,
        needed=lambda said: not said["histories"],
    ),
    Question("steps", "how many steps were taken", kind=int, needed=lambda said: not said["histories"]),
    Question(
        "sampling",
        "how batches were really drawn; a history does not say (Opacus accounts for poisson_sampling=False as if it "
        "were poisson)",
        _SAMPLINGS,
    ),
    Question(
        "sampling_rate",
        "the chance of a record to be in a batch",
        kind=float,
        needed=lambda said: not said["histories"] and said["sampling"] in ("poisson", None),
    ),
    Question(
        "steps_per_epoch",
        "how many batches a pass over the data has",
        kind=int,
        needed=lambda said: said["sampling"] == "shuffled",
    ),
    Question(
        "public_divisor",
        "is the number that the sum of gradients was divided by fixed, or made of the public number of records (under "
        "add_remove: a constant fixed without the data), and never of the batch that was drawn?",
        kind=bool,
    ),
    Question(
        "noise_source",
        "where the noise came from: the operating system, or a generator with a seed (torch.manual_seed; Hugging "
        "Face's Trainer sets 42 by itself); of unknown noise a run is never counted as independent of another",
        get_args(NoiseSource),
    ),
    Question("noise_seed", "the seed", kind=int, needed=lambda said: said["noise_source"] == "seeded"),
    Question("start", "what training started from; with unknown the run has no number", _STARTS),
    Question(
        "parent", "the private checkpoint it started from, as run@step", needed=lambda said: said["start"] == "private"
    ),
    Question("who", "who vouches for all this: a person or team"),
)


def answered(stated: Stated, ask: Ask | None) -> Stated:
    """All that has to be said; what is missing is asked for, or refused as one list."""
    said, missing = dict(stated), list[Question]()
    for question in QUESTIONS:
        if said[question.name] is None and question.needed(said):
            if ask is None:
                missing.append(question)
            else:
                said[question.name] = question.parsed(ask(question))
    if missing:
        listed = "; ".join(f"{each.option} ({each.words}: {each.accepted})" for each in missing)
        problem = f"not said: {listed}"
        raise InvalidInputError("import", None, "say all of it, or answer at a terminal", problem=problem)
    for problem_of in _contradictions(said):
        raise problem_of
    return said


def _contradictions(said: Stated) -> Iterator[InvalidInputError]:
    """What was said of nothing, and a divisor that nobody vouches for."""
    for question in QUESTIONS:
        if said[question.name] is not None and not question.needed(said):
            accepted = "nothing: what was found or said already makes it meaningless"
            yield InvalidInputError(question.name, said[question.name], accepted)
    if said["public_divisor"] is not True:
        accepted = (
            "yes: divided by the batch that was drawn, or under add_remove by a private number of records, a sum of "
            "clipped gradients has no known guarantee"
        )
        yield InvalidInputError("public_divisor", "no", accepted)
