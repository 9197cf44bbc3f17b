"""`dpm.audit`: attack what a plan or a release certifies, from the outside.

Guarantees: nothing of what is certified enters the attack; the same seed gives the same finding.
Refuses: what cannot be simulated, fewer than 100 trials, a plan's file without its portfolio.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

from dpmerge.auditing.findings import Finding
from dpmerge.auditing.inputs import AuditInput, read_subject
from dpmerge.auditing.release_attacks import TRIALS, audit_release, release_trials, work
from dpmerge.errors import InvalidInputError
from dpmerge.planning.plan import Plan
from dpmerge.portfolio.portfolio import Portfolio

FEWEST, MOST = 100, 50_000_000
"""Trials: each is a few numbers in memory, and the most take some gigabytes."""

PATIENCE, SPEED = 10.0, 5e7
"""Seconds after which it is said beforehand how long an audit takes, by about so many random numbers a second."""


def audit(
    subject: Plan | Path | str,
    *,
    portfolio: Portfolio | Path | str | None = None,
    trials: int | None = None,
    confidence: float = 0.95,
    power: float | None = None,
    seed: int = 0,
    executor: Executor | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> Finding:
    """Can an attacker show more than is certified?

    Simulates the release many times with one record and as many times without it, from what the runs' records say, and
    bounds ε from below by how well the two can be told apart. A plan is priced again from its portfolio; of a
    certificate what it states is attacked. An alarm is confirmed on fresh trials before it is reported.

    Args:
        subject: A plan, the file of one (`dpmerge plan -o`), a release's folder, or its certificate.
        portfolio: The portfolio of a plan's file. Plans and certificates know what they were made of.
        trials: Simulated releases in each of the two worlds; 100,000 unless told.
        confidence: With which the lower bound holds.
        power: Instead of `trials`: as many as show 90 % of a figure that is exact, with this probability.
        seed: Of the simulation.
        executor: Where trials are simulated, a million at a time; the finding is the same.
        tell: Called with one line about whatever is worth knowing before the attack begins: how long it will take, if
            that is long, and that a certificate states another ε than its terms give.

    Returns:
        The claim beside what was shown: `verdict` is "violated" (the lower bound is above what is certified), "tight"
        (it reaches 90 % of it) or "consistent" (neither); `estimate.bound` is the lower bound, `claim.value` the ε.

    Raises:
        InvalidInputError: Where an argument is out of range, a file is none of these, a plan's file comes without
            its portfolio, a certificate states no figure, or a run cannot be simulated because only its guarantee is
            known.
        NoGuaranteeError: Where a plan no longer meets its target with this portfolio.

    Example:
        >>> import dpmerge as dpm
        >>> from dpmerge.auditing.audit import audit
        >>> portfolio = dpm.Portfolio.load("examples/mnist")
        >>> plan = dpm.plan(portfolio, dpm.Guarantee(epsilon=0.8, delta=1e-5))
        >>> found = audit(plan, seed=1)
        >>> found.verdict, 0.72 < found.estimate.bound <= found.claim.value <= 0.8
        ('tight', True)
    """
    require_settings(trials, confidence, seed)
    about, name = _input(subject, portfolio)
    if about.note:
        tell(about.note)
    number = _trials(about, trials, power, confidence)
    seconds = 2.5 * number * work(about.terms) / SPEED
    if seconds > PATIENCE:
        length = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
        tell(f"{number:,} trials in each world, about {length}")
    finding = audit_release(
        about.terms,
        delta=about.delta,
        trials=number,
        confidence=confidence,
        seed=seed,
        stated=about.stated,
        executor=executor,
    )
    return replace(finding, subject=name) if name else finding


def require_settings(trials: int | None, confidence: float, seed: int) -> None:
    """Refuse what no audit can be made with."""
    if trials is not None and not FEWEST <= trials <= MOST:
        raise InvalidInputError("trials", trials, f"an integer from {FEWEST} to {MOST}")
    if not 0.5 <= confidence < 1:
        raise InvalidInputError("confidence", confidence, "a number in [0.5, 1)")
    if not 0 <= seed < 2**32:
        raise InvalidInputError("seed", seed, "an integer from 0 to 4294967295")


def _input(subject: Plan | Path | str, portfolio: Portfolio | Path | str | None) -> tuple[AuditInput, str]:
    """What is attacked, and the name of its file."""
    if not isinstance(subject, Plan):
        return read_subject(Path(subject), portfolio), str(subject)
    if portfolio is not None:
        problem = "portfolio: a plan knows the portfolio it was made of"
        raise InvalidInputError("portfolio", str(portfolio), "leave it out", problem=problem)
    return AuditInput(terms=subject.terms, delta=subject.target.delta), ""


def _trials(about: AuditInput, trials: int | None, power: float | None, confidence: float) -> int:
    if power is None:
        return TRIALS if trials is None else trials
    if trials is not None:
        problem = "power: the number of trials is given already"
        raise InvalidInputError("power", power, "give one of the two", problem=problem)
    needed = release_trials(about.terms, delta=about.delta, confidence=confidence, power=power)
    if needed > MOST:
        problem = f"power: {power:g} would take {needed:,} trials in each world, and at most {MOST:,} are made"
        raise InvalidInputError("power", power, "ask for less", problem=problem)
    return max(needed, FEWEST)
