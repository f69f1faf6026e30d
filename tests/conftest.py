"""One thread for each test process (`make test` runs two on two cores), and processes that start warm."""

from __future__ import annotations

import pytest

from tests import fork_server

collect_ignore = ["fixtures/make_before_rooms.py"]  # runs with the code of then
_server = pytest.StashKey[fork_server.ForkServer]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # one for all of xdist's workers
        config.stash[_server] = fork_server.ForkServer().__enter__()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _server in config.stash:
        config.stash[_server].__exit__()


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    import torch  # not above: the process that hands out the tests never needs it

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    import torch

    torch.manual_seed(0)
    torch.compiler.reset()  # every head runs the same code: their compilations would count as recompilations


@pytest.fixture(scope="session")
def labelwise() -> fork_server.Command:
    """`labelwise("heads", "hsq", cwd=..., env=..., input=...)`: the command in a process that starts warm."""
    return fork_server.labelwise
