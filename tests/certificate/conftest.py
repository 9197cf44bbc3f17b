"""A release that is signed, and the keys of who may revoke it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from certificate.outputs import certified
from dpmerge.certificate import keys
from dpmerge.planning.plan import Plan
from dpmerge.planning.planner import plan
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.terms.guarantee import Guarantee


@dataclass(frozen=True, kw_only=True)
class KeyPair:
    private: Path
    public: Path
    id: str


def key_pair(folder: Path, name: str) -> KeyPair:
    public, identity = keys.generate(folder / name)
    return KeyPair(private=folder / name, public=public, id=identity)


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    examples = Path(__file__).parents[2] / "examples"
    folder = shutil.copytree(examples / "mnist", tmp_path_factory.mktemp("averaged") / "mnist")
    return plan(Portfolio.load(folder), Guarantee(epsilon=0.8, delta=1e-5), theorem="joint_release")


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return key_pair(tmp_path_factory.mktemp("keys"), "signing.pem")


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    """Another key, which may revoke."""
    return key_pair(tmp_path_factory.mktemp("keys"), "office.pem")


@pytest.fixture
def out(tmp_path: Path, averaged: Plan, signer: KeyPair) -> Path:
    return certified(tmp_path / "merged", averaged, key=signer.private).path


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
