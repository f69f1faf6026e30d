"""`labelwise untag`: take out of sidecars what labelwise wrote into them."""

from __future__ import annotations

from collections import Counter

import labelwise as lw
from labelwise.cli.common import Flag, described_by, note, say
from labelwise.core.errors import LabelwiseError, counted


@described_by("api.sidecars:untag")
def untag(*paths: str, dry_run: Flag = False) -> None:
    """Remove exactly what labelwise wrote into sidecars; all that others wrote stays as it is.

    XMP sidecars lose the keywords that labelwise added and its record of them. Files that are labelwise's own, XMP or
    JSON, are deleted. Text sidecars stay: they do not say who wrote them.

    Parameters
    ----------
    dry_run
        Only show what would change.
    """
    if not paths:
        raise LabelwiseError("say whose sidecars: name images, sidecars or folders")
    changes = lw.untag(paths, dry_run=dry_run, progress=True)
    for change in changes:
        say(str(change))
    if not changes:
        note("nothing that labelwise wrote was found")
        return
    count = Counter(change.status for change in changes)
    found = " and ".join(f"{counted(number, 'sidecar')} {status}" for status, number in sorted(count.items()))
    note(f"would be: {found}; nothing was written" if dry_run else found)
