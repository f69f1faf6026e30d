"""Many trainings from one command: a grid of settings, resumable, with their results side by side."""

from __future__ import annotations

from labelwise.sweeps.execute import run_sweep
from labelwise.sweeps.plan import PlannedRun, plan

__all__ = ["PlannedRun", "plan", "run_sweep"]
