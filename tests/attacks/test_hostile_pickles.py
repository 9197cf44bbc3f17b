"""Pickles that mean harm: refused by name, ended by their limits, and nothing of them left behind.

First against `weights_only=True` as it is; then with that taken away, as if it had been got round once more: what is
left is a process without secrets and network, that is ended whatever it does.
"""

from __future__ import annotations

import ast
import io
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import dpmerge as dpm
from dpmerge.errors import DpmergeError, PickleRefusedError
from dpmerge.portfolio import pickled_checkpoints, unpickling_process
from dpmerge.portfolio.pickled_checkpoints import unpickled

SAID: dict[str, Any] = {
    "dataset": "adult", "adjacency": "add_remove", "sampling": "poisson", "public_divisor": True,
    "noise_source": "os_entropy", "start": "random", "who": "Ann",
    "noise_multiplier": 1.0, "sampling_rate": 0.01, "steps": 10,
}  # fmt: skip


class Runs:
    """Pickled as a call: `exec` of some code when it is loaded."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (self.code,)


def refused(folder: Path, words: str) -> None:
    """The import fails with one named error, and the folder is as it was."""
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(PickleRefusedError) as error:
        dpm.import_models([folder], allow_pickle=True, **SAID)
    assert words in str(error.value), str(error.value)
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "a"
    made.mkdir()
    return made


def test_code_in_a_pickle_is_not_run(folder: Path, tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'ran')!r}, 'w')"
    torch.save({"weight": torch.zeros(2), "x": Runs(code)}, folder / "model.pt")
    refused(folder, "Weights only load failed")
    (folder / "model.pt").write_bytes(pickle.dumps(Runs(code)))  # without torch's archive around it
    refused(folder, "a pickle that is not read")
    assert not (tmp_path / "ran").exists()


def test_a_whole_module_is_refused_with_what_to_save(folder: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), folder / "model.pt")
    refused(folder, "save safetensors.torch.save_file(model.state_dict()")


def test_a_tensor_larger_than_its_file_is_refused_before_it_is_made(folder: Path) -> None:
    torch.save({"weight": torch.zeros(1).expand(2**20, 2**20)}, folder / "model.pt")
    assert (folder / "model.pt").stat().st_size < 10_000
    refused(folder, "describes tensors of more than 4,398,046,511,104 bytes")


def test_an_archive_that_swells_is_stopped_by_the_memory_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros, deflated a thousandfold."""
    monkeypatch.setattr(pickled_checkpoints, "LEAST_MEMORY", 64 * 2**20)
    whole = io.BytesIO()
    torch.save({"weight": torch.zeros(2**26)}, whole)  # 256 MB
    with zipfile.ZipFile(whole) as plain, zipfile.ZipFile(folder / "model.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    assert (folder / "model.pt").stat().st_size < 2**20
    refused(folder, "a pickle that ")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "a pickle that is not read"),
        (b"\x80\x04\x95" + b"\xff" * 40, "a pickle that is not read"),
        (b"PK\x03\x04 not an archive", "a pickle that is not read"),
        (pickle.dumps([1, 2, 3], protocol=2), "a pickle that"),
    ],
    ids=["empty", "cut off", "no archive", "no model"],
)
def test_a_file_that_is_no_checkpoint_is_refused(folder: Path, content: bytes, words: str) -> None:
    (folder / "model.pt").write_bytes(content)
    refused(folder, words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "holds no tensor"),
        ({"weight": torch.zeros(2), "note": "hello"}, "holds 'note', a str"),
        ({"weight": torch.zeros(3, 3).to_sparse()}, "sparse or quantized"),
        (torch.zeros(3), "holds a Tensor, where a state_dict"),
    ],
    ids=["empty", "text", "sparse", "a tensor alone"],
)
def test_what_is_no_state_dict_is_refused(folder: Path, content: Any, words: str) -> None:
    torch.save(content, folder / "model.pt")
    refused(folder, words)


