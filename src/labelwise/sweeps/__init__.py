"""Sweeps: a grid of settings, one training run per combination, resumable, with their results in one table."""

from __future__ import annotations

from labelwise.sweeps.execute import run_sweep
from labelwise.sweeps.plan import PlannedRun, plan

__all__ = ["PlannedRun", "plan", "run_sweep"]
