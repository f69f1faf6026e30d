"""Registries of heads, data formats and losses. Packages that add some name their modules as entry points.

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
from typing import TypeVar

from labelwise.core.errors import unknown_name

Item = TypeVar("Item")


class Registry(dict[str, Item]):
    """What is registered, by name.

    Args:
        kind: What the names are of, for messages.
        group: The entry points of packages that register more.
    """

    def __init__(self, kind: str, group: str) -> None:
        super().__init__()
        self.kind, self.group = kind, group

    def find(self, name: str) -> Item:
        if name not in self:
            import_plugins(self.group)
        if name not in self:
            raise unknown_name(self.kind, name, self)
        return self[name]


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


def same_origin(one: object, other: object) -> bool:
    """Whether two functions or classes have the same name in the same module: a notebook cell that runs again, or a
    reloaded module, defines them anew."""
    return all(getattr(one, name, one) == getattr(other, name, other) for name in ("__module__", "__qualname__"))
