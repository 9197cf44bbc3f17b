"""Merging three large checkpoints: mergekit, a plain torch loop and dpmerge, and a copy of one of them as the floor.

Everything runs on the same files, warm in the page cache, each in a process of its own, in turns. Timed is the merge,
without imports; memory is the peak of the process, and of that what came after the imports. The portfolio was read
once before, as `dpmerge inspect` and `plan` do: where BLAKE3 is installed, inputs are then compared by it; "by sha256"
is the same merge without the package.
DPMERGE_BENCH_FAST=1 takes small models, to see that it works.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from dpmerge.merging.layout import index_of, output_file
from dpmerge.portfolio.file_digests import FileHash, blake3_installed
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.tensors import TensorEntry
from portfolio.portfolios import manifest, write_json

FAST = bool(os.environ.get("DPMERGE_BENCH_FAST"))
HIDDEN, INNER, LAYERS, WORDS = (128, 352, 4, 1000) if FAST else (2048, 5504, 18, 32_000)
SHARDS, TURNS = 4, 1 if FAST else 3
WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}
MERGEKIT = Path(__file__).parents[1] / ".bench" / "mergekit"
REQUIREMENTS = ("mergekit==0.1.5", "torch==2.13.0")
ROOM = 30e9
GOALS = (
    ("hashed", "dpmerge", "mergekit", 3.0),
    ("unhashed", "dpmerge unhashed", "mergekit", 8.0),
    ("with release noise, against mergekit without", "dpmerge noise", "mergekit", 1.0),
    ("hashed, against a copy of one input", "dpmerge", "cp", 1 / 2),
)
"""What, whose time, the peer, and how many times faster than it that should be."""


@dataclass(frozen=True, kw_only=True)
class MeasuredMerge:
    seconds: float
    process: float
    cpu: float
    peak: float
    above_imports: float


def run(console: Console) -> dict[str, float]:
    """Print what was measured; return how many times faster than mergekit, or else than the torch loop, ours is."""
    with tempfile.TemporaryDirectory(prefix="dpmerge-bench-") as name, pytest.MonkeyPatch.context() as patch:
        home = Path(name)
        patch.setenv("DPMERGE_HOME", str(home / "private"))  # inherited by every merge that is measured
        if not FAST and shutil.disk_usage(home).free < ROOM:
            console.print(f"\n[bold]merging[/]: left out, it needs {ROOM / 1e9:.0f} GB in {home.parent}")
            return {}
        for seed, model in enumerate(WEIGHTS):
            _generate(home / "runs" / model, seed)
        size = sum(file.stat().st_size for file in (home / "runs" / "a").glob("*.safetensors"))
        console.print(
            f"\n[bold]merging[/]: three checkpoints of {size / 1e9:.2f} GB in bfloat16, {SHARDS} shards each, "
            f"median of {TURNS}"
        )
        Portfolio.load(home / "runs", contents=True)
        if not blake3_installed():
            console.print('without BLAKE3 (pip install "dpmerge[blake3]"): inputs are compared by SHA-256')
        scripts = _scripts(console)
        found: dict[str, list[MeasuredMerge]] = {what: [] for what in scripts}
        for _ in range(TURNS):
            for what, (python, script) in scripts.items():
                found[what].append(_measure(home, python, script))
    console.print(_table(found, size))
    console.print("s and ×: the merge alone; process: with imports. MB: peak; +MB: above imports. Goal: below 64 +MB.")
    if FAST:  # start-up is most of it: no ratio to compare with
        return {}
    alone = {what: statistics.median(each.seconds for each in turns) for what, turns in found.items()}
    for line in _reached(alone):
        console.print(line, markup=False)
    peers = [what for what in ("mergekit", "torch loop", "cp") if what in alone]
    ours = [what for what in alone if what.startswith("dpmerge")]
    return {f"{what} × {peer}": alone[peer] / alone[what] for peer in peers for what in ours}


def _reached(alone: dict[str, float]) -> Iterator[str]:
    """Each goal, and what was measured: where a copy is the peer, how many times longer than it a merge may take."""
    for words, ours, peer, goal in GOALS:
        if peer not in alone:
            yield f"{words}: not measured, {peer} is missing"
            continue
        ratio = alone[peer] / alone[ours]
        said = (
            f"{ratio:.1f} × {peer} (goal: {goal:g} ×)"
            if goal >= 1
            else f"{1 / ratio:.1f} × its time (goal: {1 / goal:g} ×)"
        )
        yield f"{words}: {said}: {'reached' if ratio >= goal else 'missed'}"


def _table(found: dict[str, list[MeasuredMerge]], size: int) -> Table:
    """Ratios are of medians: of the merge alone, and of the whole process as somebody at a terminal waits for it."""
    table = Table(
        "", "s", "range", "CPU s", "process s", "GB/s", "× mergekit", "process ×", "× cp", "MB", "+MB", box=SIMPLE
    )
    alone = {what: statistics.median(each.seconds for each in turns) for what, turns in found.items()}
    whole = {what: statistics.median(each.process for each in turns) for what, turns in found.items()}
    for what, turns in found.items():
        seconds = [each.seconds for each in turns]
        table.add_row(
            what,
            f"{alone[what]:.2f}",
            f"{min(seconds):.2f}–{max(seconds):.2f}",
            f"{statistics.median(each.cpu for each in turns):.1f}",
            f"{whole[what]:.2f}",
            f"{size / alone[what] / 1e9:.2f}",
            _times(alone.get("mergekit"), alone[what]),
            _times(whole.get("mergekit"), whole[what]),
            _times(alone[what], alone.get("cp")),
            f"{max(each.peak for each in turns):.0f}",
            f"{max(each.above_imports for each in turns):.0f}",
        )
    return table


def _times(many: float | None, few: float | None) -> str:
    return "–" if many is None or few is None else f"{many / few:.1f}"


def _measure(home: Path, python: str, script: str) -> MeasuredMerge:
    """One merge in its own process, which tells what it took."""
    out = home / "out"
    os.sync()  # nobody pays for what another one left to be written
    for file in (home / "runs").rglob("*.safetensors"):
        with file.open("rb") as warmed:
            while warmed.read(2**24):
                pass
    command = [python, "-c", script, str(home / "runs"), str(out)]
    start = time.perf_counter()
    result = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    process = time.perf_counter() - start
    shutil.rmtree(out, ignore_errors=True)
    if result.returncode:
        raise RuntimeError(result.stderr[-2000:])
    told = json.loads(result.stdout.splitlines()[-1])
    peak, imported = told["peak"] / 1e3, told["imported"] / 1e3
    above = peak - imported
    return MeasuredMerge(seconds=told["seconds"], process=process, cpu=told["cpu"], peak=peak, above_imports=above)


_FRAME = """
import json, os, re, sys, time
{imports}
def memory():  # getrusage would count what this process was before it became Python
    return int(re.search("VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
home, out = sys.argv[1:]
{preparation}
imported, start, cpu = memory(), time.perf_counter(), sum(os.times()[:4])
{action}
seconds, cpu = time.perf_counter() - start, sum(os.times()[:4]) - cpu
print(json.dumps(dict(seconds=seconds, cpu=cpu, imported=imported, peak=memory())))
"""


def _script(imports: str, preparation: str, action: str) -> str:
    parts = {"imports": imports, "preparation": preparation, "action": action}
    return _FRAME.format(**{name: textwrap.dedent(text) for name, text in parts.items()})


def _scripts(console: Console) -> dict[str, tuple[str, str]]:
    copied = _script("import subprocess", "", "subprocess.run(['cp', '-r', '--reflink=never', home + '/a', out])")
    scripts = {"cp": (sys.executable, copied)}
    if (peer := _mergekit(console)) is not None:
        scripts["mergekit"] = (peer, _MERGEKIT)
    scripts["torch loop"] = (sys.executable, _TORCH)
    scripts["dpmerge unhashed"] = (sys.executable, _dpmerge("hashing=False"))
    scripts["dpmerge 1 thread"] = (sys.executable, _dpmerge("jobs=1"))
    scripts["dpmerge noise"] = (sys.executable, _dpmerge("release_noise=0.001"))
    if blake3_installed():
        scripts["dpmerge by sha256"] = (sys.executable, "import sys; sys.modules['blake3'] = None" + _dpmerge())
    scripts["dpmerge"] = (sys.executable, _dpmerge())
    return scripts


_MERGEKIT = _script(
    "import torch\nfrom mergekit.config import MergeConfiguration\nfrom mergekit.merge import run_merge\n"
    "from mergekit.options import MergeOptions\n",
    f"""
    models = [dict(model=home + "/" + name, parameters=dict(weight=w)) for name, w in {WEIGHTS!r}.items()]
    config = MergeConfiguration.model_validate(dict(merge_method="linear", models=models, dtype="bfloat16"))
    options = MergeOptions(
        copy_tokenizer=False, write_model_card=False, quiet=True, lazy_unpickle=True, out_shard_size=270_000_000
    )
    """,
    "run_merge(config, out, options)",
)

_TORCH = _script(
    "import os, torch\nfrom pathlib import Path\n"
    "from safetensors import safe_open\nfrom safetensors.torch import save_file",
    "os.mkdir(out)",
    f"""
    for shard in sorted(Path(home, "a").glob("*.safetensors")):
        files = [(safe_open(Path(home, n, shard.name), framework="pt"), w) for n, w in {WEIGHTS!r}.items()]
        merged = {{
            name: sum(w * file.get_tensor(name).float() for file, w in files).to(torch.bfloat16)
            for name in files[0][0].keys()
        }}
        save_file(merged, Path(out, shard.name), metadata=dict(format="pt"))
    """,
)


def _dpmerge(settings: str = "") -> str:
    return _script(
        "import os\nfrom pathlib import Path\nfrom dpmerge.merging.engine import merge\n"
        "from dpmerge.portfolio.portfolio import Portfolio",
        f"""
        os.mkdir(out)
        saved = [(c, {WEIGHTS!r}[c.run]) for c in Portfolio.load(home, contents=False).checkpoints()]
        """,
        f"merge(saved, Path(out), donor=saved[0][0], trained=None, {settings})",
    )


def _mergekit(console: Console) -> str | None:
    """The interpreter of an environment that has it, made the first time."""
    python = MERGEKIT / "bin" / "python"
    if not (MERGEKIT / "complete").exists():
        console.print("installing mergekit into an environment of its own …")
        shutil.rmtree(MERGEKIT, ignore_errors=True)
        made = subprocess.run([sys.executable, "-m", "venv", str(MERGEKIT)], check=False)  # noqa: S603
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS]
        if made.returncode or subprocess.run(pip, check=False).returncode:  # noqa: S603
            console.print("mergekit could not be installed: the others are measured alone")
            return None
        (MERGEKIT / "complete").touch()
    return str(python)


def _tensors() -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors of a model of the Llama family."""
    yield "model.embed_tokens.weight", (WORDS, HIDDEN)
    for layer in range(LAYERS):
        start = f"model.layers.{layer}"
        for name in "qkvo":
            yield f"{start}.self_attn.{name}_proj.weight", (HIDDEN, HIDDEN)
        yield f"{start}.mlp.gate_proj.weight", (INNER, HIDDEN)
        yield f"{start}.mlp.up_proj.weight", (INNER, HIDDEN)
        yield f"{start}.mlp.down_proj.weight", (HIDDEN, INNER)
        yield f"{start}.input_layernorm.weight", (HIDDEN,)
        yield f"{start}.post_attention_layernorm.weight", (HIDDEN,)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (WORDS, HIDDEN)


def _generate(folder: Path, seed: int) -> None:
    """A run of one checkpoint: weights, index, configuration and manifest."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    block = (0.02 * random.standard_normal(2**22, dtype=np.float32)).view(np.uint32) >> 16
    values = np.tile(block.astype(np.uint16), 2)  # every tensor begins somewhere else in it
    slots = [TensorEntry(name, "BF16", shape, 0, 2 * int(np.prod(shape))) for name, shape in _tensors()]
    files = []
    for place, shard in enumerate(_shards(slots)):
        files.append(output_file(f"model-{place + 1:05}-of-{SHARDS:05}.safetensors", shard, for_pytorch=True))
    index = index_of(files)
    assert index is not None
    (folder / index[0]).write_bytes(index[1])
    listed = []
    for file in files:
        digest = FileHash(file.header)
        with (folder / file.name).open("wb") as written:
            written.write(file.header)
            for slot in file.slots:
                for start in range(slot.start, slot.end, 2**23):
                    at = int(random.integers(2**22))
                    piece = values[at : at + min(2**23, slot.end - start) // 2].tobytes()
                    written.write(piece)
                    digest.update(piece)
        found = digest.digests()
        listed.append({"name": file.name, "sha256": found.sha256, **({"blake3": found.blake3} if found.blake3 else {})})
    (folder / "config.json").write_text(json.dumps(_config()))
    document = manifest(folder.name, tensors=None, initial_weights=None)
    write_json(folder / "privacy.json", {**document, "checkpoints": [{"step": 4, "files": listed}]})


def _shards(slots: Sequence[TensorEntry]) -> Iterator[list[TensorEntry]]:
    whole = sum(slot.end for slot in slots)
    shards: list[list[TensorEntry]] = [[] for _ in range(SHARDS)]
    done = 0
    for slot in slots:
        shards[done * SHARDS // whole].append(slot)
        done += slot.end
    yield from shards


def _config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "vocab_size": WORDS,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": 16, "num_key_value_heads": 16,
        "torch_dtype": "bfloat16", "tie_word_embeddings": False, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
    }  # fmt: skip
