import threading
from itertools import count
from pathlib import Path

import pytest
from PIL import Image

from labelwise.data.decode import decode_many
from labelwise.data.images import BadImageError, Encoded


def test_results_come_in_order_and_bad_images_as_values(tmp_path: Path) -> None:
    for number in range(20):
        Image.new("RGB", (number + 1, 4)).save(tmp_path / f"{number}.png")
    (tmp_path / "7.png").write_bytes(b"no image")
    paths = [str(tmp_path / f"{number}.png") for number in range(20)]
    found = list(decode_many(paths, lambda image: image.width, threads=4, ahead=3))
    assert [path for path, _ in found] == paths
    assert [width for _, width in found if not isinstance(width, BadImageError)] == [*range(1, 8), *range(9, 21)]
    assert isinstance(found[7][1], BadImageError)


def test_an_endless_source_is_read_only_as_far_as_needed() -> None:
    taken = []

    def sources():
        for number in count():
            taken.append(number)
            yield Encoded(str(number), b"")

    results = decode_many(sources(), lambda image: image, ahead=5)
    for _ in range(3):
        next(results)
    assert len(taken) == 7
    results.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("decode")]


def test_an_error_of_the_transform_is_raised() -> None:
    def fails(image: Image.Image) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(decode_many([Image.new("RGB", (1, 1))], fails))
