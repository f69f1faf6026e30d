"""Write a table of clip art: the labels of a drawing are the folders that it is in.

    apt-get install openclipart-png
    python benchmarks/clip_art_table.py /usr/share/openclipart/png --out clip-art.csv
    labelwise data inspect clip-art.csv

A drawing in `recreation/holiday/christmas` has three labels. Labels of fewer than 20 drawings are left out, and so are
drawings without a label, or of more than 10 million pixels. A third of the rest, drawn at random, is `test`.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
from collections import Counter
from pathlib import Path

from PIL import Image

FEWEST = 20
MOST_PIXELS = 10_000_000
NO_LABELS = {"unsorted", "duplicates", "special", "examples"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    Image.MAX_IMAGE_PIXELS = None  # only sizes are read
    files = [
        file for file in sorted(arguments.folder.rglob("*.png")) if math.prod(Image.open(file).size) <= MOST_PIXELS
    ]
    labels = {file: {*file.relative_to(arguments.folder).parts[:-1]} - NO_LABELS for file in files}
    counts = Counter(label for some in labels.values() for label in some)
    rows = [(file, sorted(label for label in some if counts[label] >= FEWEST)) for file, some in labels.items()]
    rows = [(file, some) for file, some in rows if some]
    random.Random(0).shuffle(rows)
    with arguments.out.open("w", encoding="utf-8", newline="") as output:
        writer = csv.writer(output)
        writer.writerow(["image", "labels", "split"])
        for number, (file, some) in enumerate(rows):
            writer.writerow([file, "|".join(some), "test" if number < len(rows) / 3 else "train"])


if __name__ == "__main__":
    main()
