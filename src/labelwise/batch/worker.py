"""Does one part: reads its pictures, predicts them, and gives a Parquet file. A process holds one worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.batch.job import JobSettings
from labelwise.batch.parts import Part
from labelwise.data.images import BadImageError, Encoded
from labelwise.errors import LabelwiseError, missing_extra

if TYPE_CHECKING:
    from labelwise.prediction import Prediction
    from labelwise.tagger import Tagger


@dataclass(frozen=True)
class PartResult:
    number: int
    content: bytes = b""  # a Parquet file
    pictures: int = 0
    errors: int = 0  # pictures that have an error instead of labels
    problem: str | None = None  # why the part could not be done at all


def open_tagger(
    model: str | Path, settings: JobSettings, images: int = 0, say: Callable[[str], None] | None = None
) -> Tagger:
    from labelwise.tagger import load

    return load(
        model,
        threshold=settings.threshold,
        engine=settings.engine,
        labels=settings.labels,
        images=images,
        batch_size=settings.batch_size,
        say=say,
    )


class PartWorker:
    def __init__(self, tagger: Tagger, settings: JobSettings) -> None:
        self._tagger, self._settings = tagger, settings

    def __call__(self, number: int, part: Part) -> PartResult:
        """The same part gives the same bytes, whoever does it: its batches are always cut alike."""
        try:
            rows = [self._row(prediction, problem) for prediction, problem in self._predictions(part)]
        except LabelwiseError as error:
            return PartResult(number, problem=str(error))
        errors = sum(row["error"] is not None for row in rows)
        return PartResult(number, _as_parquet(rows, self._settings.all_scores), len(rows), errors)

    def _predictions(self, part: Part) -> Iterator[tuple[Prediction, str | None]]:
        problems: list[str | None] = []

        def contents() -> Iterator[Encoded]:
            for picture in part.pictures():
                problems.append(picture.problem and str(BadImageError(picture.name, picture.problem)))
                yield Encoded(picture.name, picture.data)

        predictions = self._tagger.stream(contents(), batch_size=self._settings.batch_size, on_bad_image="skip")
        for number, prediction in enumerate(predictions):
            yield prediction, problems[number]

    def _row(self, prediction: Prediction, problem: str | None) -> dict[str, Any]:
        row: dict[str, Any] = {"image": prediction.image, "labels": None, "scores": None, "error": prediction.error}
        if prediction.error is not None:
            row["error"] = problem or prediction.error
            return row
        chosen = prediction.choose(self._settings.top, self._settings.threshold)
        row |= {"labels": list(chosen), "scores": list(chosen.values())}
        if self._settings.all_scores:
            row["all_scores"] = [prediction.all_scores[label] for label in self._tagger.labels]
        return row


def _as_parquet(rows: list[dict[str, Any]], all_scores: bool) -> bytes:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise missing_extra("pyarrow", "parquet") from None
    scores = pyarrow.list_(pyarrow.float32())
    columns = {"image": pyarrow.string(), "labels": pyarrow.list_(pyarrow.string()), "scores": scores}
    columns |= {"error": pyarrow.string()} | ({"all_scores": scores} if all_scores else {})
    table = pyarrow.Table.from_pylist(
        [{**row, "image": _valid(row["image"])} for row in rows], schema=pyarrow.schema(columns)
    )
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _valid(name: str) -> str:
    """Parquet holds UTF-8; bytes of a file name that are none become \\xNN."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
