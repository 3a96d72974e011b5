"""A file system in memory that knows what was flushed. Nothing here knows FUSE, a process or a clock.

What is durable is judged as strictly as POSIX allows:
  data, length   by an fsync of the file that began after the write was answered, or by the write's own O_DSYNC
  names          by an fsync of the directory that began after the change was answered; an fsync of the file does
                 nothing for its name
A flush that fails makes nothing durable, and what it would have covered stays lost: a later flush does not bring it
back, as with a kernel that dropped the pages.
"""

from dataclasses import dataclass, field

BLOCK = 4096
ZEROS = bytes(BLOCK)
ROOT = 1


class Node:
    """A file or a folder. Blocks that are zero are not kept."""

    __slots__ = ("number", "folder", "mode", "size", "blocks", "names", "place")

    def __init__(self, number, folder, mode):
        self.number, self.folder, self.mode = number, folder, mode
        self.size, self.blocks, self.names = 0, {}, {}
        self.place = None  # (folder's number, name), while it has one

    def copy(self):
        twin = Node(self.number, self.folder, self.mode)
        twin.place = self.place
        twin.size, twin.blocks, twin.names = self.size, dict(self.blocks), dict(self.names)
        return twin

    def write(self, at, data):
        """`data`: bytes, or a number of zeros."""
        length = data if isinstance(data, int) else len(data)
        self.size = max(self.size, at + length)
        done = 0
        while done < length:
            number, inside = divmod(at + done, BLOCK)
            part = min(BLOCK - inside, length - done)
            piece = ZEROS[:part] if isinstance(data, int) else data[done : done + part]
            if part < BLOCK:
                old = self.blocks.get(number, ZEROS)
                piece = old[:inside] + piece + old[inside + part :]
            if piece == ZEROS:
                self.blocks.pop(number, None)
            else:
                self.blocks[number] = bytes(piece)
            done += part

    def read(self, at, length):
        length = max(0, min(length, self.size - at))
        if not length:
            return b""
        first, last = at // BLOCK, (at + length - 1) // BLOCK
        get = self.blocks.get
        whole = b"".join([get(number, ZEROS) for number in range(first, last + 1)])
        skip = at - first * BLOCK
        return whole if not skip and length == len(whole) else whole[skip : skip + length]

    def resize(self, size):
        if size < self.size:
            number, inside = divmod(size, BLOCK)
            for gone in [n for n in self.blocks if n > number or (n == number and not inside)]:
                del self.blocks[gone]
            if inside and number in self.blocks:
                self.blocks[number] = self.blocks[number][:inside] + ZEROS[inside:]
        self.size = size


@dataclass(slots=True)
class Op:
    """One change, or one flush. Times are of one clock."""

    kind: str  # write, size, link, unlink, rename; sync
    node: int  # the file, or the folder whose names change
    begun: int
    what: tuple = ()
    #: Its writer knows that it was done.
    answered: int | None = None
    #: When it was on the media; of a flush: when it ended well.
    durable: int | None = None
    #: A flush of it failed: no later one helps.
    dropped: bool = False
    #: A write that is its own flush.
    dsync: bool = False


class Tree:
    """Nodes by number. Changes are applied at once and keep nothing of themselves."""

    def __init__(self):
        self.nodes = {ROOT: Node(ROOT, True, 0o755)}

    def copy(self):
        twin = Tree()
        twin.nodes = {number: node.copy() for number, node in self.nodes.items()}
        return twin

    def apply(self, op, nodes=None):
        """`nodes`: where a node that is not here yet is known from."""

        def node(number):
            if number not in self.nodes:
                known = nodes[number]
                self.nodes[number] = Node(number, known.folder, known.mode)
            return self.nodes[number]

        here = node(op.node)
        if op.kind == "write":
            here.write(*op.what)
        elif op.kind == "size":
            here.resize(*op.what)
        elif op.kind == "link":
            name, number = op.what
            here.names[name] = number
            node(number).place = (here.number, name)
        elif op.kind == "unlink":
            here.names.pop(op.what[0], None)
        elif op.kind == "rename":
            old, new = op.what
            if (number := here.names.pop(old, None)) is not None:
                here.names[new] = number
                node(number).place = (here.number, new)
        else:
            raise AssertionError(f"{op.kind} changes nothing")

    def linked(self):
        """The nodes that have a name."""
        found, todo = [], [ROOT]
        while todo:
            node = self.nodes[todo.pop()]
            found.append(node)
            todo += node.names.values()
        return found

    def swept(self):
        """Without what has no name: a disk that was turned off holds none of it."""
        self.nodes = {node.number: node for node in self.linked()}
        return self

    def bytes(self):
        return sum(node.size for node in self.linked())

    def path(self, number):
        """From the root; of what has no name any more, its last one."""
        parts = []
        while number in self.nodes and self.nodes[number].place:
            number, name = self.nodes[number].place
            parts.append(name)
        return "/".join(reversed(parts))


