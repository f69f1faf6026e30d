"""What `import labelwise` settles before other libraries start; in processes of their own, since it happens once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ASK = "import os, labelwise; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "1000"),
        ({"GOMP_SPINCOUNT": "5"}, "5"),
        ({"OMP_WAIT_POLICY": "active"}, "None"),  # a user's own choice stays
    ],
)
def test_threads_spin_briefly_unless_the_user_decides(given: dict[str, str], found: str) -> None:
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    plain = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run([sys.executable, "-c", ASK], env=plain | given, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == found
