"""What `import labelwise` settles before other libraries start; in processes of their own, since it happens once."""

from __future__ import annotations

import os
import platform
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


FAULTS = """
import resource, numpy, labelwise
from labelwise.core.environment import keep_freed_memory
keep_freed_memory()
for step in range(20):
    if step == 5:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    parts = [numpy.ones(1_000_000) for _ in range(5)]  # of 8 MB
    del parts
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc can be told")
def test_freed_memory_is_used_again_unless_the_user_decides() -> None:
    """By default the system clears the same ten thousand pages again in each of the fifteen steps."""

    def faults(given: dict[str, str]) -> int:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        done = subprocess.run([sys.executable, "-c", FAULTS], env=plain | given, capture_output=True, check=True)
        return int(done.stdout)

    assert faults({}) < 1_000
    assert faults({"MALLOC_TRIM_THRESHOLD_": "100000"}) > 10_000
