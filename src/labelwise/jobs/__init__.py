"""Large jobs: images are split into numbered parts, and each part becomes one Parquet file. A job that is stopped goes
on where it was. `run_job` does the parts one by one in this process, or on Ray."""

from labelwise.jobs.job import JobSettings, JobSummary
from labelwise.jobs.run import run_job
from labelwise.jobs.sources import find_parts

__all__ = ["JobSettings", "JobSummary", "find_parts", "run_job"]
