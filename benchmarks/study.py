"""A study: heads on one footing, on the same frozen features. Of PASCAL VOC 2007, or of MS-COCO's 80 labels.

    python benchmarks/study.py voc tune test compare alone --data voc:/data/VOCdevkit --out study/voc
    python benchmarks/study.py methods_voc test --rows hsq gap --data voc:/data/VOCdevkit --out study/methods

benchmarks/study_voc.yaml and study_coco.yaml hold the rows, what a stage trains and measures on, and the names of the
files in docs/results that a study writes; `methods_voc` and `methods_coco` have one row for every head, `coco_all` the
best rows on all photos. `tune` tries the settings of each head; `test` trains with the settings that won and measures
once on test, with several seeds, first one seed of every row, then the next; `compare` takes the rows of `test` in
pairs, on the same halves of the test images; `alone` compares some with a separate model for each label; `cost` times a
training step and an answer of every head, in turns, on as many threads as OMP_NUM_THREADS says. `--rows` runs some of
the rows. `labelwise report` compares the folders of any runs.

Stop and start as you like: a run that is finished in --out is not trained again. Beside the JSON of `test` lies an .npz
with each run's mAP on the same random halves of the test images. It is all that `compare` needs, so runs may come from
several machines: what is in it is not run again, either.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
import yaml
from lightning_fabric import Fabric
from torch import Tensor

from labelwise import losses
from labelwise.analysis.comparison import difference_as_dict, difference_rows, label_differences
from labelwise.analysis.measured import measure_runs, report_data
from labelwise.analysis.transfer import negative_transfer
from labelwise.core.files import atomic_write
from labelwise.data import open_data
from labelwise.engines.measure import in_turns
from labelwise.evaluation import paired_difference
from labelwise.evaluation.bootstrap import Draws
from labelwise.heads import Head, optimize, preset
from labelwise.runtime.run_files import MODEL
from labelwise.sweeps.execute import Outcome, run_sweep
from labelwise.sweeps.plan import PlannedRun
from labelwise.training import load_recipe
from labelwise.training.distributed import create_fabric
from labelwise.training.run import Run, read_history
from labelwise.training.setup import build_model

STUDIES = ("voc", "coco", "coco_all", "methods_voc", "methods_coco")
TRAINING = ("tune", "test")
AFTERWARDS = ("compare", "alone", "cost")  # stages that use the runs of `test`
METRICS = ("mAP", "CF1", "OF1", "CF1_top3", "OF1_top3")
RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"


def read_study(name: str) -> dict[str, Any]:
    """The rows of a study, and the settings of its stages. Studies may be `like` others but for a few settings."""
    study: dict[str, Any] = yaml.safe_load(Path(__file__).with_name(f"study_{name}.yaml").read_text(encoding="utf-8"))
    if "like" in study:
        study = read_study(study.pop("like")) | study
    if "only" in study:
        study["rows"] = {row: study["rows"][row] for row in study["only"]}
    for row, changes in study.get("changes", {}).items():
        study["rows"][row] = study["rows"][row] | {"set": study["rows"][row]["set"] | changes}
    if "reference" in study:
        study["compare"] = [[row, study["reference"]] for row in study["rows"] if row != study["reference"]]
    return study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("stages", nargs="+", choices=(*TRAINING, *AFTERWARDS), metavar="stage")
    parser.add_argument("--data")
    parser.add_argument("--words", help="word vectors of the labels, for rows on words")
    parser.add_argument("--out", type=Path, required=True, help="a folder for the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="a folder for the numbers")
    parser.add_argument("--rows", nargs="+", default=["*"], help="names of rows, with wildcards")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()

    study = read_study(arguments.study)
    if unknown := {*arguments.stages} & {*TRAINING} - study["stages"].keys():
        parser.error(f"the study {arguments.study} has no stage {min(unknown)}")
    for stage in arguments.stages:
        trained = "tune" if stage == "tune" else "test"
        file, out = arguments.results / f"{study['results'][trained]}.json", arguments.out / trained
        result = json.loads(file.read_text()) if file.exists() else {"runs": []}
        if stage in TRAINING:
            run_stage(stage, plan(study, stage, out, arguments), out, result, file, arguments.jobs)
        elif stage == "compare":
            found = differences(result["runs"], study, out, read_halves(file))
            pairs = {(each["row"], each["reference"]): each for each in result.get("differences", [])}
            for each in found:  # a pair whose runs are elsewhere keeps what was found there
                pairs[each["row"], each["reference"]] = pairs.get((each["row"], each["reference"]), {}) | each
            write(result | {"differences": list(pairs.values())}, file)
        elif stage == "alone":
            write(result | {"alone": transfers(study["alone"], out)}, file)
        else:
            timed = {run.settings["row"]: run for run in plan(study, "test", out, arguments)}  # one seed of each row
            write(result | {"costs": result.get("costs", {}) | costs([*timed.values()])}, file)


def run_stage(stage: str, planned: list[PlannedRun], out: Path, result: dict[str, Any], file: Path, jobs: int) -> None:
    """Train what is not finished, and add each run to the results."""
    halves = read_halves(file)
    rates = {f"{run['row']}_seed-{run['seed']}": run.get("lr") for run in result["runs"]}
    runs = [run for run in planned if run.name not in halves or rates.get(run.name) != run.recipe.optimizer.lr]

    def tell(outcome: Outcome, number: int) -> None:
        print(f"[{number + 1} of {len(runs)}] {outcome.planned.name}: {outcome.status} {outcome.reason}", flush=True)
        if outcome.status == "finished":
            settings = outcome.planned.settings
            others = [row for row in result["runs"] if any(row.get(key) != settings[key] for key in settings)]
            result["runs"] = [*others, numbers(outcome, out, stage)]
            result["summary"] = summary(result["runs"])
            write(result, file)
            if stage == "test":
                folder = out / outcome.planned.name
                halves[folder.name] = draws_of(folder)[0].metrics["mAP"].astype(np.float32)
                atomic_write(halves_file(file), partial(save_arrays, halves))

    run_sweep(runs, out, test_split="test" if stage == "test" else None, jobs=jobs, tell=tell)


def write(result: dict[str, Any], path: Path) -> None:
    atomic_write(path, json.dumps(result, indent=1) + "\n")


def halves_file(results: Path) -> Path:
    return results.with_suffix(".npz")


def read_halves(results: Path) -> dict[str, np.ndarray]:
    """The mAP of each run on random halves of the test images, by the run's name; [S] each."""
    path = halves_file(results)
    if not path.exists():
        return {}
    with np.load(path) as stored:
        return dict(stored)


