"""docs/usefulness.md from the numbers in docs/usefulness/results.json: tables, and sentences that count their rows.

Guarantees: the page is a function of the document; no number in it is typed in.
Refuses: documents of another kind.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from dpmerge.errors import InvalidInputError
from dpmerge.report.whole_files import write_whole
from dpmerge.terms.recipe import shortened
from usefulness.scoring import differences, percent, verdict

SCHEMA = "dpmerge/usefulness/v1"
RESULTS = Path("usefulness") / "results.json"

Document = Mapping[str, Any]

ORDER = ("linear", "mlp", "cnn", "resnet", "lora")
"""Of portfolios on the page, whichever was measured last."""

STARTS = {"zero": "zero weights", "random": "one random start", "public": "one public start"}


def read(file: Path) -> dict[str, Any]:
    """The numbers, as `write_results` wrote them."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInputError("results", str(file), "a results file", found=f"{file}: {error}") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise InvalidInputError("results", str(file), f"a document of schema {SCHEMA}")
    return content


def write_results(
    file: Path,
    name: str,
    found: Document,
    scale: Document,
    seeds: Sequence[int],
    versions: Mapping[str, str],
) -> None:
    """Put one portfolio's numbers beside those of the others, if these were measured alike."""
    settings = json.loads(json.dumps({"schema": SCHEMA, "scale": scale, "seeds": seeds}))
    try:
        before = read(file)
    except InvalidInputError:
        before = {}
    alike = all(before.get(key) == value for key, value in settings.items())
    portfolios = {**(before["portfolios"] if alike else {}), name: {**found, "versions": dict(versions)}}
    file.parent.mkdir(parents=True, exist_ok=True)
    content = _rounded({**settings, "portfolios": {each: portfolios[each] for each in ORDER if each in portfolios}})
    write_whole(file, (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def _rounded(value: Any) -> Any:
    """Floats to eight digits, which is more than any of them means."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return float(f"{value:.8g}") if isinstance(value, float) else value


def page(results: Document) -> str:
    """The whole page."""
    portfolios: Document = results["portfolios"]
    return "\n".join(
        _wrapped(line)
        for line in [
            *_introduction(results),
            "",
            "## What auto would release, and the single model",
            "",
            *_answers(portfolios),
            "",
            *_main_table(portfolios),
            "",
            "## When averaging works",
            "",
            *_averaging(portfolios),
            "",
            "## What was trained",
            "",
            *_trained(results),
            "",
        ]
    )


def _wrapped(line: str) -> str:
    """Prose in lines of 120; a row of a table is one line, however long."""
    if line.startswith("|"):
        return line
    whole = re.sub(r"\[[^\]]*\]\(|[εσδ] = \S+|\S+ points", lambda found: found[0].replace(" ", "\0"), line)
    rest = "  " if line.startswith("- ") else ""
    filled = textwrap.fill(whole, 120, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)
    return filled.replace("\0", " ")


def _introduction(results: Document) -> Iterator[str]:
    scale, seeds = results["scale"], results["seeds"]
    rows = [row for each in results["portfolios"].values() for row in each["targets"]]
    counts = Counter(verdict(_gain(row)) for row in rows)
    yield "# Is it any use?"
    yield ""
    yield (
        "*I have some privately trained models, and somebody asks for one at ε. Is what `dpmerge plan` would release "
        "at least as good as the model I already had: the least private finished one within ε?*"
    )
    yield ""
    yield (
        f"Measured in {len(rows)} cases ({len(results['portfolios'])} portfolios, each at "
        f"{len(rows) // max(1, len(results['portfolios']))} values of ε, with {len(seeds)} seeds): "
        f"**better in {counts['better']}, the same in {counts['same']}, worse in {counts['worse']}**, and "
        f"{counts['undecided']} in which the seeds disagree. *Better* and *worse* mean that every seed says so."
    )
    yield ""
    yield (
        "Everything here comes from `make usefulness` (`python -m usefulness`): it trains the portfolios with Opacus "
        "under the [recorder](reference/recording.md), plans, merges, and counts right answers on "
        f"{scale['tests']:,} test images. The numbers are in [results.json](usefulness/results.json), and this page is "
        "written from them. `--cache DIR` says where finished runs are kept (so that it can be interrupted), `--data "
        "DIR` where the images are, `--output DIR` where this page goes; `--redraw` writes the page again without "
        "training. Names of portfolios measure those alone."
    )


def _answers(portfolios: Document) -> Iterator[str]:
    yield "Accuracy in percent, mean ± standard deviation over the seeds; δ = 10⁻⁵."
    yield ""
    yield "- **auto**: what `dpmerge plan` would release; of a random draw, what is expected of it."
    yield "- **single**: the least private finished model within ε, which needs no planning."
    yield "- **oracle**: the checkpoint within ε that is best *on the test images*, seed by seed; nobody has it."
    yield (
        "- **mix**: averages and draws by the least predicted noise, whatever the model (`--method mix`, of "
        "checkpoints from the last fifth of their runs unless others have a third of the noise)."
    )
    yield "- **auto − single** is taken seed by seed, so that its spread is not that of the training."
    yield ""
    for name, each in portfolios.items():
        yield f"- `{name}`: {_summary(each)}"


def _summary(portfolio: Document) -> str:
    """One portfolio in a sentence made of its rows."""
    rows = portfolio["targets"]
    gains = {column: [mean(_gain(row, column)) for row in rows] for column in ("auto", "mix")}
    worst = min(range(len(rows)), key=lambda place: gains["auto"][place])
    counts = Counter(verdict(_gain(row)) for row in rows)
    told = ", ".join(f"{word} in {counts[word]}" for word in ("better", "same", "worse", "undecided") if counts[word])
    return (
        f"auto is {told} of {len(rows)}; on average {_points(mean(gains['auto']))} against the single model, at worst "
        f"{_points(gains['auto'][worst])} (ε = {rows[worst]['epsilon']:g}). mix: on average "
        f"{_points(mean(gains['mix']))}, at worst {_points(min(gains['mix']))}."
    )


def _points(value: float) -> str:
    number = round(100 * value, 1) + 0.0
    return f"{number:+.1f} points".replace("-", "−") if number else "0.0 points"


def _main_table(portfolios: Document) -> Iterator[str]:
    yield "| portfolio | ε | auto | single | oracle | mix | auto − single | | what auto chose |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- |"
    for name, each in portfolios.items():
        for row in each["targets"]:
            gain = _gain(row)
            cells = [percent(row[column]["accuracy"]) for column in ("auto", "single", "oracle", "mix")]
            word = verdict(gain)
            shown = f"**{word}**" if word == "worse" else word
            chosen = _chosen(row["auto"])
            yield (
                f"| {name} | {row['epsilon']:g} | {' | '.join(cells)} | {percent(gain, sign=True)} | {shown} | "
                f"{chosen}; single: {row['single']['checkpoint']} |"
            )


def _gain(row: Document, column: str = "auto") -> list[float]:
    return differences(row[column]["accuracy"], row["single"]["accuracy"])


def _chosen(released: Document) -> str:
    """What would be released, in a few words.

    >>> one = {"probability": 1.0, "weights": {"a@9": 1.0}, "release_noise": 0.0}
    >>> two = {"probability": 0.75, "weights": {"a@9": 0.5, "b@9": 0.5}, "release_noise": 0.0}
    >>> _chosen({"candidates": [one]}), _chosen({"candidates": [{**one, "probability": 0.25}, two]})
    ('a@9', 'draw: 0.25 a@9, 0.75 average of a@9, b@9')
    """
    candidates = released["candidates"]
    if len(candidates) == 1:
        return _model(candidates[0])
    drawn = ", ".join(f"{each['probability']:.2g} {_model(each)}" for each in candidates)
    return f"draw: {drawn}"


def _model(candidate: Document) -> str:
    names = list(candidate["weights"])
    noise = " and noise" if candidate["release_noise"] else ""
    return (names[0] if len(names) == 1 else f"average of {', '.join(shortened(names))}") + noise


def _averaging(portfolios: Document) -> Iterator[str]:
    yield (
        "Averages of finished models with [precision weights](reference/verbs/plan.md), beside the least private model "
        "in them. By [joint release](concepts/glossary.md#joint-release) an average costs a little more than that "
        "model does alone, so that one that is no better is worth nothing. Averages of low-rank adapters are of each "
        "factor by itself, and a product of averages is not the average of the products."
    )
    yield ""
    for name, each in portfolios.items():
        counts = Counter(verdict(_over_single(average)[2]) for average in each["averages"])
        told = ", ".join(
            f"{word} in {counts[word]}" for word in ("better", "same", "worse", "undecided") if counts[word]
        )
        overall = mean(mean(_over_single(average)[2]) for average in each["averages"])
        yield f"- `{name}` ({STARTS[each['start']]}): {told} of {len(each['averages'])}, on average {_points(overall)}."
    yield ""
    yield "| portfolio | begins at | average of | ε | accuracy | least private of them | ε | accuracy | difference | |"
    yield "| --- | --- | --- | ---: | ---: | --- | ---: | ---: | ---: | --- |"
    for name, each in portfolios.items():
        for average in each["averages"]:
            single, facts, gain = _over_single(average)
            word = verdict(gain)
            yield (
                f"| {name} | {STARTS[each['start']]} | {', '.join(average['weights'])} | {average['epsilon']:.3g} | "
                f"{percent(average['accuracy'])} | {single} | {facts['epsilon']:.3g} | {percent(facts['accuracy'])} | "
                f"{percent(gain, sign=True)} | {f'**{word}**' if word == 'worse' else word} |"
            )


def _over_single(average: Document) -> tuple[str, Document, list[float]]:
    """The least private model of an average, and how much better than it the average is, seed by seed."""
    name, facts = max(average["singles"].items(), key=lambda item: item[1]["epsilon"])
    return name, facts, differences(average["accuracy"], facts["accuracy"])


def _trained(results: Document) -> Iterator[str]:
    scale = results["scale"]
    noises = ", ".join(f"{noise:g}" for noise in scale["noises"])
    yield (
        f"Each portfolio: runs with σ = {noises} (named `s` and σ), Poisson batches of {scale['batch']} expected of "
        f"{scale['records']:,} private records, clip norm {scale['clip_norm']:g}, a constant rate, one start, four "
        "checkpoints each (named `@` and the step); [adjacency](concepts/glossary.md#adjacency) add_remove. Rates, the "
        "batch size and the number of steps were chosen by how single models did in a few trials on test images, "
        "before a plan of that portfolio was scored. Seeds differ in noise, in batches and in random starts; test "
        "images, private images and the public starts are the same, so that what other data would change is not in the "
        "±."
    )
    yield ""
    yield "| portfolio | model | begins at | rate | steps | ε of the finished models | seconds to train, a seed |"
    yield "| --- | --- | --- | ---: | ---: | --- | --- |"
    for name, each in results["portfolios"].items():
        last = f"@{each['steps']}"
        costs = [facts["epsilon"] for point, facts in each["checkpoints"].items() if point.endswith(last)]
        seconds = ", ".join(f"{value:.0f}" for value in each["seconds_to_train"])
        yield (
            f"| {name} | {each['described']} | {STARTS[each['start']]} | {each['rate']:g} | {each['steps']} | "
            f"{', '.join(f'{cost:.3g}' for cost in costs)} | {seconds} |"
        )
    yield ""
    yield (
        f"The ResNet's public start was trained without privacy on {scale['resnet_public']:,} images of CIFAR-10 that "
        f"are not among the private ones, the transformer's on {scale['transformer_public']:,} upright images of MNIST."
    )
