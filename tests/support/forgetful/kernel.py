"""The kernel's side: mounting, and the FUSE protocol (version 7.31) over /dev/fuse.

A request is `fuse_in_header` (40 bytes: length, opcode, unique, node, uid, gid, pid, padding) and
a body by opcode; a reply is `fuse_out_header` (16 bytes: length, negative errno, unique) and a
body. Structures are those of <linux/fuse.h>. Nodes are the volume's inode numbers.

Writes come through at once (no FUSE_WRITEBACK_CACHE), those to a file opened with O_SYNC or O_DSYNC
with an fsync behind each. So the kernel holds nothing that is dirty except pages written through a
shared mapping; those it hands over before each fsync. Clean pages, names and attributes it may
cache for ever, because nobody else changes them; a power cut makes a new mount, and with the old
one goes everything that was cached, locked or open.
"""

import ctypes
import errno
import os
import socket
import stat
import struct
import subprocess
from collections.abc import Callable
from typing import Final

from tests.support.forgetful.contents import PAGE
from tests.support.forgetful.volume import ROOT, Inode, Volume

MAX_WRITE: Final = 1 << 20
REQUEST_BYTES_MAX: Final = MAX_WRITE + PAGE

_MAJOR, _MINOR = 7, 31
_BIG_WRITES, _PARALLEL_DIROPS, _MAX_PAGES = 1 << 5, 1 << 18, 1 << 22
_ASYNC_READ, _ASYNC_DIO = 1 << 0, 1 << 15
_KEEP_CACHE = 1 << 1  # FOPEN_KEEP_CACHE
_FOR_EVER = 1 << 30  # Seconds.
_RENAME_NOREPLACE = 1
_KEEP_SIZE, _PUNCH_HOLE, _ZERO_RANGE = 1, 2, 16  # fallocate(2)
_SET_MODE, _SET_UID, _SET_GID, _SET_SIZE, _SET_ATIME, _SET_MTIME = 1, 2, 4, 8, 16, 32

_IN_HEADER: Final = struct.Struct("<IIQQIII4x")
_OUT_HEADER: Final = struct.Struct("<IiQ")
_ATTRIBUTES: Final = struct.Struct("<QQQQQQIIIIIIIIII")
_ENTRY: Final = struct.Struct("<QQQQII")
_ATTR_VALID: Final = struct.Struct("<QII")
_SETATTR: Final = struct.Struct("<IIQQQQQQIIIIIIII")
_READ: Final = struct.Struct("<QQII")
_WRITE: Final = struct.Struct("<QQIIQII")
_FALLOCATE: Final = struct.Struct("<QQQI4x")
_INIT_REPLY: Final = struct.Struct("<IIIIHHIIHH32x")
_STATFS: Final = struct.Struct("<QQQQQIII28x")
_DIRENT: Final = struct.Struct("<QQII")
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_OPENED: Final = struct.pack("<QIi", 0, _KEEP_CACHE, 0)

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_MS_NOSUID, _MS_NODEV, _MNT_DETACH = 2, 4, 2
_HELPER: Final = "fusermount3"

Reply = bytes | bytearray


def mount(mountpoint: str) -> int:
    """The device that speaks for the new mount."""
    return _mount_as_root(mountpoint) if os.geteuid() == 0 else _mount_as_user(mountpoint)


def unmount(mountpoint: str) -> None:
    """Unmounts at once, even if it is in use or its server has ended. No mount is not an error."""
    if os.geteuid() == 0:
        _LIBC.umount2(os.fsencode(mountpoint), _MNT_DETACH)
    else:
        subprocess.run([_HELPER, "-u", "-q", "-z", "--", mountpoint], check=False)


def _mount_as_root(mountpoint: str) -> int:
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    kind, flags = b"fuse.forgetful", ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
    if _LIBC.mount(b"forgetful", os.fsencode(mountpoint), kind, flags, options.encode()):
        code = ctypes.get_errno()
        os.close(device)
        raise OSError(code, f"mount: {os.strerror(code)}")
    return device