def save_arrays(arrays: dict[str, np.ndarray], path: Path) -> None:
    with path.open("wb") as file:  # numpy would add a suffix to a path
        np.savez_compressed(file, **arrays)


def plan(study: dict[str, Any], stage: str, out: Path, arguments: argparse.Namespace) -> list[PlannedRun]:
    """The runs of a stage in `out`, one seed of every row before the next seed."""
    rows = study["rows"]
    always = {"data.source": arguments.data, "thresholds": "none"} | study["always"]
    return [
        PlannedRun(f"{name}_seed-{seed}", {"row": row, **tried, "seed": seed}, load_recipe(None, changes))
        for seed in ([0] if stage == "tune" else arguments.seeds)
        for row, settings in rows.items()
        if any(fnmatch(row, pattern) for pattern in arguments.rows) and stage in settings.get("stages", study["stages"])
        if stage == "test" or "try" in settings
        for name, tried in (trials(row, settings) if stage == "tune" else [(row, {})])
        for earlier in [start(settings, rows, stage, out, seed, arguments.words)]
        for changes in [always | settings["set"] | study["stages"][stage] | earlier | tried | {"seed": seed}]
    ]


def trials(row: str, settings: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every combination of what a row tries, with a name for its folder."""
    tried: dict[str, list[Any]] = settings["try"]
    for values in product(*tried.values()):
        chosen = dict(zip(tried, values, strict=True))
        yield trial_name(row, chosen), chosen


def trial_name(row: str, chosen: dict[str, Any]) -> str:
    return "_".join([row, *(f"{key.rsplit('.', 1)[-1]}-{value}" for key, value in chosen.items())])


def start(
    settings: dict[str, Any], rows: dict[str, dict[str, Any]], stage: str, out: Path, seed: int, words: str
) -> dict[str, Any]:
    """What a row starts from: `after` another one, that one's model with the same seed (of its trials, the winner);
    on words, the words."""
    chosen = settings["set"]
    if chosen.get("model.options.queries") == "words" or preset(chosen["model.head"]).takes_words:
        return {"model.words": words}
    if "after" not in settings:
        return {}
    row = settings["after"]
    winner = {key: rows[row]["set"][key] for key in rows[row]["try"]}
    name = trial_name(row, winner) if stage == "tune" else row
    return {"model.start": str(out / f"{name}_seed-{seed}")}


def numbers(outcome: Outcome, out: Path, stage: str) -> dict[str, Any]:
    history = read_history(out / outcome.planned.name)
    row: dict[str, Any] = {**outcome.planned.settings, "seconds": round(history[-1]["seconds"], 1)}
    if stage == "tune":
        return row | {"val_mAP": [round(epoch["mAP"], 2) for epoch in history]}
    assert outcome.measured is not None
    complexity = outcome.measured["complexity"]
    return row | {
        "lr": outcome.planned.recipe.optimizer.lr,  # another one in the list of rows makes it another run
        **{name: outcome.measured[name] for name in METRICS},
        "AP": {entry["label"]: entry["AP"] for entry in outcome.measured["per_label"]},
        "head_parameters": complexity["parameters"] - complexity["parts"]["backbone"]["parameters"],
        "head_macs": complexity["macs"] - complexity["parts"]["backbone"]["macs"],
        "images_per_second": round(max(epoch["images_per_second"] for epoch in history)),  # of the least disturbed one
    }


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means and standard deviations over the seeds; of a trial, its last epoch on val."""
    if "val_mAP" in rows[0]:
        ranked = sorted(rows, key=lambda row: (row["row"], -row["val_mAP"][-1]))
        return [
            {key: value for key, value in row.items() if key != "val_mAP"} | {"mAP": row["val_mAP"][-1]}
            for row in ranked
        ]
    found = []
    for name in dict.fromkeys(row["row"] for row in rows):
        same = [row for row in rows if row["row"] == name]
        spread = {f"{key}_sd": stdev(row[key] for row in same) for key in METRICS if len(same) > 1}
        means = {key: mean(row[key] for row in same) for key in (*METRICS, "seconds")}
        found.append(
            {
                "row": name,
                "seeds": len(same),
                **means,
                **spread,
                "head_parameters": same[0]["head_parameters"],
                "head_macs": same[0]["head_macs"],
            }
        )
    return found


def differences(
    runs: list[dict[str, Any]], study: dict[str, Any], out: Path, halves: dict[str, np.ndarray]
) -> list[dict[str, Any]]:
    """The first row of each pair in `compare` minus the second one, in percent: mAP, and for the pairs in
    `compare_labels` the AP of every label.

    Means over the seeds that both rows have. Intervals are those of the test images, from the seeds with `halves`; how
    much seeds differ is not in them, so `of_seeds` has the difference of each.
    """
    scores = {(run["row"], run["seed"]): run["mAP"] for run in runs}
    found = []
    for pair in study["compare"]:
        row, reference = pair
        common = sorted(seed for name, seed in scores if name == row and (reference, seed) in scores)
        halved = [names for seed in common if halves.keys() >= set(names := [f"{name}_seed-{seed}" for name in pair])]
        if not halved:
            continue
        of_seeds = [scores[row, seed] - scores[reference, seed] for seed in common]
        ours, theirs = (np.mean([halves[name] for name in names], axis=0) for names in zip(*halved, strict=True))
        found.append(
            {"row": row, "reference": reference, "seeds": common}
            | difference_as_dict(paired_difference(mean(of_seeds) / 100, ours, theirs))
            | {"of_seeds": of_seeds}
        )
        if pair in study.get("compare_labels", []) and (labels := differences_of_labels(pair, common, runs, out)):
            found[-1]["labels"] = labels
    return found


def differences_of_labels(
    pair: list[str], seeds: list[int], runs: list[dict[str, Any]], out: Path
) -> list[dict[str, Any]]:
    """The AP of every label, first row minus second: means over the seeds, with intervals from the runs in `out`."""
    folders = [[out / f"{row}_seed-{seed}" for row in pair] for seed in seeds]
    each = [[draws_of(folder) for folder in both] for both in folders if all((path / MODEL).exists() for path in both)]
    if not each:
        return []
    ours, theirs = (mean_draws([draws for draws, _ in same]) for same in zip(*each, strict=True))
    labels = each[0][0][1]
    precision = {(run["row"], run["seed"]): np.array([run["AP"][label] for label in labels], float) for run in runs}
    gaps = np.mean([precision[pair[0], seed] - precision[pair[1], seed] for seed in seeds], axis=0) / 100
    return difference_rows(labels, *label_differences(gaps, ours, theirs))


@cache
def draws_of(folder: Path) -> tuple[Draws, tuple[str, ...]]:
    """A run's metrics on random halves of the test images, the same ones for every run; and its labels."""
    run = Run(folder)
    (measured,) = measure_runs([run], report_data([run], None, "test").measured, folder)
    assert measured.evaluation.draws is not None
    return measured.evaluation.draws, measured.labels


def mean_draws(draws: Sequence[Draws]) -> Draws:
    """Means over runs, of average precisions."""
    return replace(
        draws[0],
        average_precision=np.mean([run.average_precision for run in draws], axis=0),
        whole_average_precision=np.mean([run.whole_average_precision for run in draws], axis=0),
    )


def transfers(rows: list[str], out: Path) -> list[dict[str, Any]]:
    """The first seed in `out` of some rows against a logistic regression for each label alone, on the same features."""
    found = []
    for row in rows:
        for folder in sorted(path.parent for path in out.glob(f"{row}_seed-*/{MODEL}"))[:1]:
            run = Run(folder)
            (measured,) = measure_runs([run], report_data([run], None, "test").measured, folder)
            found.append({"row": row} | negative_transfer(measured).to_dict(measured.labels))
    return found


def costs(runs: list[PlannedRun]) -> dict[str, dict[str, float]]:
    """Milliseconds of each row's head for a batch of maps: a training step, and an answer when optimised.

    All rows in turns, so that other work on the machine slows them alike. The backbone and reading are not in it.
    """
    table, fabric = open_data(runs[0].recipe.data.source or ""), create_fabric(runs[0].recipe)
    parts, steps = {}, {}
    for run in runs:
        model, row = build_model(run.recipe, table.labels, table).eval(), run.settings["row"]
        size = model.config.preprocessing.size
        with torch.no_grad():
            maps = model.backbone(torch.rand(1, 3, size, size)).repeat(run.recipe.batch_size, 1, 1, 1)  # [B, C, H, W]
        parts[row] = model.head, maps
        steps[row] = partial(step, model.head.train(), torch.optim.AdamW(model.head.parameters()), maps, fabric)
    training = in_turns(steps, seconds=0)
    # Now that they have learned something: what is 0 in the beginning may be left out of an optimised head.
    answers = {row: partial(answer, optimize(head, maps[0, 0].numel()), maps) for row, (head, maps) in parts.items()}
    answering = in_turns(answers, seconds=0)
    return {
        row: {"batch": len(maps), "train_ms": training[row].best, "answer_ms": answering[row].best}
        for row, (_, maps) in parts.items()
    }


def step(head: Head, optimizer: torch.optim.Optimizer, maps: Tensor, fabric: Fabric) -> None:
    """A step of the training loop in the recipe's precision, with random labels."""
    targets = (torch.rand(len(maps), head.labels) < 0.1).float()
    known = {}
    if head.takes_known:
        known["known"], targets = head.draw_known(targets)
    with fabric.autocast():
        terms = head.loss_terms(head(maps, **known), targets)
    loss = losses.create("asymmetric").weighted(terms.logits, terms.targets, terms.image_weights) + terms.penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@torch.inference_mode()
def answer(head: torch.nn.Module, maps: Tensor) -> None:
    head(maps)


if __name__ == "__main__":
    main()
