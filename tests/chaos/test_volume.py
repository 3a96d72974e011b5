"""The volume itself: what it says is durable is durable, and what it loses is what was not. Needs no root."""

import random
import sys
import unittest

from volume.tree import BLOCK, ROOT, History


class Clock:
    def __init__(self):
        self.at = 0

    def __call__(self):
        self.at += 1
        return self.at


class VolumeTest(unittest.TestCase):
    def setUp(self):
        self.now, self.history = Clock(), History()
        self.node, op = self.history.make(ROOT, "file", False, 0o644, self.now())
        op.answered = self.now()

    def put(self, at, data, dsync=False):
        op = self.history.write(self.node.number, at, data, self.now(), dsync)
        if dsync:
            self.history.flushed(op, self.now())
        op.answered = self.now()
        return op

    def sync(self, node, ok=True):
        op = self.history.sync(node, self.now())
        self.history.flushed(op, self.now(), ok)
        return self.now()

    def content(self, tree):
        number = tree.nodes[ROOT].names.get("file")
        return None if number is None else tree.nodes[number].read(0, 1 << 20)

    def test_a_write_is_durable_with_the_flush_that_began_after_its_answer(self):
        self.sync(ROOT)
        self.put(0, b"one")
        at = self.sync(self.node.number)
        late = self.history.sync(self.node.number, self.now())
        self.put(3, b"two")  # answered after the flush began
        self.history.flushed(late, self.now())
        self.assertEqual(self.content(self.history.image(at)), b"one")
        self.assertEqual(self.content(self.history.image(self.now())), b"one")
        self.assertEqual(self.content(self.history.image(self.sync(self.node.number))), b"onetwo")

    def test_a_write_that_is_its_own_flush_takes_no_other_with_it(self):
        self.sync(ROOT)
        self.put(0, b"a" * BLOCK)
        self.put(BLOCK, b"b" * BLOCK, dsync=True)
        self.assertEqual(self.content(self.history.image(self.now())), bytes(BLOCK) + b"b" * BLOCK)

    def test_a_name_needs_the_flush_of_its_folder(self):
        self.put(0, b"one")
        at = self.sync(self.node.number)
        self.assertIsNone(self.content(self.history.image(at)))
        at = self.sync(ROOT)
        self.assertEqual(self.content(self.history.image(at)), b"one")
        self.history.change("rename", ROOT, self.now(), "file", "other").answered = self.now()
        self.assertEqual(self.content(self.history.image(self.now())), b"one")
        self.sync(ROOT)
        self.assertIn("other", self.history.image(self.now()).nodes[ROOT].names)

    def test_what_a_failed_flush_was_for_stays_lost(self):
        self.sync(ROOT)
        self.put(0, b"one")
        self.sync(self.node.number, ok=False)
        self.put(3, b"two")
        at = self.sync(self.node.number)
        self.assertEqual(self.content(self.history.image(at)), b"\0\0\0two")
        self.assertEqual(self.history.live.nodes[self.node.number].read(0, 6), b"onetwo")

    def test_the_power_keeps_any_sectors_of_what_was_not_flushed_and_all_that_was(self):
        self.sync(ROOT)
        self.put(0, b"f" * BLOCK)
        flushed = self.sync(self.node.number)
        self.put(BLOCK, bytes(range(1, 9)) * 512)
        seen = set()
        for seed in range(60):
            content = self.content(self.history.image(flushed, random.Random(seed), self.now(), 0.5, 512))
            self.assertEqual(content[:BLOCK], b"f" * BLOCK)
            sectors = [content[at : at + 512] for at in range(BLOCK, len(content), 512)]
            whole = (bytes(range(1, 9)) * 512)[:512]
            self.assertTrue(all(s in (whole, bytes(512)) for s in sectors), "a sector is whole or not there")
            seen.add(sum(s == whole for s in sectors))
        self.assertGreater(len(seen), 4)

    def test_an_image_is_the_same_whatever_is_done_to_another(self):
        self.sync(ROOT)
        self.put(0, b"one")
        at = self.sync(self.node.number)
        image = self.history.image(at)
        image.nodes[self.node.number].write(0, b"xyz")
        self.assertEqual(self.content(self.history.image(at)), b"one")
        self.assertEqual(self.history.live.nodes[self.node.number].read(0, 3), b"one")

    def test_boundaries_are_the_ends_of_flushes_that_went_well(self):
        good = self.sync(ROOT)
        self.sync(self.node.number, ok=False)
        self.put(0, b"plain")
        own = self.put(0, b"own", dsync=True)
        self.assertEqual(self.history.boundaries(), [good - 1, own.durable])

    def test_bytes_come_back_as_they_were_written_also_across_blocks_and_cut(self):
        chance, model = random.Random(7), bytearray()
        node = self.history.live.nodes[self.node.number]
        for _ in range(300):
            if chance.random() < 0.15:
                size = chance.randrange(20_000)
                model = model[:size] + bytes(max(0, size - len(model)))
                self.history.change("size", node.number, self.now(), size)
            else:
                at, data = chance.randrange(15_000), bytes([chance.choice([0, 7])]) * chance.randrange(1, 9000)
                model += bytes(max(0, at + len(data) - len(model)))
                model[at : at + len(data)] = data
                self.put(at, data)
            self.assertEqual(node.read(0, 1 << 20), bytes(model))
            at = chance.randrange(20_000)
            self.assertEqual(node.read(at, 5000), bytes(model[at : at + 5000]))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
