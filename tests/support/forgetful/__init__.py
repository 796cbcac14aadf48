"""A file system that forgets what was not synced: power cuts for real processes.

    with forgetful.mount(folder) as disk:
        ... run processes that write below `disk.path` ...
        ... kill them ...
        disk.forget()           # The power cut; afterwards only what was synced is there.
        ... start them again ...

Killing a process loses nothing, as on any file system; only `forget` does. What counts as synced is
said in `volume.py` (names, space) and `contents.py` (bytes). It is a FUSE file system on nothing
but the standard library; it needs Linux with /dev/fuse, and root or the program `fusermount3`.
`why_not()` says what is missing.
"""

from tests.support.forgetful.disk import HOW_TO_ENABLE, ForgetfulDisk, mount, require, why_not
from tests.support.forgetful.volume import Names

__all__ = ["HOW_TO_ENABLE", "ForgetfulDisk", "Names", "mount", "require", "why_not"]
