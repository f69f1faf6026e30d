from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import one_hot

from labelwise.loading.augment import batch_mix
from labelwise.training.batches import Share, epoch_order


@given(rows=st.integers(1, 60), size=st.integers(1, 20), processes=st.integers(1, 4), epoch=st.integers(0, 5))
def test_processes_together_see_the_rows_of_one(rows: int, size: int, processes: int, epoch: int) -> None:
    if min(rows, size) < processes or size % processes:
        return
    alone = epoch_order(np.arange(rows), size, seed=3, epoch=epoch, share=Share())
    shares = [epoch_order(np.arange(rows), size, 3, epoch, Share(rank, processes)) for rank in range(processes)]
    if rows < size and rows % processes:
        return  # less than one batch: what cannot be shared evenly is left out
    for step, batch in enumerate(alone):
        together = np.concatenate([share[step] for share in shares])
        assert sorted(together) == sorted(batch)
        assert len({len(share[step]) for share in shares}) == 1


@given(rows=st.integers(1, 60), size=st.integers(1, 20))
def test_no_row_twice_and_another_order_every_epoch(rows: int, size: int) -> None:
    first, second = (np.concatenate(epoch_order(np.arange(rows), size, 0, epoch, Share())) for epoch in (0, 1))
    assert len(set(first)) == len(first) == rows // min(rows, size) * min(rows, size)
    if rows > 10 and size < rows:
        assert first.tolist() != second.tolist()


@given(rows=st.integers(2, 40), size=st.integers(2, 20), repeats=st.integers(2, 4), processes=st.integers(1, 2))
def test_copies_of_a_row_follow_each_other(rows: int, size: int, repeats: int, processes: int) -> None:
    alone = np.concatenate(epoch_order(np.arange(rows), size, 0, 1, Share(), repeats))
    plain = np.concatenate(epoch_order(np.arange(rows), size, 0, 1, Share()))
    assert len(alone) == len(plain)  # an epoch keeps its length
    assert (alone % rows).tolist() == np.repeat(plain, repeats)[: len(plain)].tolist()
    assert (alone // rows).tolist() == [number % repeats for number in range(len(alone))]
    if size % processes == 0 and rows >= size:
        shares = [
            epoch_order(np.arange(rows), size, 0, 1, Share(rank, processes), repeats) for rank in range(processes)
        ]
        assert sorted(np.concatenate([row for share in shares for row in share])) == sorted(alone)


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_no_image_is_mixed_with_its_own_copy(processes: int) -> None:
    """The ImageNet recipes: three copies of each image and MixUp, on any number of processes."""
    mix = batch_mix(mixup=10.0, repeats=3)
    assert mix is not None
    for rank in range(processes):
        for batch in epoch_order(np.arange(60), 48, 0, 1, Share(rank, processes), repeats=3):
            image = one_hot(torch.from_numpy(batch % 60), 60)
            _, targets = mix(torch.rand(len(batch), 3, 8, 8), image)
            assert ((targets > 0).sum(dim=1) == 2).all()  # a copy of itself would leave one label
