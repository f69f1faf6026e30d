"""One thread for each test process: `make test` runs two of them on two cores."""

import pytest
import torch

collect_ignore = ["fixtures/make_before_rooms.py"]  # runs with the code of then

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.manual_seed(0)
    torch.compiler.reset()  # every head runs the same code: their compilations would count as recompilations
