"""Packages that add heads, data formats or losses: their modules are named as entry points.

In the package's pyproject.toml:

    [project.entry-points."labelwise.heads"]
    gem = "my_package.gem"

The groups are `labelwise.heads`, `labelwise.formats` and `labelwise.losses`. Importing the module registers what it
holds; labelwise does so the first time it meets a name that it does not know.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib.metadata import entry_points


@cache
def import_plugins(group: str) -> None:
    """Import the modules of a group, once.

    Args:
        group: Such as `labelwise.heads`.
    """
    for plugin in entry_points(group=group):
        try:
            plugin.load()
        except Exception as error:  # what other packages add still works
            warnings.warn(f"{group}: {plugin.value!r} cannot be imported: {error}", stacklevel=2)
