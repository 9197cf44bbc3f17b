"""One weight under several names: release noise that can be averaged away, and what else goes wrong with it.

A weight w, trained in one step with noise, is stored under n names and released with noise τ under each. Averaged, they
are w + N(0, τ²/n), which is all that can be learned of w from them. By the theorem of the last step (replace_one, one
step of rate η, clip norm C, noise σ) what is certified is μ² = (2ηC)² / ((ησC)² + τ²), and what is true of n names with
noise of their own is μ² = (2ηC)² / ((ησC)² + τ²/n).
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

import dpmerge as dpm
from attacks.faults import must_notice
from dpmerge.errors import CannotWriteError, TensorMismatchError
from dpmerge.evaluation.merged_model import StoredModel
from dpmerge.evaluation.score_recipe import score_one
from dpmerge.ledger.ledger import Ledger
from dpmerge.merging import engine, recipe_files, tied_tensors
from dpmerge.merging.engine import merge
from dpmerge.merging.recipe_files import build
from dpmerge.planning.plan import Plan
from dpmerge.portfolio import run_reading
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.portfolio_caveats import caveats
from dpmerge.releasing import preconditions, publish
from dpmerge.releasing import release as releasing
from dpmerge.releasing.ledger_location import default_ledger
from dpmerge.releasing.rebuild import rebuilt
from dpmerge.releasing.recover import recover
from dpmerge.releasing.verifying import verify
from dpmerge.terms.candidate_terms import CandidateTerms, Choice
from dpmerge.terms.recipe import Recipe
from dpmerge.terms.release_terms import ReleaseTerms
from merging.models import FLOATS, checkpoints, read_model, tensor, values_of
from merging.models import write_run as write_stored
from oracle import gaussian_mp
from portfolio.portfolios import DP_SGD, manifest, read_manifest, write_checkpoint, write_json

NAMES = tuple(f"layers.{place:02}.weight" for place in range(12))
CERTIFIED, TRUE = 1.0, 3.76
DELTA = 1e-5
RATE, SIGMA = 0.01, 0.79
TAU = 0.0741933
VALUES = 20_000

CLAIMED_BETWEEN_RUNS, TRUE_BETWEEN_RUNS = 1.55, 3.84
"""Without release noise: 12 names of one weight in a run of σ = 0.1, 12 weights in one of σ = 10, halves of both."""

Array = npt.NDArray[Any]
Model = Mapping[str, Array]


def epsilon(mu: float) -> float:
    """By the fifty-digit oracle."""
    return float(gaussian_mp.epsilon(mu, DELTA))


def epsilon_with(noise: float) -> float:
    """What the released weight costs if so much noise is left on it, by the theorem."""
    return epsilon(2 * RATE / math.hypot(RATE * SIGMA, noise))


def values(seed: int, count: int = VALUES, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(count).astype(dtype)


def one_weight(seed: int = 1, names: Sequence[str] = NAMES) -> dict[str, Array]:
    return dict.fromkeys(names, values(seed))


def write(
    home: Path, run: str, *shards: Model, sigma: float = SIGMA, initial: Model | None = None, **facts: Any
) -> Path:
    """A run of one step; `facts` are those of its tensors, all of which it trained unless it says otherwise."""
    names = [name for shard in shards for name in shard]
    trained = [name for name in names if name not in facts.get("frozen", ())]
    start = {name: hashlib.sha256(value.tobytes()).hexdigest() for name, value in (initial or {}).items()}
    smoothness = {"kind": "logistic", "feature_bound": 1.0, "records": 100, "vouched_by": "the tests"}
    block = {"steps": 1, "noise_multiplier": sigma, "clip_norm": 1.0, "learning_rate": RATE}
    document = manifest(
        run,
        mechanism={**DP_SGD, "blocks": [block], "smoothness": smoothness},
        tensors={"trained": trained, "initial": start, **facts},
        initial_weights=None,
    )
    saved = write_checkpoint(home / run, 1, *shards)
    write_json(home / run / "privacy.json", {**document, "checkpoints": [saved]})
    return home


def planned(
    portfolio: Portfolio,
    weights: Mapping[str, float],
    noise: float = TAU,
    theorem: Any = "last_step",
    most: float = 1.0,
) -> Plan:
    recipe = Recipe.of(weights)
    stated = [run.manifest.statement for run in portfolio.runs if f"{run.id}@1" in weights]
    seen = {each.run: 1 for each in stated}
    candidate = CandidateTerms.of(recipe.parts, theorem, seen, release_noise=noise)
    terms = ReleaseTerms(
        dataset=portfolio.dataset,
        unit=portfolio.unit,
        adjacency=portfolio.adjacency.value,
        accounting="pld",
        runs=stated,
        candidates=[candidate],
        probabilities=[1.0],
        choice=Choice.stated("the tests", "weights_stated_without_looking_at_the_models"),
    )
    return Plan.of_terms(portfolio, terms, dpm.Guarantee(epsilon=most, delta=DELTA))


def released(home: Path, out: Path, *, theorem: str = "last_step", contents: bool = False) -> dpm.Portfolio:
    portfolio = Portfolio.load(home, contents=contents)
    made = releasing.release(planned(portfolio, {"a@1": 1.0}, theorem=theorem), out=out, final=True)
    assert made.guarantee.epsilon == pytest.approx(CERTIFIED, abs=1e-5)
    return portfolio


def refused(home: Path, text: str, plan: Plan | None = None) -> None:
    """Nothing is charged, and nothing written."""
    portfolio = Portfolio.load(home, contents=False)
    with pytest.raises(TensorMismatchError, match=text):
        releasing.release(plan or planned(portfolio, {"a@1": 1.0}), out=home.parent / "out", final=True)
    assert not (home.parent / "out").exists()
    with Ledger.open(default_ledger(portfolio)) as ledger:
        assert list(ledger.entries()) == []


def read(folder: Path) -> dict[str, Array]:
    return {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}


def left_after_averaging(out: Path, stored: Model, names: Sequence[str] = NAMES) -> float:
    """The noise that is left on a weight once all its names are averaged."""
    found = read(out)
    return float(np.mean([found[name].astype(np.float64) - stored[name] for name in names], axis=0).std())


def test_averaging_tied_names_with_noise_of_their_own_costs_more_than_is_certified() -> None:
    assert epsilon_with(TAU) == pytest.approx(CERTIFIED, abs=1e-5)
    assert epsilon_with(TAU / math.sqrt(len(NAMES))) == pytest.approx(TRUE, abs=0.005)
    # Between two runs: in the direction of the sum of all names the first run moves by √12 as much as it says.
    a = b = 0.5
    claimed = 2 * (a + b) / math.hypot(0.1 * a, 10 * b)
    true = 2 * (math.sqrt(12) * a + b) / math.hypot(0.1 * a * math.sqrt(12), 10 * b)
    assert epsilon(claimed) == pytest.approx(CLAIMED_BETWEEN_RUNS, abs=0.005)
    assert epsilon(true) == pytest.approx(TRUE_BETWEEN_RUNS, abs=0.005)


def averaging_twelve_names(home: Path, theorem: str = "last_step", shards: int = 1) -> None:
    """What is left after averaging costs no more than is certified."""
    model = {**one_weight(), "head": values(2)}
    parts = [{name: model[name] for name in list(model)[place::shards]} for place in range(shards)]
    write(home / "runs", "a", *parts, tied=[list(NAMES)])
    released(home / "runs", home / "out", theorem=theorem)
    assert len(list((home / "out").glob("*.safetensors"))) == shards
    left = left_after_averaging(home / "out", model)
    assert left == pytest.approx(TAU, rel=0.03)  # 20,000 values: six standard errors
    assert epsilon_with(left) < CERTIFIED * 1.05
    found = read(home / "out")
    assert all(found[name].tobytes() == found[NAMES[0]].tobytes() for name in NAMES)


class TestOneDraw:
    @pytest.mark.parametrize("shards", [1, 3])
    @pytest.mark.parametrize("theorem", ["last_step", "hidden_state"])
    def test_averaging_twelve_names_costs_what_is_certified(self, tmp_path: Path, theorem: str, shards: int) -> None:
        averaging_twelve_names(tmp_path, theorem, shards)

    @pytest.mark.parametrize(
        ("owner", "name", "fault"),
        [(recipe_files, "stated_ties", lambda recorded_runs: ()), (engine, "first_names", lambda donor, tied: {})],
    )
    def test_tests_notice_a_draw_of_noise_for_each_name(
        self, tmp_path: Path, owner: Any, name: str, fault: Any
    ) -> None:
        must_notice(averaging_twelve_names, tmp_path, owner, name, fault)

    def test_a_noised_release_verifies_and_cannot_be_rebuilt(self, tmp_path: Path) -> None:
        write(tmp_path / "runs", "a", one_weight(), tied=[list(NAMES)])
        portfolio = released(tmp_path / "runs", tmp_path / "out", contents=True)
        found = verify(tmp_path / "out", portfolio=portfolio)
        assert found.verified, found.problems
        assert rebuilt(found, portfolio).passed is None

    def test_a_release_recovered_after_a_crash_has_one_draw(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path / "runs", "a", one_weight(), tied=[list(NAMES)])
        with monkeypatch.context() as patch:
            patch.setattr(publish, "build", lambda *_, **__: (_ for _ in ()).throw(CannotWriteError("disk", 0, "room")))
            with pytest.raises(CannotWriteError):
                released(tmp_path / "runs", tmp_path / "out")
        with Ledger.open(default_ledger(Portfolio.load(tmp_path / "runs"))) as ledger:
            assert [each.problem for each in recover(ledger)] == [None]
        assert left_after_averaging(tmp_path / "out", one_weight()) == pytest.approx(TAU, rel=0.03)

    def test_an_average_of_runs_in_different_shards_has_one_draw(self, tmp_path: Path) -> None:
        first, second = one_weight(1), one_weight(2)
        write(tmp_path / "runs", "a", {n: first[n] for n in NAMES[:5]}, {n: first[n] for n in NAMES[5:]}, tied=[NAMES])
        write(tmp_path / "runs", "b", {n: second[n] for n in reversed(NAMES)}, tied=[NAMES[::-1]])
        portfolio = Portfolio.load(tmp_path / "runs")
        for donor in "ab":
            out = tmp_path / donor
            out.mkdir()
            build(portfolio, Recipe.of({"a@1": 0.5, "b@1": 0.5}, release_noise=TAU), out, donor=donor)
            assert len({value.tobytes() for value in read(out).values()}) == 1
            average = {name: (first[name].astype(np.float64) + second[name]) / 2 for name in NAMES}
            assert left_after_averaging(out, average) == pytest.approx(TAU, rel=0.03)

    @pytest.mark.parametrize("jobs", [1, 3])
    @pytest.mark.parametrize("dtype", FLOATS)
    def test_tied_names_are_equal_bit_for_bit_in_any_dtype_and_pieces(
        self, tmp_path: Path, dtype: str, jobs: int
    ) -> None:
        tied, alone = tensor(dtype, (701, 3), 1), tensor(dtype, (701, 3), 2)
        pair = tensor(dtype, (5,), 3)
        files = {
            "step-4-1.safetensors": {"x.0": tied, "odd": tensor(dtype, (7,), 4), "alone": alone, "p.0": pair},
            "step-4-2.safetensors": {"p.1": pair, "x.1": tied, "empty": (dtype, (0, 3), b""), "x.2": tied},
        }
        write_stored(tmp_path / "runs", "a", files)
        [saved] = checkpoints(tmp_path / "runs")
        (tmp_path / "out").mkdir()
        groups = [["x.0", "x.1", "x.2"], ["p.0", "p.1"]]
        merge([(saved, 1.0)], tmp_path / "out", donor=saved, trained=None, release_noise=1.0, tied=groups, jobs=jobs,
              buffer=1024)  # fmt: skip
        found = read_model(tmp_path / "out")
        assert found["x.0"] == found["x.1"] == found["x.2"]
        assert found["p.0"] == found["p.1"]
        noise = {name: values_of(dtype, found[name][2]) - values_of(dtype, stored[2])
                 for name, stored in {"x.0": tied, "alone": alone}.items()}  # fmt: skip
        for each in noise.values():
            assert each.std() == pytest.approx(1.0, rel=0.1)  # 2,103 values: six standard errors
        assert abs(np.corrcoef(noise["x.0"], noise["alone"])[0, 1]) < 0.14
        # No two pieces of one tensor share their noise either: a piece has 1024 bytes.
        piece = 1024 // (len(tied[2]) // 2103)
        assert abs(np.corrcoef(noise["x.0"][:piece], noise["x.0"][piece : 2 * piece])[0, 1]) < 6 / math.sqrt(piece)

    def test_noise_of_different_groups_is_independent(self, tmp_path: Path) -> None:
        model = {"a.0": values(1), "b.0": values(2), "a.1": values(1), "b.1": values(2), "c": values(3)}
        write(tmp_path / "runs", "a", model, tied=[["a.0", "a.1"], ["b.0", "b.1"]])
        released(tmp_path / "runs", tmp_path / "out")
        found = read(tmp_path / "out")
        noise = np.array([found[name] - model[name] for name in ("a.0", "b.0", "c")])
        assert np.all(abs(np.corrcoef(noise) - np.eye(3)) < 6 / math.sqrt(VALUES))

    def test_simulated_releases_have_one_draw_too(self, tmp_path: Path) -> None:
        write(tmp_path / "runs", "a", {**one_weight(), "head": values(2)}, tied=[list(NAMES)])
        stored = StoredModel.of(Portfolio.load(tmp_path / "runs"), "a@1")

        def names_that_differ(model: Mapping[str, Array]) -> float:
            assert not np.array_equal(model["head"] - values(2), model[NAMES[0]] - values(1))
            return float(sum(not np.array_equal(model[name], model[NAMES[0]]) for name in NAMES))

        assert score_one(Recipe.of({"a@1": 1.0}, release_noise=TAU), [stored], names_that_differ, 2) == 0


def twelve_names_nobody_told_of(home: Path) -> None:
    """As version 0.1 recorded them: certified 1.0 with noise of its own under each name, 3.76 was true."""
    refused(write(home / "runs", "a", one_weight()), "the values of layers.00.weight in a@1")


def twelve_names_said_to_be_twelve_weights(home: Path) -> None:
    refused(write(home / "runs", "a", one_weight(), tied=[]), "the values of layers.00.weight in a@1")


def a_transposed_copy(home: Path) -> None:
    matrix = values(1).reshape(100, 200)
    model = {"embedding": matrix, "head": np.ascontiguousarray(matrix.T), "other": values(2)}
    refused(write(home / "runs", "a", model, tied=[]), "keep one of the two")


def a_tie_that_is_false(home: Path) -> None:
    write(home / "runs", "a", {"x": values(1), "y": values(2)}, tied=[["x", "y"]])
    refused(home / "runs", "tensors.tied: x, y are one weight, it says, and have other values")


def a_tie_that_holds_in_another_order(home: Path) -> None:
    write(home / "runs", "a", {"x": values(1), "y": values(1)[::-1].copy()}, tied=[["x", "y"]])
    refused(home / "runs", "tensors.tied: x, y are one weight, it says, and have other values")


def two_runs(home: Path, **facts: Any) -> Portfolio:
    """One weight with twelve names in the first, twelve weights in the second."""
    write(home / "runs", "a", one_weight(), sigma=0.1, **facts)
    write(home / "runs", "b", {name: values(place + 20) for place, name in enumerate(NAMES)}, sigma=10.0)
    return Portfolio.load(home / "runs", contents=False)


def half_of_each(portfolio: Portfolio, noise: float, theorem: str = "last_step", most: float = 2.0) -> Plan:
    return planned(portfolio, {"a@1": 0.5, "b@1": 0.5}, noise, theorem, most)


def one_weight_in_one_run_and_twelve_in_another(home: Path) -> None:
    """Without release noise: certified 1.55, true 3.84."""
    plan = half_of_each(two_runs(home), 0.0)
    assert plan.terms.epsilon(DELTA) == pytest.approx(CLAIMED_BETWEEN_RUNS, abs=0.01)
    refused(home / "runs", "have the same values in one of a@1 and b@1, and not in the other", plan)


def a_tie_only_one_run_states(home: Path) -> None:
    portfolio = two_runs(home, tied=[list(NAMES)])
    refused(home / "runs", "all runs of an average have to agree", half_of_each(portfolio, TAU))


def a_tie_the_other_run_has_and_does_not_state(home: Path) -> None:
    write(home / "runs", "a", one_weight(1), tied=[list(NAMES)])
    write(home / "runs", "b", one_weight(2))
    plan = half_of_each(Portfolio.load(home / "runs", contents=False), TAU)
    refused(home / "runs", "b/privacy.json: tensors.tied: it states nothing", plan)


def equal_in_one_input_alone(home: Path) -> None:
    refused(home / "runs", "the values of layers.00.weight in a@1", half_of_each(two_runs(home), TAU))


REFUSED = [
    twelve_names_nobody_told_of,
    twelve_names_said_to_be_twelve_weights,
    a_transposed_copy,
    a_tie_that_is_false,
    a_tie_that_holds_in_another_order,
    one_weight_in_one_run_and_twelve_in_another,
    a_tie_only_one_run_states,
    a_tie_the_other_run_has_and_does_not_state,
    equal_in_one_input_alone,
]
SOUND = {name: getattr(tied_tensors, name) for name in ("require_ties", "_require_stated")}


class TestRefusedBeforeTheCharge:
    @pytest.mark.parametrize("attack", REFUSED, ids=lambda attack: attack.__name__)
    def test_releases_of_untold_ties_are_refused_before_the_charge(self, tmp_path: Path, attack: Any) -> None:
        attack(tmp_path)

    @pytest.mark.parametrize(
        ("attack", "owner", "name", "fault"),
        [
            # Only the merge would refuse, with the charge made and the runs locked.
            (twelve_names_nobody_told_of, preconditions, "require_ties", lambda *_: None),
            (twelve_names_nobody_told_of, tied_tensors, "_equal", lambda *_: []),
            (twelve_names_said_to_be_twelve_weights, tied_tensors, "_may_be_equal", lambda *_: True),
            (a_transposed_copy, tied_tensors, "_mixed", lambda bits: hash(bits.tobytes())),
            (a_tie_that_is_false, tied_tensors, "_require_stated", lambda *_: None),
            (a_tie_that_holds_in_another_order, tied_tensors._Looked, "in_order", lambda *_: True),
            (
                one_weight_in_one_run_and_twelve_in_another,
                preconditions,
                "require_ties",
                lambda portfolio, recipes, *_: SOUND["require_ties"](portfolio, [(r, False) for r, _ in recipes]),
            ),
            (a_tie_only_one_run_states, tied_tensors, "stated_ties", lambda recorded_runs: ()),
            (a_tie_the_other_run_has_and_does_not_state, tied_tensors, "stated_ties", lambda recorded_runs: ()),
            (
                equal_in_one_input_alone,
                tied_tensors,
                "_require_stated",
                lambda run, saved, looked: SOUND["_require_stated"](run, saved, looked) if run.id == "b" else None,
            ),
        ],
    )
    def test_tests_notice_each_check_that_is_left_out(
        self, tmp_path: Path, attack: Any, owner: Any, name: str, fault: Any
    ) -> None:
        def noticed(home: Path) -> None:
            try:
                attack(home)
            except TensorMismatchError as error:  # another check, with other words or after the charge
                pytest.fail(str(error))

        must_notice(noticed, tmp_path, owner, name, fault)

    def test_a_false_tie_is_refused_when_contents_are_read(self, tmp_path: Path) -> None:
        def attack(home: Path) -> None:
            write(home, "a", {"x": values(1), "y": values(2)}, tied=[["x", "y"]])
            with pytest.raises(TensorMismatchError, match="y: other values than x in a@1"):
                Portfolio.load(home)

        must_notice(attack, tmp_path, run_reading, "require_tied", lambda *_: None)

    def test_a_charge_made_before_the_check_existed_is_refused_when_merged(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A release that an earlier version charged and did not finish is not made with noise under each name."""
        write(tmp_path / "runs", "a", one_weight())
        with monkeypatch.context() as patch:
            patch.setattr(preconditions, "require_ties", lambda *_: None)
            with pytest.raises(TensorMismatchError, match="the values of layers.00.weight"):
                released(tmp_path / "runs", tmp_path / "out")
        with Ledger.open(default_ledger(Portfolio.load(tmp_path / "runs"))) as ledger:
            [pending] = list(recover(ledger))
            assert "the values of layers.00.weight" in str(pending.problem)
            # Once somebody has stated the tie, which changes neither identity nor terms, it can be finished.
            document = read_manifest(tmp_path / "runs" / "a")
            document["tensors"]["tied"] = [list(NAMES)]
            write_json(tmp_path / "runs" / "a" / "privacy.json", document)
            assert [each.problem for each in recover(ledger)] == [None]
        assert left_after_averaging(tmp_path / "out", one_weight()) == pytest.approx(TAU, rel=0.03)

    def test_joint_release_of_a_tie_in_one_run_is_covered(self, tmp_path: Path) -> None:
        plan = half_of_each(two_runs(tmp_path), 0.0, "joint_release", 300.0)
        assert releasing.release(plan, out=tmp_path / "out").guarantee.epsilon > TRUE_BETWEEN_RUNS

    def test_one_run_without_noise_needs_no_ties(self, tmp_path: Path) -> None:
        home = write(tmp_path / "runs", "a", one_weight())
        portfolio = Portfolio.load(home)
        plan = planned(portfolio, {"a@1": 1.0}, 0.0, "last_step", 20.0)
        assert releasing.release(plan, out=tmp_path / "out", final=True).guarantee.epsilon > 10
        assert read(tmp_path / "out")[NAMES[3]].tobytes() == values(1).tobytes()


