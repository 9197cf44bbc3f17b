"""Extra content in a certified folder: whatever a loader might take instead of, or besides, what was certified.

The certificate says ε = 0.8; beside the certified file lies a copy of c4-s32@20 (ε = 1.047), or code, or a way to them.
Each case is signed with the right key, and nothing that is certified was touched.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import dpmerge as dpm
from attacks.faults import must_notice
from attacks.forging import forged
from certificate.outputs import certified
from dpmerge.certificate import keys, output_files
from dpmerge.certificate.checks import Verification
from dpmerge.planning.plan import Plan
from dpmerge.planning.stated_weights import stated_weights
from dpmerge.releasing.verifying import verify

EXAMPLES = Path(__file__).parents[2] / "examples"
DELTA = 1e-5
CLAIMED, TRUE = 0.8, 1.047


class Signed(NamedTuple):
    path: Path
    public: Path
    costly: Path


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Signed:
    folder = tmp_path_factory.mktemp("original")
    home = shutil.copytree(EXAMPLES / "mnist", folder / "mnist")
    portfolio = dpm.Portfolio.load(home, contents=False)
    target = dpm.Guarantee(epsilon=CLAIMED, delta=DELTA)
    keys.generate(folder / "key")
    dpm.release(dpm.plan(portfolio, target), out=folder / "out", key=folder / "key")
    loose = dpm.Guarantee(epsilon=2, delta=DELTA)
    assert stated_weights(portfolio, {"c4-s32@20": 1.0}, loose).terms.epsilon(DELTA) == pytest.approx(TRUE, abs=1e-3)
    return Signed(folder / "out", folder / "key.pub", home / "c4-s32" / "step-20.safetensors")


@pytest.fixture
def signed(original: Signed, tmp_path: Path) -> Signed:
    return original._replace(path=shutil.copytree(original.path, tmp_path / "out"))


def checked(signed: Signed, *allowed: str) -> Verification:
    return verify(signed.path, key=signed.public, allow_extra=allowed)


def beside(name: str) -> Callable[[Signed], None]:
    def put(signed: Signed) -> None:
        (signed.path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(signed.costly, signed.path / name)

    return put


def config_with_code(signed: Signed) -> None:
    (signed.path / "config.json").write_text(json.dumps({"auto_map": {"AutoModel": "modeling.Model"}}))
    (signed.path / "modeling.py").write_text("class Model: ...")


def index(signed: Signed) -> None:
    content = {"weight_map": {"weight": str(signed.costly), "bias": "../mnist/c4-s32/step-20.safetensors"}}
    (signed.path / "model.safetensors.index.json").write_text(json.dumps(content))


EXTRA: dict[str, Callable[[Signed], object]] = {
    **{
        f"weights in {name}": beside(name)
        for name in (
            "model-00001-of-00002.safetensors", "adapter_model.safetensors", "pytorch_model.bin", "model.gguf",
            "tf_model.h5", "model.onnx", "weights.npz", "flax_model.msgpack", "ggml-model.bin", "model.tflite",
            "model.keras", "model", "Model.Safetensors", "onnx/model.onnx_data", "deep/er/est/file",
            ".hidden/model.safetensors",
        )
    },
    "an index that points elsewhere": index,
    "a configuration with code": config_with_code,
    "code alone": lambda signed: (signed.path / "modeling.py").write_text("x"),
    "a linked folder with weights": lambda signed: (signed.path / "onnx").symlink_to(signed.costly.parent),
    "a linked file": lambda signed: (signed.path / "other").symlink_to(signed.costly),
    "a link in a folder": lambda signed: (
        (signed.path / "sub").mkdir(), (signed.path / "sub" / "x").symlink_to(signed.costly)
    ),
    "a link to what is certified": lambda signed: (signed.path / "x").symlink_to("model.safetensors"),
    "a link to nowhere": lambda signed: (signed.path / "x").symlink_to("later"),
    "a link to itself": lambda signed: (signed.path / "x").symlink_to("x"),
    "a pipe": lambda signed: os.mkfifo(signed.path / "pytorch_model.bin"),
}  # fmt: skip


@pytest.mark.parametrize("what", EXTRA)
def test_extra_content_in_a_signed_output_fails_verification(signed: Signed, what: str) -> None:
    assert checked(signed).verified
    EXTRA[what](signed)
    result = checked(signed)
    assert [check.name for check in result.checks if check.passed is False] == ["files"]


@pytest.mark.parametrize("name", ["model.safetensors", "README.md", "privacy-certificate.json"])
def test_a_certified_file_that_is_a_link_fails_wherever_it_leads(signed: Signed, tmp_path: Path, name: str) -> None:
    (signed.path / name).rename(tmp_path / "same bytes")
    (signed.path / name).symlink_to(tmp_path / "same bytes")
    assert any("is a link" in problem for problem in checked(signed, name).problems)


def test_a_certified_file_that_is_a_pipe_fails_without_waiting_for_a_writer(signed: Signed) -> None:
    (signed.path / "model.safetensors").unlink()
    os.mkfifo(signed.path / "model.safetensors")
    assert checked(signed).problems == ["files: model.safetensors is not an ordinary file"]


def test_a_certified_file_in_a_linked_folder_fails_even_where_the_link_is_allowed(tmp_path: Path) -> None:
    home = shutil.copytree(EXAMPLES / "mnist", tmp_path / "mnist")
    out = tmp_path / "out"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "model.safetensors").write_bytes(b"weights")
    certified(out, planned(home), files={"model.safetensors": b"weights"})
    (out / "sub").mkdir()
    fake = forged(out, tmp_path / "fake", files={"sub/model.safetensors": b"weights"})
    assert verify(fake).verified
    shutil.rmtree(fake / "sub")
    (fake / "sub").symlink_to(tmp_path / "elsewhere")
    assert "files: sub/model.safetensors is a link out of the folder" in verify(fake, allow_extra=["sub"]).problems


def planned(home: Path) -> Plan:
    portfolio = dpm.Portfolio.load(home, contents=False)
    return stated_weights(portfolio, {"c2-s64@20": 1.0}, dpm.Guarantee(epsilon=2.0, delta=DELTA))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"weight_map": {"w": "model.safetensors", "b": "elsewhere.safetensors"}}, "points to elsewhere.safetensors"),
        ({"weight_map": {"w": "../model.safetensors"}}, r"points to ../model.safetensors"),
        ({"weight_map": {"w": "/tmp/model.safetensors"}}, r"points to /tmp/model.safetensors"),  # noqa: S108
        ('{"weight_map": {}, "weight_map": {"w": "x"}}', "cannot be read as an index"),
        ({"weight_map": {"w": "model.safetensors"}}, None),
    ],
    ids=["a file that is not there", "a file above", "a file anywhere", "two maps", "its own file"],
)
def test_a_certified_index_fails_verification_unless_it_points_to_certified_files(
    tmp_path: Path, content: dict[str, object] | str, reason: str | None
) -> None:
    home = shutil.copytree(EXAMPLES / "mnist", tmp_path / "mnist")
    text = content if isinstance(content, str) else json.dumps(content)
    files = {"model.safetensors": b"weights", "model.safetensors.index.json": text.encode()}
    result = verify(certified(tmp_path / "out", planned(home), files=files).path)
    assert result.verified == (reason is None)
    assert reason is None or reason in " ".join(result.problems)


class TestExceptions:
    def test_extra_content_is_allowed_only_by_its_exact_name(self, signed: Signed) -> None:
        (signed.path / ".gitattributes").write_text("x")
        beside("gguf/model.gguf")(signed)
        assert len(checked(signed).problems) == 2
        assert len(checked(signed, ".gitattributes").problems) == 1
        assert len(checked(signed, ".git*", "gguf/model").problems) == 2
        result = checked(signed, ".gitattributes", "gguf/")
        assert result.verified
        assert [check.found for check in result.checks if check.name == "other files"] == [
            ("not covered, as allowed: .gitattributes, gguf",)
        ]

    def test_a_linked_folder_is_allowed_by_its_own_name_only(self, signed: Signed) -> None:
        EXTRA["a linked folder with weights"](signed)
        assert checked(signed, "onnx").verified
        assert not checked(signed, "onnx/model.onnx").verified

    @pytest.mark.parametrize("name", ["", "..", "../out", "/etc"])
    def test_a_name_outside_the_output_is_refused_as_an_exception(self, signed: Signed, name: str) -> None:
        with pytest.raises(dpm.errors.InvalidInputError, match="the name of a file or folder inside the output"):
            checked(signed, name)

    def test_empty_folders_and_hard_links_do_not_fail_verification(self, signed: Signed, tmp_path: Path) -> None:
        (signed.path / "empty" / "too").mkdir(parents=True)
        os.link(signed.path / "model.safetensors", tmp_path / "another name")
        assert checked(signed).verified


def test_configuration_files_of_the_donor_are_certified(tmp_path: Path) -> None:
    """What is copied into an output is a subject of its certificate, and cannot be changed afterwards."""
    home = shutil.copytree(EXAMPLES / "mnist", tmp_path / "mnist")
    (home / "c2-s64" / "config.json").write_text("{}")
    (home / "c2-s64" / "tokenizer.json").write_text("{}")
    (home / "c2-s64" / "modeling.py").write_text("x")
    made = dpm.release(planned(home), out=tmp_path / "out")
    assert set(made.files) == {"model.safetensors", "config.json", "tokenizer.json"}
    assert verify(tmp_path / "out", portfolio=home).verified
    config_with_code(Signed(tmp_path / "out", tmp_path, tmp_path))
    (tmp_path / "out" / "modeling.py").unlink()
    assert not verify(tmp_path / "out").verified


@pytest.mark.parametrize(
    ("name", "fault", "what"),
    [
        ("_entries", lambda *_: iter(()), "weights in model.gguf"),
        ("_entries", lambda *_: iter(()), "a linked folder with weights"),
    ],
    ids=["nobody looks for other files", "nobody looks for links"],
)
def test_tests_notice_when_extra_content_is_not_looked_for(
    original: Signed, tmp_path: Path, name: str, fault: Callable[..., object], what: str
) -> None:
    def attack(folder: Path) -> None:
        signed = original._replace(path=shutil.copytree(original.path, folder / "out"))
        EXTRA[what](signed)
        assert not checked(signed).verified

    must_notice(attack, tmp_path, output_files, name, fault)


def test_tests_notice_when_indexes_are_not_read(tmp_path: Path) -> None:
    def attack(folder: Path) -> None:
        content = {"weight_map": {"w": "elsewhere.safetensors"}}
        test_a_certified_index_fails_verification_unless_it_points_to_certified_files(
            folder, content, "points to elsewhere.safetensors"
        )

    must_notice(attack, tmp_path, output_files, "_pointing_elsewhere", lambda *_: iter(()))
