"""Large jobs: the images are cut into numbered parts, each part becomes one Parquet file, and what is finished stays
finished. `run_job` does them one after the other in this process, or on Ray."""

from labelwise.jobs.job import JobSettings, JobSummary
from labelwise.jobs.run import run_job
from labelwise.jobs.sources import find_parts

__all__ = ["JobSettings", "JobSummary", "find_parts", "run_job"]
