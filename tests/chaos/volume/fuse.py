"""The kernel's side of a FUSE file system, spoken by hand: /dev/fuse, mount(2), and the structures of linux/fuse.h.

No library is needed, so nothing has to be installed; it takes root and a kernel with FUSE. Nothing here knows what a
file holds.
"""

import ctypes
import errno
import os
import stat
import struct

(LOOKUP, FORGET, GETATTR, SETATTR) = (1, 2, 3, 4)
(MKNOD, MKDIR, UNLINK, RMDIR, RENAME) = (8, 9, 10, 11, 12)
(OPEN, READ, WRITE, STATFS, RELEASE, FSYNC) = (14, 15, 16, 17, 18, 20)
(FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, FSYNCDIR) = (25, 26, 27, 28, 29, 30)
(CREATE, INTERRUPT, DESTROY, BATCH_FORGET, FALLOCATE, RENAME2) = (35, 36, 38, 42, 43, 45)

IN_HEADER = struct.Struct("<IIQQIIIHH")
OUT_HEADER = struct.Struct("<IiQ")
ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
ENTRY = struct.Struct("<QQQQII")
ATTR_OUT = struct.Struct("<QII")
OPEN_OUT = struct.Struct("<QII")
READ_IN = struct.Struct("<QQIIQII")
WRITE_IN = struct.Struct("<QQIIQII")
SETATTR_IN = struct.Struct("<IIQQQQQQIIIIIIII")
FSYNC_IN = struct.Struct("<QII")
FALLOCATE_IN = struct.Struct("<QQQII")
STATFS_OUT = struct.Struct("<QQQQQIIII24x")
DIRENT = struct.Struct("<QQII")
INIT_IN = struct.Struct("<IIII")
INIT_OUT = struct.Struct("<IIIIHHIIHHIIH22x")

SETATTR_SIZE = 1 << 3
ASYNC_READ, BIG_WRITES, ASYNC_DIO, MAX_PAGES = 1 << 0, 1 << 5, 1 << 15, 1 << 22
#: No page cache in between: every read and write comes here, and several writes of one file at a time.
OPEN_FLAGS = 1 << 0 | 1 << 6
TRANSFER_MAX = 1 << 20
MNT_DETACH = 2
MS_NOSUID, MS_NODEV = 2, 4

libc = ctypes.CDLL(None, use_errno=True)


def system(done, what):
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unmount(at):
    """Whatever is mounted there, used or not."""
    system(libc.umount2(os.fsencode(at), MNT_DETACH), f"unmounting {at}")


class Mount:
    """One mount. `read` brings the next request, or None; each but the forgetting ones wants one `answer`."""

    def __init__(self, at):
        self.at = at
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self.fd},rootmode=40000,user_id=0,group_id=0,allow_other,max_read={TRANSFER_MAX}"
        try:
            done = libc.mount(b"camus-chaos", os.fsencode(at), b"fuse", MS_NOSUID | MS_NODEV, options.encode())
            system(done, f"mounting a FUSE file system on {at}")
        except OSError:
            os.close(self.fd)
            raise
        os.set_blocking(self.fd, False)
        self.buffer = bytearray(TRANSFER_MAX + (1 << 16))
        self.view = memoryview(self.buffer)

    def close(self):
        unmount(self.at)
        os.close(self.fd)

    def read(self):
        """(opcode, unique, node, body), or None if there is nothing to do now."""
        try:
            size = os.readv(self.fd, [self.buffer])
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):  # it was interrupted before it was taken
                return None
            raise
        _, opcode, unique, node, *_ = IN_HEADER.unpack_from(self.buffer)
        return opcode, unique, node, self.view[IN_HEADER.size : size]

    def answer(self, unique, data=b"", error=0):
        head = OUT_HEADER.pack(OUT_HEADER.size + len(data), -error, unique)
        try:
            os.writev(self.fd, [head, data])
        except OSError as failed:
            if failed.errno != errno.ENOENT:  # nobody waits for it any more
                raise

    def greet(self, unique, body):
        """Answers INIT."""
        major, minor, readahead, flags = INIT_IN.unpack_from(body)
        if major != 7 or minor < 31:
            raise OSError(errno.EPROTO, f"the kernel speaks FUSE {major}.{minor}")
        wanted = flags & (ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES)
        pages = TRANSFER_MAX // 4096
        self.answer(unique, INIT_OUT.pack(7, 31, readahead, wanted, 64, 48, TRANSFER_MAX, 1, pages, 0, 0, 0, 0))


def attributes(node):
    kind = stat.S_IFDIR if node.folder else stat.S_IFREG
    blocks = -(-node.size // 512)
    return ATTR.pack(
        node.number,
        node.size,
        blocks,
        0,
        0,
        0,
        0,
        0,
        0,
        kind | node.mode & 0o7777,
        2 if node.folder else 1,
        0,
        0,
        0,
        4096,
        0,
    )


def entry(node):
    """Nothing is remembered by the kernel: names may change under it."""
    return ENTRY.pack(node.number, 0, 0, 0, 0, 0) + attributes(node)


def listing(node, nodes, offset, size):
    """Directory entries from the place `offset` on."""
    out = bytearray()
    all_ = [(".", node.number, True), ("..", node.number, True)]
    all_ += [(name, number, nodes[number].folder) for name, number in node.names.items()]
    for place, (name, number, folder) in list(enumerate(all_, 1))[offset:]:
        raw = os.fsencode(name)
        piece = DIRENT.pack(number, place, len(raw), 4 if folder else 8) + raw
        piece += bytes(-len(piece) % 8)
        if len(out) + len(piece) > size:
            break
        out += piece
    return bytes(out)


def name_in(body):
    """The name at the end of a request."""
    return os.fsdecode(bytes(body).split(b"\0")[0])
