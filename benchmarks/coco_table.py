"""Write the table of the study on MS-COCO: 10,000 training and 4,000 test photos, fixed by benchmarks/coco_photos.csv.

    python benchmarks/coco_table.py /data/coco80.csv --out coco14k.csv
    labelwise data inspect 'csv:coco14k.csv?root=/data/coco&splits=train,val,more,test'

The first argument is a table of COCO photos with columns image, labels and split, whose file names are COCO's ids.
The ids were drawn once: the train rows of the table (COCO 2014's train) shuffled by random.Random(2014), the first
10,000 of them, then by the same generator the test rows (COCO 2014's val), the first 4,000. Of the 10,000 photos, 5,000
are `train` and 2,000 `val` for trials; `more` are the other 3,000. With --all the photos that are not on the list
are added: those of train to `more`, those of test to `test`.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

PHOTOS = Path(__file__).with_name("coco_photos.csv")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--all", action="store_true", help="all photos of the table, not only those on the list")
    arguments = parser.parse_args()
    write_table(arguments.table, arguments.out, every=arguments.all)


def write_table(table: Path, out: Path, *, every: bool = False) -> None:
    """The chosen rows of a table, or all of them, with the study's splits."""
    with PHOTOS.open(encoding="utf-8", newline="") as file:
        splits = {int(row["id"]): row["split"] for row in csv.DictReader(file)}
    with table.open(encoding="utf-8", newline="") as file:
        found = {number(row["image"]): row for row in csv.DictReader(file)}
    if missing := sorted(splits.keys() - found.keys()):
        raise SystemExit(f"{table}: {len(missing)} of the study's photos are missing, e.g. {missing[0]:012}.jpg")
    if every:
        others = {id: row["split"] for id, row in found.items() if id not in splits}
        splits |= {id: "test" if split == "test" else "more" for id, split in others.items()}
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["image", "labels", "split"])
        writer.writeheader()
        writer.writerows(
            {"image": found[id]["image"], "labels": found[id]["labels"], "split": split} for id, split in splits.items()
        )


def number(image: str) -> int:
    """A COCO photo's id.

    >>> number("train2014/COCO_train2014_000000000009.jpg"), number("000000000009.jpg")
    (9, 9)
    """
    return int(Path(image).stem.rpartition("_")[2])


if __name__ == "__main__":
    main()
