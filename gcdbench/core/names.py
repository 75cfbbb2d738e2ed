"""Names that become folders and files: what could leave the results folder is refused."""

from __future__ import annotations

import re

from gcdbench.errors import UserError

LONGEST = 150  # bytes; file systems allow 255, and suffixes are added
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f-\x9f\u2028\u2029/\\:*?"<>|]|[\ud800-\udfff]')
# what Windows takes for a device, with any suffix
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
OWN = (
    "leaderboard",
    "reproduce",
    "tune",
    "cache",
)  # what gcdbench itself writes into a results folder


def check_name(name: str, where: str, *, own: tuple[str, ...] = ()) -> str:
    """Return a name that can be that of a file or folder anywhere, or say what is wrong with it.

    >>> check_name("line+solid", "datasets")
    'line+solid'
    """
    reason = ""
    if wrong := _FORBIDDEN.search(name):
        reason = f"must not contain {wrong[0]!r}"
    elif not name or name != name.strip() or name[0] == "." or name[-1] == ".":
        reason = "must not be empty or begin or end with a dot or a space"
    elif len(name.encode()) > LONGEST:
        reason = f"must not be longer than {LONGEST} bytes"
    elif _DEVICES.fullmatch(name):
        reason = "is reserved by some systems"
    elif name in own:
        reason = "is that of a folder of gcdbench's own"
    if reason:
        shown = repr(name) if len(name) <= 60 else f"{name[:60]!r}..."
        raise UserError(f"{where}: the name {shown} {reason}, since it becomes a folder or file")
    return name