def test_values_that_are_not_finite_are_refused_after_the_conversion(folder: Path) -> None:
    torch.save({"weight": torch.tensor([1.0, float("nan")])}, folder / "model.pt")
    with pytest.raises(DpmergeError, match=r"a/model.safetensors: weight: NaN or infinity"):
        dpm.import_models([folder], allow_pickle=True, **SAID)
    assert [path.name for path in folder.iterdir()] == ["model.pt"]


# From here on weights_only does not hold.


@pytest.fixture
def got_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same program, but that it loads pickles whatever they do."""
    program = Path(unpickling_process.__file__).read_text()
    safely = 'map_location="cpu", weights_only=True)'
    assert program.count(safely) == 1
    broken = tmp_path / "unpickling.py"
    broken.write_text(program.replace(safely, "weights_only=False)"))

    class Program:
        __file__ = str(broken)

    monkeypatch.setattr(pickled_checkpoints, "unpickling_process", Program)


def hostile(folder: Path, code: str) -> Path:
    torch.save({"weight": torch.zeros(2), "x": Runs(code)}, folder / "model.pt")
    return folder


@pytest.mark.usefixtures("got_round")
class TestOnceWeightsOnlyIsGotRound:
    def test_the_reader_has_no_secrets_of_its_caller(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """No environment, no standard input, no open file but the checkpoint; it could tell them by its answer."""
        monkeypatch.setenv("DPMERGE_PASSPHRASE", "a secret")
        told = folder.parent / "told"
        code = (
            "import os\n"
            f"open({str(told)!r}, 'w').write(repr((dict(os.environ), sorted(os.listdir('/proc/self/fd'), key=int))))"
        )
        secret = os.open(__file__, os.O_RDONLY)
        os.set_inheritable(secret, True)
        try:
            refused(hostile(folder, code), "holds 'x', a NoneType")
        finally:
            os.close(secret)
        environment, files = ast.literal_eval(told.read_text())
        assert "a secret" not in repr(environment)
        assert set(environment) <= {"HOME", "TMPDIR", "OMP_NUM_THREADS", "LC_ALL", "LC_CTYPE"} | {
            name for name in environment if name.startswith(("KMP_", "TORCH", "__KMP"))
        }
        assert len(files) <= 6, files  # three of its own, the checkpoint, and those that reading and listing open

    def test_the_reader_cannot_reach_the_network(self, folder: Path) -> None:
        alone = "import runpy, sys; sys.exit(not runpy.run_path(sys.argv[1])['without_network']())"
        if subprocess.run([sys.executable, "-c", alone, unpickling_process.__file__], check=False).returncode:
            pytest.skip("this system does not let a process leave the network")
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0)
            port = server.getsockname()[1]
            refused(
                hostile(folder, f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"), "a pickle that"
            )
            with pytest.raises(BlockingIOError):
                server.accept()

    def test_memory_beyond_the_limit_is_not_to_be_had(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pickled_checkpoints, "LEAST_MEMORY", 64 * 2**20)
        refused(hostile(folder, "x = bytearray(2**28)"), "bytes of memory that a file of its size may")

    def test_a_loop_without_end_is_ended_by_processor_time(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pickled_checkpoints, "LEAST_SECONDS", 1)
        refused(hostile(folder, "while True: pass"), "needs more than 1 seconds of processor time")

    def test_who_sleeps_for_ever_is_ended_with_all_it_started(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As root the limit on processes does not bind; then what it started goes with it."""
        monkeypatch.setattr(pickled_checkpoints, "LEAST_SECONDS", 0)
        monkeypatch.setattr(pickled_checkpoints, "TO_START", 12)
        mark = folder.parent / "child"
        code = (
            "import os, time\n"
            "try:\n"
            "    child = os.fork()\n"
            f"    if not child: open({str(mark)!r}, 'w').write(str(os.getpid()))\n"
            "except OSError: pass\n"
            "time.sleep(3600)"
        )
        monkeypatch.setattr(pickled_checkpoints, "LEAST_SECONDS", 3)
        began = time.monotonic()
        refused(hostile(folder, code), "was not read within 15 seconds")
        assert time.monotonic() - began < 60
        if mark.exists() and mark.read_text():
            deadline = time.monotonic() + 10
            while Path(f"/proc/{mark.read_text()}").exists() and time.monotonic() < deadline:
                status = Path(f"/proc/{mark.read_text()}/stat").read_text().rpartition(")")[2].split()[0]
                if status == "Z":  # dead, and nobody asks for it
                    break
                time.sleep(0.05)
            else:
                assert not Path(f"/proc/{mark.read_text()}").exists()

    def test_files_larger_than_a_model_of_this_file_are_not_written(self, folder: Path) -> None:
        refused(hostile(folder, "open('big', 'wb').write(bytes(2**25))"), "File too large")

    @pytest.mark.parametrize(
        ("code", "words"),
        [
            ("import os; os._exit(0)", "ends its reader without an answer"),
            ("import os; os.kill(os.getpid(), 11)", "ends its reader by SIGSEGV"),
            ("import os; print('{}', flush=True); os._exit(0)", "gave no model"),
            ("import os; print('[' * 100000, flush=True); os._exit(0)", "ends its reader without an answer"),
            (f"import os; os.symlink({__file__!r}, 'model.safetensors'); print('{{}}', flush=True); os._exit(0)", "no"),
        ],
        ids=["nothing", "a crash", "an answer without a model", "nonsense", "a link"],
    )  # fmt: skip
    def test_an_answer_of_its_own_is_not_believed(self, folder: Path, code: str, words: str) -> None:
        refused(hostile(folder, code), words)

    def test_a_model_it_made_up_is_checked_like_any_other(self, folder: Path) -> None:
        code = "import os; open('model.safetensors', 'wb').write(b'x' * 64); print('{}', flush=True); os._exit(0)"
        before = sorted(path.name for path in hostile(folder, code).iterdir())
        with pytest.raises(DpmergeError):
            dpm.import_models([folder], allow_pickle=True, **SAID)
        assert sorted(path.name for path in folder.iterdir()) == before


