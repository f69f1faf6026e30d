"""Batch by batch, merged, spilled to disk or spread over processes: always the numbers of the whole at once."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from labelwise.metrics import MultiLabelMetrics, MultiLabelScores, multilabel_scores
from labelwise.metrics import streaming as store
from tests import fork_server

HERE = Path(__file__).parent


def example(images: int = 60, labels: int = 7) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    scores = (rng.random((images, labels)) * 20).round().astype(np.float32) / 20  # ties
    targets = rng.choice([1, 0, -1], (images, labels), p=[0.2, 0.6, 0.2])
    targets[:, 2] = 0
    return scores, targets


def assert_same(one: MultiLabelScores, other: MultiLabelScores) -> None:
    """Equal to the last bit, not only nearly."""
    np.testing.assert_array_equal(one.average_precision, other.average_precision)
    assert one.to_dict() == other.to_dict()


@given(st.lists(st.integers(0, 60), max_size=6), st.booleans())
@settings(deadline=None, max_examples=40)
def test_any_cut_into_batches_gives_the_whole(cuts, spill) -> None:
    scores, targets = example()
    metrics = MultiLabelMetrics(7, top_k=(1, 3), memory_limit=0 if spill else 2**30)
    edges = [0, *sorted(cuts), 60]
    for start, stop in itertools.pairwise(edges):
        metrics.update(torch.from_numpy(scores[start:stop]), targets[start:stop])
    assert metrics.images == 60
    assert_same(metrics.compute(), multilabel_scores(scores, targets, top_k=(1, 3)))


def test_computing_twice_and_going_on_and_starting_again() -> None:
    scores, targets = example()
    metrics = MultiLabelMetrics(7)
    metrics.update(scores[:20], targets[:20])
    assert_same(metrics.compute(), metrics.compute())
    metrics.update(scores[20:], targets[20:])
    assert_same(metrics.compute(), multilabel_scores(scores, targets))
    metrics.reset()
    metrics.update(scores[:5], targets[:5])
    assert_same(metrics.compute(), multilabel_scores(scores[:5], targets[:5]))


def test_a_reused_buffer_does_not_change_the_past() -> None:
    scores, targets = example()
    buffer, metrics = np.empty_like(scores[:30]), MultiLabelMetrics(7)
    for part in (slice(0, 30), slice(30, 60)):
        buffer[:] = scores[part]
        metrics.update(buffer, targets[part])
    assert_same(metrics.compute(), multilabel_scores(scores, targets))


@pytest.mark.parametrize("limits", [(2**30, 2**30), (0, 0), (2**30, 0)])
def test_merged_parts_give_the_whole(limits) -> None:
    scores, targets = example()
    parts = [MultiLabelMetrics(7, memory_limit=limit) for limit in limits]
    parts[0].update(scores[:25], targets[:25])
    parts[1].update(scores[25:40], targets[25:40])
    parts[0].merge(parts[1])
    parts[1].update(scores[40:50], targets[40:50])  # the other goes on alone and is not seen here
    parts[0].update(scores[50:], targets[50:])
    seen = np.r_[0:40, 50:60]
    assert_same(parts[0].compute(), multilabel_scores(scores[seen], targets[seen]))


def test_float64_among_float32_is_not_rounded() -> None:
    scores = np.array([[1.0], [1.0 + 1e-12], [0.5]])
    targets = np.array([[0], [1], [1]])
    metrics = MultiLabelMetrics(1, memory_limit=0)
    metrics.update(scores[2:].astype(np.float32), targets[2:])
    metrics.update(scores[:2], targets[:2])
    assert_same(metrics.compute(), multilabel_scores(scores, targets))


def test_spills_only_beyond_the_limit_and_cleans_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_CHUNK_BYTES", 1000)
    scores, targets = example(600)
    chunk = 29 * 7 * 5  # 29 images x 7 labels x (4 + 1) bytes: the first whole number of images above 1000 bytes
    metrics = MultiLabelMetrics(7, memory_limit=3 * chunk, folder=tmp_path)
    for row in range(600):
        metrics.update(scores[row : row + 1], targets[row : row + 1])
    assert_same(metrics.compute(), multilabel_scores(scores, targets))
    assert metrics.bytes_on_disk == 600 * 7 * 5 - 3 * chunk
    assert list(tmp_path.iterdir()) == []  # the file has no name that could be left behind


def test_two_processes_give_the_number_of_one(tmp_path: Path) -> None:
    scores, targets = example()
    first_shares = [20, 60]  # uneven; one process without images
    np.savez(tmp_path / "data.npz", scores=scores, targets=targets, first_shares=first_shares)
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    command = [HERE / "gloo_worker.py", tmp_path]
    workers = [fork_server.start(*command, rank, env=environment) for rank in range(2)]
    try:
        assert [worker.wait(timeout=120) for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()  # one that waits for a dead partner would wait for ever
    expected = multilabel_scores(scores, targets, top_k=(1, 3)).to_dict()
    for rank in range(2):
        reports = json.loads((tmp_path / f"{rank}.json").read_text())
        for first_share, report in zip(first_shares, reports, strict=True):
            own = slice(0, first_share) if rank == 0 else slice(first_share, None)
            assert report["all"] == expected
            assert report["own_images"] == len(scores[own])
            if report["own_images"]:
                assert report["own"] == multilabel_scores(scores[own], targets[own], top_k=(1, 3)).to_dict()


def run_whole_evaluation(folder: Path, *arguments: int) -> dict[str, float]:
    """In a process of its own, whose memory is measured; five of its labels are checked here with scikit-learn."""
    subprocess.run([sys.executable, HERE / "memory_worker.py", folder, *map(str, arguments)], check=True)
    kept = np.load(folder / "kept.npz")
    expected = [average_precision_score(kept["targets"][:, i], kept["scores"][:, i]) for i in range(5)]
    np.testing.assert_allclose(kept["ap"], expected, atol=1e-12)
    return json.loads((folder / "report.json").read_text())


def test_the_large_path_scaled_down(tmp_path: Path) -> None:
    """10,000 x 4,000 is 200 MB of scores and targets; with limits 64 times smaller it fits in half of that."""
    report = run_whole_evaluation(tmp_path, 10_000, 4_000, 2**24, 64)
    assert report["bytes_on_disk"] > 180e6
    assert report["growth_bytes"] < 100e6


@pytest.mark.slow
def test_hundred_thousand_images_by_ten_thousand_labels_in_8_gib(tmp_path: Path) -> None:
    report = run_whole_evaluation(tmp_path, 100_000, 10_000, 2**30, 1)
    assert report["bytes_on_disk"] > 3.5e9
    assert report["peak_bytes"] < 8 * 2**30
