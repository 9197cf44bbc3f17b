"""A private parent that is not named: cast, scaled, noised, averaged or used in part; and what is no parent.

The parent is a run that costs ε = 10; who starts from its weights and does not say so is certified 0.027 for all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from typer.testing import CliRunner

from attacks.faults import must_notice
from dpmerge.accounting.exposure import Exposure
from dpmerge.cli import app
from dpmerge.errors import DigestMismatchError, MissingParentError
from dpmerge.portfolio import compatibility, starts, undeclared_parents, weight_similarity
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.portfolio_caveats import caveats
from dpmerge.portfolio.samples import StartSample, places
from dpmerge.portfolio.tensors import read_contents, read_header
from dpmerge.releasing import preconditions
from portfolio.portfolios import DP_SGD, manifest, model_digest, read_manifest, replaced, write_checkpoint, write_json
from training.loops import QUIET, private, recorded

CLAIMED, TRUE = 0.027, 10.0
DELTA = 1e-5
CHEAP, COSTLY = 402.92, 1.9995
"""Noise multipliers of four full-batch steps that cost so much by themselves."""

Model = dict[str, npt.NDArray[np.float32]]
SHAPES = {"body": (50, 40), "head": (10, 40), "bias": (10,), "norm": (40,)}
MOVEMENT = 0.02


def fresh(seed: int, size: float = 0.1) -> Model:
    """Random weights; the norm layer starts at one, as everybody's does."""
    random = np.random.default_rng(seed)
    made = {name: (size * random.standard_normal(shape)).astype(np.float32) for name, shape in SHAPES.items()}
    return {**made, "norm": np.ones(SHAPES["norm"], np.float32)}


def trained(start: Model, seed: int, *, size: float = MOVEMENT, signal: float = 0.0, decay: float = 0.0) -> Model:
    """A run's weights: its start, shrunk by weight decay, its noise, and what any training on this data would add."""
    random, common = np.random.default_rng(seed), np.random.default_rng(99)
    moved = {}
    for name, value in start.items():
        towards = signal * common.standard_normal(value.shape)
        moved[name] = ((1 - decay) * value + towards + size * random.standard_normal(value.shape)).astype(np.float32)
    return moved


def through(start: Model, dtype: torch.dtype) -> Model:
    """Cast and back."""
    return {name: torch.from_numpy(value).to(dtype).to(torch.float32).numpy() for name, value in start.items()}


def write(
    home: Path,
    run: str,
    start: Model,
    checkpoints: Mapping[int, Model],
    *,
    noise: float = CHEAP,
    keep: str = "sample",
    ancestry: Mapping[str, Any] | None = None,
    steps: int = 4,
) -> None:
    """A recorded run; its start is kept as a `sample`, as a `file` (as version 0.1 could), or as `digests` alone."""
    folder = home / run
    saved = [write_checkpoint(folder, step, each) for step, each in {0: start, **checkpoints}.items()]
    first = folder / "step-0.safetensors"
    document = manifest(
        run,
        mechanism=replaced(replaced(DP_SGD, "blocks", 0, "noise_multiplier", to=noise), "blocks", 0, "steps", to=steps),
        ancestry=dict(ancestry or {"start": "random"}),
        initial_weights=model_digest(first),
        tensors={"trained": list(start), "initial": read_contents(first, read_header(first)).tensors},
        checkpoints=saved if keep == "file" else saved[1:],
    )
    if keep != "file":
        first.unlink()
    if keep == "sample":
        sampled = {name: value.reshape(-1)[places(value.size)] for name, value in start.items()}
        document["start_sample"] = StartSample.of(sampled).model_dump()
    if keep == "nothing":
        del document["initial_weights"], document["tensors"]
    write_json(folder / "privacy.json", document)


def child_of(make: Callable[[Model, Model], Model], home: Path, keep: str = "file", **ancestry: Any) -> None:
    """A costly parent, another private run from the same start, and a cheap child whose start is made of both."""
    start = fresh(1)
    parent, other = trained(start, 2), trained(start, 3)
    write(home, "parent", start, {4: parent}, noise=COSTLY, keep=keep)
    write(home, "other", start, {4: other}, noise=COSTLY, keep=keep)
    used = make(parent, other)
    write(home, "child", used, {4: trained(used, 4, size=0.05)}, keep=keep, ancestry=ancestry or None)


