"""The study on PASCAL VOC 2007: every head on one footing, on the same frozen features.

    python benchmarks/voc_study.py tune --data voc:/data/VOCdevkit --out study/tune --json docs/results/voc-tuning.json
    python benchmarks/voc_study.py test --data voc:/data/VOCdevkit --out study/test --json docs/results/voc-study.json

benchmarks/voc_study.yaml holds the rows. `tune` tries the settings of each head on train and measures them on val;
`test` trains with the settings that won on train and val together, and measures once on test, with several seeds.
`--rows` runs some of the rows. Finished runs are kept: stop and start as you like. `labelwise report` compares the
folders of any runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import yaml

from labelwise.sweeps.execute import Outcome, run_sweep
from labelwise.sweeps.plan import PlannedRun
from labelwise.training import load_recipe
from labelwise.training.run import read_history

ROWS = Path(__file__).with_suffix(".yaml")
METRICS = ("mAP", "CF1", "OF1", "CF1_top3", "OF1_top3")
SPLITS: dict[str, dict[str, Any]] = {
    "tune": {"data.train": "train", "data.validation": "val"},
    # Nothing is left to choose an epoch by: the last one counts.
    "test": {"data.train": "train+val", "data.validation": None},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=SPLITS)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True, help="a folder for the runs")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--rows", default="*", help="names of rows, with wildcards")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()

    study = yaml.safe_load(ROWS.read_text(encoding="utf-8"))
    seeds = [0] if arguments.stage == "tune" else arguments.seeds
    always = {"data.source": arguments.data, "thresholds": "none"} | SPLITS[arguments.stage] | study["always"]
    runs = [
        PlannedRun(f"{name}_seed-{seed}", {"row": row, **tried, "seed": seed}, load_recipe(None, changes))
        for row, settings in study["rows"].items()
        if fnmatch(row, arguments.rows) and arguments.stage in settings.get("stages", SPLITS)
        if arguments.stage == "test" or "try" in settings
        for name, tried in (trials(row, settings) if arguments.stage == "tune" else [(row, {})])
        for seed in seeds
        for earlier in [start(settings, study["rows"], arguments, seed)]
        for changes in [always | settings["set"] | earlier | tried | {"seed": seed}]
    ]
    result = json.loads(arguments.json.read_text()) if arguments.json.exists() else {"runs": []}

    def tell(outcome: Outcome, number: int) -> None:
        print(f"[{number + 1} of {len(runs)}] {outcome.planned.name}: {outcome.status} {outcome.reason}", flush=True)
        if outcome.status == "finished":
            settings = outcome.planned.settings
            others = [row for row in result["runs"] if any(row.get(key) != settings[key] for key in settings)]
            result["runs"] = [*others, numbers(outcome, arguments.out, arguments.stage)]
            result["summary"] = summary(result["runs"])
            arguments.json.write_text(json.dumps(result, indent=1) + "\n")

    run_sweep(
        runs, arguments.out, test_split="test" if arguments.stage == "test" else None, jobs=arguments.jobs, tell=tell
    )


def trials(row: str, settings: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every combination of what a row tries, with a name for its folder."""
    tried: dict[str, list[Any]] = settings["try"]
    for values in product(*tried.values()):
        chosen = dict(zip(tried, values, strict=True))
        yield trial_name(row, chosen), chosen


def trial_name(row: str, chosen: dict[str, Any]) -> str:
    return "_".join([row, *(f"{key.rsplit('.', 1)[-1]}-{value}" for key, value in chosen.items())])


def start(
    settings: dict[str, Any], rows: dict[str, dict[str, Any]], arguments: argparse.Namespace, seed: int
) -> dict[str, Any]:
    """A row `after` another one goes on from that one's model, with the same seed: of its trials, from the winner."""
    if "after" not in settings:
        return {}
    row = settings["after"]
    winner = {key: rows[row]["set"][key] for key in rows[row]["try"]}
    name = trial_name(row, winner) if arguments.stage == "tune" else row
    return {"model.start": str(arguments.out / f"{name}_seed-{seed}")}


def numbers(outcome: Outcome, out: Path, stage: str) -> dict[str, Any]:
    history = read_history(out / outcome.planned.name)
    row: dict[str, Any] = {**outcome.planned.settings, "seconds": round(history[-1]["seconds"], 1)}
    if stage == "tune":
        return row | {"val_mAP": [round(epoch["mAP"], 2) for epoch in history]}
    assert outcome.measured is not None
    complexity = outcome.measured["complexity"]
    return row | {
        **{name: outcome.measured[name] for name in METRICS},
        "AP": {entry["label"]: entry["AP"] for entry in outcome.measured["per_label"]},
        "head_parameters": complexity["parameters"] - complexity["parts"]["backbone"]["parameters"],
        "head_macs": complexity["macs"] - complexity["parts"]["backbone"]["macs"],
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


if __name__ == "__main__":
    main()