class TestToldBeforehand:
    """Whoever reads everything, as `inspect` and `plan` do, hears of it before a release is asked for."""

    @pytest.mark.parametrize(
        ("facts", "told"), [({}, True), ({"tied": []}, True), ({"tied": [list(NAMES)]}, False)], ids=["", "none", "all"]
    )
    def test_an_untold_tie_is_a_caveat(self, tmp_path: Path, facts: Any, told: bool) -> None:
        portfolio = Portfolio.load(write(tmp_path, "a", one_weight(), **facts))
        found = [caveat.text for caveat in caveats(portfolio) if caveat.name == "untold_tie"]
        assert [text.split(" hold")[0] for text in found] == ["layers.00.weight and layers.01.weight"] * told

    def test_weights_at_rest_or_frozen_are_no_caveat(self, tmp_path: Path) -> None:
        zeros = {name: np.zeros(64, np.float32) for name in ("x", "y")}
        frozen = {name: values(1) for name in ("f", "g")}
        write(tmp_path, "a", {**zeros, **frozen}, initial=zeros, tied=[], frozen=["f", "g"])
        assert "untold_tie" not in {caveat.name for caveat in caveats(Portfolio.load(tmp_path))}


class TestEqualAndNotTied:
    """Weights that the record says are several may be equal: at rest, or small and by chance."""

    def resting(self, home: Path, **facts: Any) -> Path:
        zeros = {name: np.zeros(64, np.float32) for name in ("bias.0", "bias.1")}
        return write(home / "runs", "a", {**zeros, "weight": values(1)}, initial=zeros, **facts)

    def test_weights_at_rest_get_noise_of_their_own_where_ties_are_stated(self, tmp_path: Path) -> None:
        released(self.resting(tmp_path, tied=[]), tmp_path / "out")
        found = read(tmp_path / "out")
        assert np.mean(found["bias.0"] == found["bias.1"]) < 0.1

    def test_weights_at_rest_are_refused_where_ties_are_not_stated(self, tmp_path: Path) -> None:
        refused(self.resting(tmp_path), "if the two are one weight, .*privacy.json has to say so")

    def test_weights_that_moved_together_are_refused(self, tmp_path: Path) -> None:
        start = {name: np.zeros(64, np.float32) for name in ("bias.0", "bias.1")}
        moved = dict.fromkeys(start, np.full(64, 0.5, np.float32))
        refused(write(tmp_path / "runs", "a", moved, initial=start, tied=[]), "the values of bias.0 in a@1")

    def test_a_tie_at_rest_gets_other_noise_than_another_weight_at_rest(self, tmp_path: Path) -> None:
        zeros = {name: np.zeros(64, np.float32) for name in ("x.0", "x.1", "y")}
        released(write(tmp_path / "runs", "a", zeros, initial=zeros, tied=[["x.0", "x.1"]]), tmp_path / "out")
        found = read(tmp_path / "out")
        assert np.array_equal(found["x.0"], found["x.1"])
        assert np.mean(found["x.0"] == found["y"]) < 0.1

    @pytest.mark.parametrize(
        ("count", "names", "dtype", "accepted"),
        [
            (1, 2, np.float32, True),  # 24 bits
            (2, 2, np.float32, False),
            (1, 3, np.float32, False),
            (2, 2, np.float16, True),  # 22 bits
            (3, 2, np.float16, False),
            (1, 2, np.float64, False),
        ],
    )
    def test_few_equal_values_are_chance_and_many_are_refused(
        self, tmp_path: Path, count: int, names: int, dtype: Any, accepted: bool
    ) -> None:
        model = {f"scale.{place}": values(1, count, dtype) for place in range(names)}
        home = write(tmp_path / "runs", "a", {**model, "weight": values(2)}, tied=[])
        if accepted:
            released(home, tmp_path / "out")
        else:
            refused(home, "the values of scale.0 in a@1")

    def test_few_equal_values_are_refused_where_ties_are_not_stated(self, tmp_path: Path) -> None:
        """Twelve names of one number are twelve names all the same."""
        model = {name: values(1, 1) for name in NAMES}
        refused(write(tmp_path / "runs", "a", {**model, "weight": values(2)}), "the values of layers.00.weight")

    def test_equal_frozen_tensors_are_accepted(self, tmp_path: Path) -> None:
        model = {"mask.0": values(1), "mask.1": values(1), "weight": values(2)}
        released(write(tmp_path / "runs", "a", model, frozen=["mask.0", "mask.1"]), tmp_path / "out")
        assert read(tmp_path / "out")["mask.0"].tobytes() == values(1).tobytes()

    def test_different_dtypes_and_empty_tensors_are_accepted(self, tmp_path: Path) -> None:
        empty = np.zeros((0, 3), np.float32)
        model = {"x.0": empty, "x.1": empty, "y": empty, "single": values(1), "half": values(1, dtype=np.float16)}
        released(write(tmp_path / "runs", "a", model, tied=[["x.0", "x.1"]]), tmp_path / "out")
        assert read(tmp_path / "out")["x.0"].shape == (0, 3)