@dataclass
class History:
    """A tree as it began, every change since, and what of it is durable when."""

    base: Tree = field(default_factory=Tree)

    def __post_init__(self):
        self.live = self.base.copy()
        self.ops = []
        self.waiting = {}  # node -> changes that no flush has covered
        self.next_node = max(self.live.nodes) + 1

    # what happens

    def make(self, folder, name, is_folder, mode, now):
        node = Node(self.next_node, is_folder, mode)
        self.next_node += 1
        self.live.nodes[node.number] = node
        return node, self.change("link", folder, now, name, node.number)

    def change(self, kind, node, now, *what, waits=True):
        op = Op(kind, node, now, what)
        self.ops.append(op)
        self.live.apply(op)
        if waits:
            self.waiting.setdefault(node, []).append(op)
        return op

    def write(self, node, at, data, now, dsync=False):
        data = len(data) if data == bytes(len(data)) else data
        op = self.change("write", node, now, at, data, waits=not dsync)
        op.dsync = dsync
        return op

    def sync(self, node, now):
        op = Op("sync", node, now)
        self.ops.append(op)
        return op

    def flushed(self, op, now, ok=True):
        """A flush, or the flush of an O_DSYNC write, has ended."""
        if op.dsync:
            op.durable, op.dropped = (now, False) if ok else (None, True)
            return
        covered = [
            one for one in self.waiting.get(op.node, ()) if one.answered is not None and one.answered <= op.begun
        ]
        for one in covered:
            one.durable, one.dropped = (now, False) if ok else (None, True)
        if covered:
            gone = set(map(id, covered))
            self.waiting[op.node] = [one for one in self.waiting[op.node] if id(one) not in gone]
        op.durable = now if ok else None

    # what is left

    def boundaries(self, since=0):
        """When flushes ended, each O_DSYNC write's included."""
        flushes = (op for op in self.ops if op.begun >= since and (op.dsync or op.kind == "sync"))
        return sorted({op.durable for op in flushes if op.durable is not None})

    def image(self, flushed_by, chance=None, begun_by=None, keep=0.5, sector=BLOCK):
        """The tree after the power went: what was durable by then. With `chance` also a random part of what was not:
        of each write every sector with the probability `keep`, and of the names a random number of the first
        changes, as a journal would have them."""
        tree = self.base.copy()
        loose = []
        if chance is not None:
            loose = [
                op for op in self.ops if not by(op.durable, flushed_by) and op.kind != "sync" and op.begun <= begun_by
            ]
        names = [op for op in loose if op.kind in ("link", "unlink", "rename")]
        kept_names = set(map(id, names[: chance.randint(0, len(names))])) if names else set()
        loose = set(map(id, loose))
        for op in self.ops:
            if op.kind == "sync":
                continue
            if by(op.durable, flushed_by) or id(op) in kept_names:
                tree.apply(op, self.live.nodes)
            elif id(op) not in loose:
                continue
            elif op.kind == "size" and chance.random() < keep:
                tree.apply(op, self.live.nodes)
            elif op.kind == "write":
                for piece in pieces(op, chance, keep, sector):
                    tree.apply(piece, self.live.nodes)
        return tree.swept()


def by(moment, end):
    return moment is not None and moment <= end


def pieces(op, chance, keep, sector):
    at, data = op.what
    if isinstance(data, int):
        # Zeros into what is mostly zeros: in pieces of a MiB, or preparing a segment takes a second.
        sector = max(sector, 1 << 20)
    length = data if isinstance(data, int) else len(data)
    done = 0
    while done < length:
        part = min(sector - (at + done) % sector, length - done)
        if chance.random() < keep:
            yield Op(
                "write", op.node, op.begun, (at + done, part if isinstance(data, int) else data[done : done + part])
            )
        done += part
