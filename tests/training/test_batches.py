from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

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