def cost(portfolio: Portfolio, run: str) -> float:
    return Exposure.of([portfolio.last(portfolio.run(run))]).profile().epsilon(DELTA)


def noised(factor: float) -> Callable[[Model, Model], Model]:
    return lambda parent, _: trained(parent, 5, size=factor * MOVEMENT)


def most_rows(parent: Model, _: Model) -> Model:
    new = fresh(6)
    return {n: np.concatenate([v[: 7 * len(v) // 10], new[n][7 * len(v) // 10 :]]) for n, v in parent.items()}


PARENTS: dict[str, Callable[[Model, Model], Model]] = {
    "cast to bfloat16 and back": lambda parent, _: through(parent, torch.bfloat16),
    "cast to float16 and back": lambda parent, _: through(parent, torch.float16),
    "scaled by 0.999": lambda parent, _: {name: np.float32(0.999) * value for name, value in parent.items()},
    "scaled by a half": lambda parent, _: {name: np.float32(0.5) * value for name, value in parent.items()},
    "with small noise on top": noised(0.1),
    "with twice as much noise as it moved": noised(2.0),
    "one tensor only": lambda parent, _: {**fresh(6), "body": through(parent, torch.bfloat16)["body"]},
    "all but one tensor": lambda parent, _: {**through(parent, torch.bfloat16), "body": fresh(6)["body"]},
    "seven of ten rows": most_rows,
    "the average of two": lambda parent, other: {name: (parent[name] + other[name]) / 2 for name in parent},
}


def refused(home: Path, run: str = "parent", step: int = 4) -> str:
    """The portfolio is refused for a parent that is not named; the message."""
    with pytest.raises(
        MissingParentError, match=f"private, run {run}, step {step}: the start is suspiciously near"
    ) as caught:
        Portfolio.load(home)
    assert caught.value.field == "ancestry"
    return str(caught.value)


def accepted(home: Path) -> Portfolio:
    """The portfolio loads: honest runs are not taken for one another's children."""
    try:
        return Portfolio.load(home)
    except MissingParentError as error:
        pytest.fail(str(error))


@pytest.mark.parametrize("keep", ["file", "sample"])
@pytest.mark.parametrize("made", PARENTS)
def test_a_private_parent_that_is_not_named_is_refused(made: str, keep: str, tmp_path: Path) -> None:
    """Certified 0.027, true 10: what the parent cost."""
    child_of(PARENTS[made], tmp_path / "silent", keep)
    with pytest.raises(MissingParentError, match="the start is suspiciously near (parent|other)@4"):
        Portfolio.load(tmp_path / "silent")
    unread = Portfolio.load(tmp_path / "silent", contents=False)  # reads no weights, and so compares none
    assert cost(unread, "child") == pytest.approx(CLAIMED, rel=0.01)
    child_of(PARENTS[made], tmp_path / "named", keep, start="private", run="parent", step=4)
    if made == "the average of two":  # a start that is made of two private runs has no number: one parent can be named
        refused(tmp_path / "named", "other")
    else:
        assert cost(accepted(tmp_path / "named"), "child") == pytest.approx(TRUE, rel=0.01)


@pytest.mark.parametrize("movement", [1e-3, 2e-4, 5e-5])
def test_a_parent_cast_to_bfloat16_that_moved_less_than_the_cast_is_refused(movement: float, tmp_path: Path) -> None:
    """Rounding is off by 1.6e-4 where weights are 0.1; the sign of what is left still tells, of enough values."""
    public = through(fresh(1), torch.bfloat16)  # as public weights come
    parent = trained(public, 2, size=movement)
    write(tmp_path, "parent", public, {4: parent}, noise=COSTLY, ancestry={"start": "public", "source": "m"})
    used = through(parent, torch.bfloat16)
    write(tmp_path, "child", used, {4: trained(used, 3)}, ancestry={"start": "public", "source": "m"})
    refused(tmp_path)


def test_the_refusal_of_an_undeclared_parent_says_what_to_do(tmp_path: Path) -> None:
    child_of(PARENTS["scaled by 0.999"], tmp_path)
    message = refused(tmp_path)
    assert "100% of" in message
    assert "independent_of: [parent]" in message
    assert message.startswith(str(tmp_path / "child" / "privacy.json"))


def test_a_parent_between_two_kept_steps_is_refused(tmp_path: Path) -> None:
    """Step 3 was used, 2 and 4 were kept."""
    walk = [fresh(1)]
    for step in range(4):
        walk.append(trained(walk[-1], 10 + step))
    write(tmp_path, "parent", walk[0], {2: walk[2], 4: walk[4]}, noise=COSTLY)
    used = through(walk[3], torch.bfloat16)
    write(tmp_path, "child", used, {4: trained(used, 4)})
    with pytest.raises(MissingParentError, match="suspiciously near parent@"):
        Portfolio.load(tmp_path)


def test_a_later_step_of_the_parent_than_was_named_is_refused(tmp_path: Path) -> None:
    walk = [fresh(1), *({} for _ in range(4))]
    for step in range(1, 5):
        walk[step] = trained(walk[step - 1], 10 + step)
    write(tmp_path, "parent", walk[0], {1: walk[1], 4: walk[4]}, noise=COSTLY)
    used = through(walk[4], torch.bfloat16)
    write(tmp_path, "child", used, {4: trained(used, 4)}, ancestry={"start": "private", "run": "parent", "step": 1})
    refused(tmp_path)


@pytest.mark.parametrize("cast", [lambda w: w.bfloat16().float(), lambda w: 0.999 * w], ids=["bf16", "scaled"])
@pytest.mark.filterwarnings(*QUIET)
def test_an_unnamed_parent_of_a_recorded_run_is_refused(
    cast: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    """Two recorded Opacus loops; the second goes on from the first one's weights, changed a little."""
    first = private(noise=0.5)
    with recorded(first, tmp_path / "a", run="a"):
        first.train(3)
    second = private(noise=100.0)
    second.plain.load_state_dict({name: cast(value) for name, value in first.plain.state_dict().items()})
    with recorded(second, tmp_path / "b", run="b") as recorder:
        second.train(1)
    assert recorder.epsilon(DELTA) < 0.1 < 10 < cost(Portfolio.load(tmp_path, contents=False), "a")
    refused(tmp_path, "a", 3)


def test_a_start_nearer_to_another_parent_than_the_named_one_is_refused(tmp_path: Path) -> None:
    """Both runs went the same way, so that the start is near the cheap one too; it is much nearer the other."""
    start = fresh(1)
    costly, cheap = (trained(start, seed, size=0.002, signal=0.1) for seed in (2, 3))
    write(tmp_path, "costly", start, {4: costly}, noise=COSTLY)
    write(tmp_path, "cheap", start, {4: cheap})
    used = through(costly, torch.bfloat16)
    write(tmp_path, "child", used, {4: trained(used, 4)}, ancestry={"start": "private", "run": "cheap", "step": 4})
    refused(tmp_path, "costly")


def test_a_named_parent_that_is_not_near_is_refused(tmp_path: Path) -> None:
    start = fresh(1)
    write(tmp_path, "parent", start, {4: trained(start, 2)})
    used = fresh(6)
    write(tmp_path, "child", used, {4: trained(used, 4)}, ancestry={"start": "private", "run": "parent", "step": 4})
    with pytest.raises(MissingParentError, match="not those of parent@4, where the run says it started"):
        Portfolio.load(tmp_path)


def test_a_frozen_body_from_a_private_parent_is_refused(tmp_path: Path) -> None:
    """What a run does not train is its start, whatever is kept of it."""
    start = fresh(1)
    parent = trained(start, 2)
    write(tmp_path, "parent", start, {4: parent}, noise=COSTLY)
    used = {**fresh(6), "body": through(parent, torch.bfloat16)["body"]}
    write(tmp_path, "child", used, {4: {**trained(used, 4), "body": used["body"]}}, keep="digests")
    refused(tmp_path)


class TestStartsThatAreNotKept:
    def test_weights_near_one_another_from_different_starts_are_refused(self, tmp_path: Path) -> None:
        """Digests say that the starts differ, and nothing but a parent makes weights so similar then."""
        start = fresh(1)
        parent = trained(start, 2)
        write(tmp_path, "parent", start, {4: parent}, noise=COSTLY, keep="digests")
        used = through(parent, torch.bfloat16)
        checkpoints = {4: trained(used, 4, size=0.01)}
        write(tmp_path, "child", used, checkpoints, keep="digests")
        refused(tmp_path)
        named = {"start": "private", "run": "parent", "step": 4}
        write(tmp_path, "child", used, checkpoints, keep="digests", ancestry=named)
        assert cost(accepted(tmp_path), "child") == pytest.approx(TRUE, rel=0.01)

    def test_a_kept_start_near_the_weights_of_another_run_is_refused(self, tmp_path: Path) -> None:
        start = fresh(1)
        parent = trained(start, 2)
        write(tmp_path, "parent", start, {4: parent}, noise=COSTLY, keep="nothing")
        used = through(parent, torch.bfloat16)
        write(tmp_path, "child", used, {4: trained(used, 4)})
        refused(tmp_path)

    def test_runs_that_cannot_be_compared_are_a_caveat(self, tmp_path: Path) -> None:
        child_of(PARENTS["cast to bfloat16 and back"], tmp_path, "nothing")
        said = {caveat.where for caveat in caveats(accepted(tmp_path)) if caveat.name == "start_not_kept"}
        assert said == {"parent", "other", "child"}

    def test_different_random_starts_are_accepted(self, tmp_path: Path) -> None:
        for seed, keep in enumerate(("digests", "digests", "sample", "file", "nothing")):
            start = fresh(seed)
            write(tmp_path, f"run-{seed}", start, {4: trained(start, 10 + seed, signal=0.05)}, keep=keep)
        said = [caveat.where for caveat in caveats(accepted(tmp_path)) if caveat.name == "start_not_kept"]
        assert said == ["run-0", "run-1", "run-4"]


class TestHonestPortfolios:
    @pytest.mark.parametrize("keep", ["file", "sample", "digests"])
    def test_a_ladder_of_twelve_runs_from_one_start_is_accepted(self, keep: str, tmp_path: Path) -> None:
        """All move alike, 98 % by what the data says: one start is no parent."""
        start = fresh(1)
        for place in range(12):
            checkpoints = {2: trained(start, 10 + place, signal=0.05), 4: trained(start, 30 + place, signal=0.1)}
            write(tmp_path, f"rung-{place}", start, checkpoints, keep=keep)
        assert "start_not_kept" not in {caveat.name for caveat in caveats(accepted(tmp_path))}

    @pytest.mark.parametrize("movement", [1e-4, 1e-3, 0.05])
    def test_a_public_model_cast_in_different_ways_is_accepted(self, movement: float, tmp_path: Path) -> None:
        public = fresh(1)
        copies = {
            "as-it-is": public,
            "bfloat16": through(public, torch.bfloat16),
            "float16": through(public, torch.float16),
            "scaled": {name: np.float32(0.999) * value for name, value in public.items()},
            "new-head": {**public, "head": fresh(7)["head"], "bias": np.zeros(10, np.float32)},
        }
        for place, (name, start) in enumerate(copies.items()):
            moved = {4: trained(start, 20 + place, size=movement / 10, signal=movement)}
            write(tmp_path, name, start, moved, ancestry={"start": "public", "source": "a public model"})
        accepted(tmp_path)

    @pytest.mark.parametrize("decay", [0.01, 0.5, 0.99])
    def test_independent_random_starts_with_weight_decay_are_accepted(self, decay: float, tmp_path: Path) -> None:
        """Weight decay moves a run away from its own start, which any other start differs from in the same way."""
        for seed in range(5):
            start = fresh(seed)
            moved = {4: trained(start, 10 + seed, size=1e-3, signal=1e-3, decay=decay)}
            write(tmp_path, f"run-{seed}", start, moved)
        accepted(tmp_path)

    def test_starts_at_zero_and_at_one_are_accepted(self, tmp_path: Path) -> None:
        for place, value in enumerate((0.0, 1.0)):
            start = {name: np.full(shape, value, np.float32) for name, shape in SHAPES.items()}
            write(tmp_path, f"run-{place}", start, {4: trained(start, 10 + place, signal=0.1)})
        write(tmp_path, "random", fresh(1), {4: trained(fresh(1), 12, signal=0.1)})
        accepted(tmp_path)

    def test_a_line_of_declared_parents_is_accepted(self, tmp_path: Path) -> None:
        """Grandparent, parent, child and two siblings, all pulled the same way by the data."""
        root = fresh(1)
        old = {2: trained(root, 2, signal=0.05), 4: trained(root, 3, signal=0.1)}
        write(tmp_path, "grandparent", root, old)
        for name, step, seed in (("parent", 2, 10), ("aunt", 4, 20)):
            start = through(old[step], torch.bfloat16)
            checkpoints = {2: trained(start, seed, signal=0.05), 4: trained(start, seed + 1, signal=0.1)}
            ancestry = {"start": "private", "run": "grandparent", "step": step}
            write(tmp_path, name, start, checkpoints, ancestry=ancestry)
            if name == "parent":
                middle = checkpoints[4]
        last = {"start": "private", "run": "parent", "step": 4}
        write(tmp_path, "child", middle, {4: trained(middle, 30, signal=0.1)}, ancestry=last)
        fresh_line = trained(root, 40, signal=0.1)
        write(tmp_path, "cousin", root, {4: fresh_line})
        accepted(tmp_path)

    def test_a_child_that_returns_to_its_parents_start_is_accepted(self, tmp_path: Path) -> None:
        """Training takes noise out again: a child's movement undoes its parent's, and resembles the parent's start."""
        root = fresh(1)
        middle = trained(root, 2, size=0.1)
        back = {name: root[name] + 0.1 * (middle[name] - root[name]) for name in root}
        write(tmp_path, "parent", root, {4: middle})
        write(tmp_path, "child", middle, {4: back}, ancestry={"start": "private", "run": "parent", "step": 4})
        accepted(tmp_path)

    def test_a_named_parent_of_which_nothing_is_kept_is_accepted(self, tmp_path: Path) -> None:
        root = fresh(1)
        middle = trained(root, 2, signal=0.1)
        write(tmp_path, "parent", root, {})
        write(tmp_path, "cousin", root, {4: trained(root, 3, signal=0.1)})
        parent = {"start": "private", "run": "parent", "step": 2}
        write(tmp_path, "child", middle, {4: trained(middle, 4, signal=0.1)}, ancestry=parent)
        accepted(tmp_path)

    def test_a_public_start_that_resembles_a_private_run_is_asked_about_and_believed(self, tmp_path: Path) -> None:
        """A public model trained on similar data: nobody can tell it from a parent, so its owner has to say."""
        zero = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
        write(tmp_path, "private-run", zero, {4: trained(zero, 2, signal=0.1)})
        public = trained(zero, 3, signal=0.1)
        start = {"start": "public", "source": "a public probe"}
        write(tmp_path / "asked", "public-start", public, {4: trained(public, 4)}, ancestry=start)
        write(tmp_path / "asked", "private-run", zero, {4: trained(zero, 2, signal=0.1)})
        refused(tmp_path / "asked", "private-run")
        write(
            tmp_path, "public-start", public, {4: trained(public, 4)},
            ancestry={**start, "independent_of": ["private-run"]},
        )  # fmt: skip
        (text,) = [c.text for c in caveats(accepted(tmp_path)) if c.name == "near_start_stated_independent"]
        assert "private-run" in text

    def test_chance_agreement_is_nearly_zero(self) -> None:
        """Of 4,000 pairs of unrelated tensors the most similar is far from suspicion."""
        random = np.random.default_rng(0)
        shares = []
        for _ in range(4000):
            start, mine, moved = random.standard_normal((3, 256))
            found = weight_similarity.agreement(
                weight_similarity.set_apart(mine, start), weight_similarity.set_apart(0.5 * start + 0.1 * moved, start)
            )
            assert found.compared > 250
            shares.append(found.share)
        assert max(shares) < 0.3 < weight_similarity.DEVIATIONS / np.sqrt(256)
        assert abs(np.mean(shares)) < 0.005


def test_a_sample_that_is_not_the_start_is_refused(tmp_path: Path) -> None:
    """What was recorded of a tensor that never moved is what lies in the checkpoints."""
    start = fresh(1)
    write(tmp_path, "run", start, {4: {**trained(start, 2), "body": start["body"]}})
    Portfolio.load(tmp_path)
    other = {**start, "body": fresh(2)["body"]}
    sampled = {name: value.reshape(-1)[places(value.size)] for name, value in other.items()}
    document = replaced(read_manifest(tmp_path / "run"), "start_sample", to=StartSample.of(sampled).model_dump())
    write_json(tmp_path / "run" / "privacy.json", document)
    with pytest.raises(DigestMismatchError, match="start_sample.values: body"):
        Portfolio.load(tmp_path)


class TestFaultsInTheCheck:
    """With a part of the check taken out, its test fails."""

    def test_tests_notice_when_parents_are_not_looked_for(self, tmp_path: Path) -> None:
        def attack(folder: Path) -> None:
            test_a_private_parent_that_is_not_named_is_refused("cast to bfloat16 and back", "file", folder)

        must_notice(attack, tmp_path, compatibility, "require_named_parents", lambda runs: None)

    def test_tests_notice_when_single_tensors_are_not_compared(self, tmp_path: Path) -> None:
        def attack(folder: Path) -> None:
            test_a_private_parent_that_is_not_named_is_refused("one tensor only", "file", folder)

        def only_together(found: weight_similarity.Agreement) -> bool:
            return found.compared > 1500 and found.share > 0.9

        must_notice(attack, tmp_path, weight_similarity.Agreement, "suspicious", property(only_together))

    def test_tests_notice_when_weak_agreement_is_not_suspicious(self, tmp_path: Path) -> None:
        def attack(folder: Path) -> None:
            test_a_private_parent_that_is_not_named_is_refused("with twice as much noise as it moved", "sample", folder)

        must_notice(attack, tmp_path, weight_similarity, "AGREEMENT", 0.9)

    def test_tests_notice_when_the_start_is_not_taken_off_both_sides(self, tmp_path: Path) -> None:
        def honest(folder: Path) -> None:
            TestHonestPortfolios().test_independent_random_starts_with_weight_decay_are_accepted(0.5, folder)

        must_notice(honest, tmp_path, undeclared_parents, "set_apart", lambda values, base: np.sign(values - base))

    def test_tests_notice_when_chance_is_not_allowed_for(self, tmp_path: Path) -> None:
        def honest(folder: Path) -> None:
            for seed in range(12):
                start = {name: value for name, value in fresh(seed).items() if name == "bias"}
                write(folder, f"run-{seed}", start, {4: trained(start, 20 + seed)})
            accepted(folder)

        must_notice(honest, tmp_path, weight_similarity, "DEVIATIONS", 0.0)

    def test_tests_notice_when_weights_without_kept_starts_are_not_compared(self, tmp_path: Path) -> None:
        attack = TestStartsThatAreNotKept().test_weights_near_one_another_from_different_starts_are_refused
        must_notice(attack, tmp_path, undeclared_parents, "_same_weights", lambda *_: None)

    def test_tests_notice_when_a_common_start_is_not_recognised(self, tmp_path: Path) -> None:
        def honest(folder: Path) -> None:
            TestHonestPortfolios().test_a_ladder_of_twelve_runs_from_one_start_is_accepted("digests", folder)

        must_notice(honest, tmp_path, undeclared_parents, "same_start", lambda *_: False)

    def test_tests_notice_when_a_named_parent_does_not_explain_its_child(self, tmp_path: Path) -> None:
        def honest(folder: Path) -> None:
            TestHonestPortfolios().test_a_line_of_declared_parents_is_accepted(folder)

        must_notice(honest, tmp_path, undeclared_parents, "_resembles", lambda *_: False)

    def test_tests_notice_when_descendants_are_not_left_out(self, tmp_path: Path) -> None:
        honest = TestHonestPortfolios().test_a_child_that_returns_to_its_parents_start_is_accepted
        must_notice(honest, tmp_path, starts, "ancestors", lambda *_: iter(()))

    def test_tests_notice_when_a_nearer_parent_is_not_looked_for(self, tmp_path: Path) -> None:
        must_notice(
            test_a_start_nearer_to_another_parent_than_the_named_one_is_refused,
            tmp_path,
            undeclared_parents,
            "_better_explained",
            lambda *_: None,
        )


def merged_without_planning(folder: Path) -> None:
    """`merge` loads headers only; the child of a parent that costs 10 was certified 0.027 by it, and verified."""
    child_of(PARENTS["cast to bfloat16 and back"], folder / "runs", "sample")
    arguments = ["merge", folder / "runs", "--weights", "child@4=1", "--epsilon", "1", "--delta", "1e-5"]
    result = CliRunner().invoke(app, [*map(str, arguments), "-o", str(folder / "out")], env={"DPMERGE_LEDGER": None})
    assert result.exit_code == 2
    assert "suspiciously near parent@4" in " ".join(result.output.split())
    assert not (folder / "out").exists()


def test_a_merge_of_stated_weights_compares_starts(tmp_path: Path) -> None:
    must_notice(merged_without_planning, tmp_path, preconditions, "require_named_parents", lambda runs: None)