def _mount_as_user(mountpoint: str) -> int:
    """Mounts with FUSE's set-uid program, which passes the device over a socket."""
    options = "default_permissions,fsname=forgetful,subtype=forgetful"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        done = subprocess.run(
            [_HELPER, "-o", options, "--", mountpoint],
            env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise OSError(errno.EPERM, done.stderr.strip() or f"{_HELPER} failed")
        _, (device,), _, _ = socket.recv_fds(ours, 1, 1)
    os.set_inheritable(device, False)
    return device


class Request:
    __slots__ = ("body", "gid", "inode", "node", "opcode", "uid", "unique")

    def __init__(self, message: memoryview) -> None:
        _, self.opcode, self.unique, self.node, self.uid, self.gid, _ = _IN_HEADER.unpack_from(
            message
        )
        self.body = message[_IN_HEADER.size :]  # Valid until the next request is read.

    def name(self, start: int = 0) -> bytes:
        return self.names(start)[0]

    def names(self, start: int = 0) -> list[bytes]:
        return bytes(self.body[start:]).split(b"\0")[:-1]


def pack_reply(unique: int, body: Reply = b"", error: int = 0) -> list[Reply]:
    return [_OUT_HEADER.pack(_OUT_HEADER.size + len(body), -error, unique), body]


class Connection:
    """Answers the kernel's requests from a volume, for the time of one mount."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._listings: dict[int, list[tuple[bytes, Inode]]] = {}  # By directory handle.
        self._handles = 0
        self._handlers: dict[int, Callable[[Request], Reply | None]] = {
            1: self._lookup,
            2: self._forget,
            3: self._getattr,
            4: self._setattr,
            5: self._readlink,
            6: self._symlink,
            8: self._mknod,
            9: self._mkdir,
            10: self._unlink,
            11: self._rmdir,
            12: self._rename,
            13: self._link,
            14: self._open,
            15: self._read,
            16: self._write,
            17: self._statfs,
            18: self._release,
            20: self._fsync,
            26: self._init,
            27: self._opendir,
            28: self._readdir,
            29: self._releasedir,
            30: self._fsyncdir,
            35: self._create,
            36: self._interrupt,
            38: self._destroy,
            42: self._batch_forget,
            43: self._fallocate,
            45: self._rename2,
        }

    def answer(self, request: Request) -> list[Reply] | None:
        """Returns None if the request gets no reply."""
        handler = self._handlers.get(request.opcode)
        if handler is None:
            return pack_reply(request.unique, error=errno.ENOSYS)
        try:
            body = handler(request)
        except OSError as error:
            return pack_reply(request.unique, error=error.errno or errno.EIO)
        return None if body is None else pack_reply(request.unique, body)

    def _inode(self, number: int) -> Inode:
        try:
            return self._volume.inodes[number]
        except KeyError:
            raise OSError(errno.ESTALE, "no such inode") from None

    # --- Names ----------------------------------------------------------------------------------

    def _entry(self, inode: Inode) -> bytes:
        inode.lookups += 1
        head = _ENTRY.pack(inode.number, 0, _FOR_EVER, _FOR_EVER, 0, 0)
        return head + _pack_attributes(inode)

    def _lookup(self, request: Request) -> Reply:
        return self._entry(self._volume.lookup(self._inode(request.node), request.name()))

    def _forget(self, request: Request) -> None:
        self._forget_lookups(request.node, _U64.unpack_from(request.body)[0])

    def _batch_forget(self, request: Request) -> None:
        (count,) = _U32.unpack_from(request.body)
        for index in range(count):
            self._forget_lookups(*struct.unpack_from("<QQ", request.body, 8 + 16 * index))

    def _forget_lookups(self, number: int, count: int) -> None:
        if number != ROOT and (inode := self._volume.inodes.get(number)):
            inode.lookups -= count
            self._volume.drop_if_unused(inode)

    def _new(self, request: Request, name: bytes, mode: int) -> Inode:
        parent = self._inode(request.node)
        return self._volume.create(parent, name, mode, request.uid, request.gid)

    def _symlink(self, request: Request) -> Reply:
        name, target = request.names()
        inode = self._new(request, name, stat.S_IFLNK | 0o777)
        inode.target = target
        return self._entry(inode)

    def _readlink(self, request: Request) -> Reply:
        return self._inode(request.node).target

    def _mknod(self, request: Request) -> Reply:
        mode, rdev = struct.unpack_from("<II", request.body)
        inode = self._new(request, request.name(16), mode)
        inode.rdev = rdev
        return self._entry(inode)

    def _mkdir(self, request: Request) -> Reply:
        (mode,) = _U32.unpack_from(request.body)
        return self._entry(self._new(request, request.name(8), stat.S_IFDIR | mode & 0o7777))

    def _create(self, request: Request) -> Reply:
        _, mode = struct.unpack_from("<II", request.body)
        inode = self._new(request, request.name(16), stat.S_IFREG | mode & 0o7777)
        return self._entry(inode) + _OPENED

    def _unlink(self, request: Request) -> Reply:
        self._volume.unlink(self._inode(request.node), request.name())
        return b""

    def _rmdir(self, request: Request) -> Reply:
        self._volume.remove_directory(self._inode(request.node), request.name())
        return b""

    def _rename(self, request: Request) -> Reply:
        return self._rename_to(request, request.names(8), flags=0)

    def _rename2(self, request: Request) -> Reply:
        (flags,) = _U32.unpack_from(request.body, 8)
        return self._rename_to(request, request.names(16), flags)

    def _rename_to(self, request: Request, names: list[bytes], flags: int) -> Reply:
        if flags & ~_RENAME_NOREPLACE:
            raise OSError(errno.EINVAL, "this rename is not supported")
        source, target = self._inode(request.node), self._inode(_U64.unpack_from(request.body)[0])
        may_replace = not flags & _RENAME_NOREPLACE
        self._volume.rename(source, names[0], target, names[1], may_replace=may_replace)
        return b""

    def _link(self, request: Request) -> Reply:
        inode = self._inode(_U64.unpack_from(request.body)[0])
        self._volume.link(inode, self._inode(request.node), request.name(8))
        return self._entry(inode)

    def _opendir(self, request: Request) -> Reply:
        self._handles += 1
        return struct.pack("<QIi", self._handles, 0, 0)

    def _readdir(self, request: Request) -> Reply:
        handle, start, size = struct.unpack_from("<QQI", request.body)
        directory = self._inode(request.node)
        if start == 0 or handle not in self._listings:
            dots = [(b".", directory), (b"..", directory.parent)]
            self._listings[handle] = dots + list(directory.entries.items())
        body = bytearray()
        for index, (name, inode) in enumerate(self._listings[handle][start:], start + 1):
            padding = -len(name) % 8
            if len(body) + _DIRENT.size + len(name) + padding > size:
                break
            body += _DIRENT.pack(inode.number, index, len(name), inode.mode >> 12)
            body += name + bytes(padding)
        return body

    def _releasedir(self, request: Request) -> Reply:
        self._listings.pop(_U64.unpack_from(request.body)[0], None)
        return b""

    # --- Files ----------------------------------------------------------------------------------

    def _getattr(self, request: Request) -> Reply:
        return _ATTR_VALID.pack(_FOR_EVER, 0, 0) + _pack_attributes(self._inode(request.node))

    def _setattr(self, request: Request) -> Reply:
        fields = _SETATTR.unpack_from(request.body)
        valid, size, atime, mtime = fields[0], fields[3], fields[5], fields[6]
        atime_ns, mtime_ns, mode, uid, gid = (
            fields[8],
            fields[9],
            fields[11],
            fields[13],
            fields[14],
        )
        inode = self._inode(request.node)
        if valid & _SET_SIZE:
            self._volume.truncate(inode, size)
        if valid & _SET_MODE:
            inode.mode = mode
        if valid & _SET_UID:
            inode.uid = uid
        if valid & _SET_GID:
            inode.gid = gid
        if valid & _SET_ATIME:
            inode.atime_ns = atime * 10**9 + atime_ns
        if valid & _SET_MTIME:
            inode.mtime_ns = mtime * 10**9 + mtime_ns
        return self._getattr(request)

    def _open(self, request: Request) -> Reply:
        return _OPENED

    def _release(self, request: Request) -> Reply:
        return b""

    def _read(self, request: Request) -> Reply:
        _, position, size, _ = _READ.unpack_from(request.body)
        return self._volume.read(self._inode(request.node), position, size)

    def _write(self, request: Request) -> Reply:
        _, position, size, *_ = _WRITE.unpack_from(request.body)
        data = request.body[_WRITE.size : _WRITE.size + size]
        self._volume.write(self._inode(request.node), position, data)
        return struct.pack("<II", size, 0)

    def _fallocate(self, request: Request) -> Reply:
        _, position, length, mode = _FALLOCATE.unpack_from(request.body)
        inode = self._inode(request.node)
        if mode & ~(_KEEP_SIZE | _PUNCH_HOLE | _ZERO_RANGE):
            raise OSError(errno.EOPNOTSUPP, "this fallocate is not supported")
        if not mode & _PUNCH_HOLE:
            may_grow = not mode & _KEEP_SIZE
            self._volume.allocate(inode, position, length, may_grow=may_grow)
        if mode & (_PUNCH_HOLE | _ZERO_RANGE):
            self._volume.zero(inode, position, length)
        return b""

    def _fsync(self, request: Request) -> Reply:
        self._volume.sync(self._inode(request.node))
        return b""

    def _fsyncdir(self, request: Request) -> Reply:
        self._volume.sync_directory(self._inode(request.node))
        return b""

    # --- The mount ------------------------------------------------------------------------------

    def _init(self, request: Request) -> Reply:
        _, minor, read_ahead, flags = struct.unpack_from("<IIII", request.body)
        if minor < _MINOR:
            raise OSError(errno.EPROTO, f"the kernel speaks FUSE 7.{minor}, we speak 7.{_MINOR}")
        flags &= _BIG_WRITES | _PARALLEL_DIROPS | _MAX_PAGES | _ASYNC_READ | _ASYNC_DIO
        return _INIT_REPLY.pack(
            _MAJOR, _MINOR, read_ahead, flags, 64, 48, MAX_WRITE, 1, MAX_WRITE // PAGE, 0
        )

    def _statfs(self, request: Request) -> Reply:
        volume = self._volume
        total, free = volume.capacity_bytes // PAGE, volume.free_bytes // PAGE
        return _STATFS.pack(total, free, free, 1 << 32, 1 << 32, PAGE, 255, PAGE)

    def _interrupt(self, request: Request) -> None:
        """Requests cannot be interrupted, as on a disk."""

    def _destroy(self, request: Request) -> Reply:
        return b""


def _pack_attributes(inode: Inode) -> bytes:
    times = inode.atime_ns, inode.mtime_ns, inode.ctime_ns
    return _ATTRIBUTES.pack(
        inode.number,
        inode.size,
        -(-inode.size // 512),
        *(time // 10**9 for time in times),
        *(time % 10**9 for time in times),
        inode.mode,
        1 if inode.is_directory else inode.links,
        inode.uid,
        inode.gid,
        inode.rdev,
        PAGE,
        0,
    )


OPCODE_FSYNC: Final = 20
OPCODE_FSYNCDIR: Final = 30
