"""Whatever comes from the network, a Follower of KV events neither raises nor stays wrong: the server is the test."""
import os
import random
import sys
import time
import unittest

import msgpack
from kv_follower_test import DRAM, FakeServer, removed, stored

from ems.kv_events import EVENTS, MEDIA, STATE_NOW, Follower, decode

SEED = int(os.environ.get('EMS_SEED', random.SystemRandom().randrange(2**32)))
PAYLOADS = 20_000
STREAM_MESSAGES = 400
ODD = (None, True, -1, 0, 2**64 - 1, 1.5, float('nan'), '', 'BlockStored', b'', b'x' * 16, [], {}, [[[[]]]], {'events': []},
       [0.0, [], None], ['AllBlocksCleared'])


def as_map(event):
    names = {'BlockStored': ('block_hashes', 'parent', 'token_ids', 'block_size', 'lora_id', 'medium', 'lora_name'),
             'BlockRemoved': ('block_hashes', 'medium'), 'AllBlocksCleared': ()}[event[0]]
    return {'type': event[0], **dict(zip(names, event[1:]))}


class Mutator:
    """Payloads that are almost batches."""

    def __init__(self, rng):
        self._rng = rng

    def events(self):
        rng = self._rng
        makers = (lambda: stored(*(rng.randbytes(16) for _ in range(rng.randrange(4)))), lambda: removed(rng.randbytes(16)),
                  lambda: stored(rng.randrange(2**64)), lambda: ['AllBlocksCleared'])
        return [rng.choice(makers)() for _ in range(rng.randrange(4))]

    def payload(self):
        rng, events = self._rng, self.events()
        tree = [0.0, events, None] if rng.random() < 0.5 else {'ts': 0.0, 'events': [as_map(event) for event in events]}
        for _ in range(rng.randrange(3)):
            tree = self._other(tree)
        payload = bytearray(msgpack.packb(tree))
        for _ in range(rng.randrange(4)):
            self._spoil(payload)
        return bytes(payload)

    def _other(self, tree):
        """The same, but for one part of it."""
        rng = self._rng
        if not isinstance(tree, (list, dict)) or not tree or rng.random() < 0.2:
            return rng.choice(ODD)
        if isinstance(tree, dict):
            key = rng.choice(list(tree))
            return {**tree, key: self._other(tree[key])}
        at = rng.randrange(len(tree))
        return [*tree[:at], self._other(tree[at]), *tree[at + 1:]] if rng.random() < 0.8 else tree[:at]

    def _spoil(self, payload):
        rng, at = self._rng, self._rng.randrange(len(payload) + 1)
        what = rng.randrange(4)
        if what == 0:
            payload[at:at + 1] = rng.randbytes(1)
        elif what == 1:
            del payload[at:at + rng.randrange(1, 8)]
        elif what == 2:
            payload[at:at] = rng.randbytes(rng.randrange(1, 8))
        else:  # lengths that claim more than there is
            payload[at:at] = rng.choice((b'\xdd', b'\xdf', b'\xc6', b'\xdb')) + b'\xff' * rng.randrange(5)


class KvFollowerFuzzTest(unittest.TestCase):
    def setUp(self):
        self._rng = random.Random(SEED)
        self._mutator = Mutator(self._rng)

    def test_a_payload_is_a_batch_or_a_value_error(self):
        read = 0
        for number in range(PAYLOADS):
            payload = self._mutator.payload()
            try:
                events = decode(payload)
            except ValueError:
                continue
            read += 1
            with self.subTest(seed=SEED, number=number, payload=payload.hex()):
                for name, hashes, medium in events:
                    self.assertIn(name, EVENTS)
                    self.assertIsInstance(hashes, list)
                    self.assertTrue(all(type(one) in (bytes, int) for one in hashes), hashes)
                    self.assertIsInstance(medium, (str, type(None)))
        self.assertGreater(read, PAYLOADS // 20, 'mutations leave too little that can be read')
        self.assertLess(read, PAYLOADS)

    def test_after_any_messages_the_state_is_what_the_server_says(self):
        server = FakeServer(self)
        follower = Follower(server.events, server.replay, patience=0.2)
        self.addCleanup(follower.close)
        server.wait_for_subscriber()
        rng, number = self._rng, 10
        for _ in range(STREAM_MESSAGES):
            number += rng.choice((1, 1, 1, 2))
            frames = [b'', number.to_bytes(8, 'big'), self._mutator.payload()]
            if rng.random() < 0.2:
                del frames[rng.randrange(3)]
            if rng.random() < 0.1:
                frames[-1:] = [rng.randbytes(8), b'']
            server.publish_frames(*frames)
            follower.poll(0)
            self._answer_anything(server, number)
            self.assertEqual(set(follower.blocks), set(MEDIA))
        truth = {rng.randbytes(16) for _ in range(5)}
        self._tell_the_truth(server, follower, number, truth)
        self.assertEqual(follower.blocks[DRAM], truth, f'seed {SEED}')

    def _answer_anything(self, server, number):
        if server.nobody_asks():
            return
        who = server.asked()[0]
        for _ in range(self._rng.randrange(4)):
            frames = [self._rng.choice((number, number - 1, STATE_NOW)).to_bytes(8, 'big'), self._mutator.payload()]
            server.answer_frames(who, *frames[self._rng.random() < 0.1:])

    def _tell_the_truth(self, server, follower, number, truth):
        """From now on nothing else is said. Numbers below one that came by chance are those of a new process."""
        until = time.monotonic() + 20
        while follower.stale or follower.blocks[DRAM] != truth:
            self.assertLess(time.monotonic(), until, f'seed {SEED}')
            number += 1
            server.publish(number)
            follower.poll(0.05)
            while not server.nobody_asks():
                server.answer(server.asked()[0], (number, ['AllBlocksCleared'], stored(*truth)))


if __name__ == '__main__':
    print(f'seed {SEED}: EMS_SEED={SEED} repeats this run', file=sys.stderr)
    unittest.main()