# Copies in other clothes: each verified at 1.0


def minus_zeros(number: int) -> Array:
    """The same values; where they are zero, with signs of their own."""
    made = values(1)
    made[:100] = np.where(np.arange(100) % (number + 2) == 0, -0.0, 0.0)
    return made


COPIES: dict[str, tuple[dict[str, Array], dict[str, Any]]] = {
    "a copy that is called frozen": ({"embed": values(1), "lm_head": values(1)}, {"frozen": ["lm_head"], "tied": []}),
    "a copy in another dtype": (
        {"embed": values(1), "lm_head": values(1, dtype=np.float32).astype(np.float64)},
        {"tied": []},
    ),
    "zeros of other signs": ({"embed": minus_zeros(1), "lm_head": minus_zeros(2)}, {"tied": []}),
}


@pytest.mark.parametrize("name", COPIES)
def test_transposed_reshaped_or_cast_copies_are_refused(tmp_path: Path, name: str) -> None:
    """True 4.38 for the frozen copy, which has no noise at all; 1.42 and more for the others."""
    model, facts = COPIES[name]
    refused(write(tmp_path / "runs", "a", model, **facts), "the values of embed in a@1")


def test_tests_notice_when_frozen_copies_are_not_looked_for(tmp_path: Path) -> None:
    def only_trained(run: Any, checkpoint: Any, *others: Any) -> Any:
        trained = set(run.manifest.tensors.trained)
        tensors = {name: place for name, place in checkpoint.tensors.items() if name in trained}
        return looked(run, dataclasses.replace(checkpoint, tensors=tensors), *others)

    looked = tied_tensors._looked
    model, facts = COPIES["a copy that is called frozen"]
    must_notice(
        lambda folder: refused(write(folder / "runs", "a", model, **facts), "the values of embed in a@1"),
        tmp_path,
        tied_tensors,
        "_looked",
        only_trained,
    )


def frozen_that_moves(folder: Path) -> None:
    """Called frozen, and trained: it left without noise under a certificate of 1.0; true 6.57."""
    home = folder / "runs"
    write(home, "a", {"weight": values(2), "scale": values(3)}, frozen=["scale"])
    document = read_manifest(home / "a")
    document["mechanism"]["blocks"][0]["steps"] = 2
    moved = write_checkpoint(home / "a", 2, {"weight": values(4), "scale": values(5)})
    write_json(home / "a" / "privacy.json", {**document, "checkpoints": [*document["checkpoints"], moved]})
    refused(home, "frozen, and other values in a@2 than in a@1")


def test_a_tensor_called_frozen_that_moved_is_refused(tmp_path: Path) -> None:
    must_notice(frozen_that_moves, tmp_path, preconditions, "require_frozen_still", lambda run: None)