def test_a_reader_that_is_not_root_reads_under_limits_that_bind_it() -> None:
    """No further process for anybody but root; reading needs none."""
    if os.geteuid() != 0:
        pytest.skip("whoever runs the tests is that reader already")
    with tempfile.TemporaryDirectory() as name:
        place, nobody = Path(name), 65534
        torch.save({"weight": torch.ones(3)}, place / "model.pt")
        os.chown(place, nobody, nobody)
        script = (
            "import json, os, runpy, sys\n"
            "program = runpy.run_path(sys.argv[1])\n"
            "read = program['converted']\n"
            "read(os.open('model.pt', os.O_RDONLY), 'warm.safetensors', 2**40, 600)\n"  # imports as root
            "source = os.open('model.pt', os.O_RDONLY)\n"
            f"os.setgid({nobody}); os.setuid({nobody})\n"
            "print(json.dumps(read(source, 'm.safetensors', 2**29, 60)))\n"
            "try: os.fork()\n"
            "except BlockingIOError: print('no fork')\n"
        )
        code = [sys.executable, "-c", script, unpickling_process.__file__]
        done = subprocess.run(code, cwd=place, capture_output=True, text=True, check=False)
        assert '"history": null' in done.stdout, (done.stdout, done.stderr)
        assert (place / "m.safetensors").exists()
        assert done.stdout.endswith("no fork\n")


def test_the_caller_loads_no_torch_and_no_pickle(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(3)}, tmp_path / "model.pt")
    script = (
        "import sys; from pathlib import Path\n"
        "from dpmerge.portfolio.pickled_checkpoints import unpickled\n"
        f"unpickled(Path({str(tmp_path / 'model.pt')!r}), Path({str(tmp_path / 'model.safetensors')!r}))\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert unpickled(tmp_path / "model.pt", tmp_path / "again.safetensors").history is None
