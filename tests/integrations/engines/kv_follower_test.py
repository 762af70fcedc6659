"""What a Follower of KV events does with what a server says, or does not say: the server is the test."""
import socket
import sys
import time
import unittest
from unittest import mock

import msgpack
import zmq
from event_peer import END, STATE_NOW, free_port
from harness import until

from ems.kv_events import BlockNames, Follower, decode

DRAM = 'EMS_DRAM'


def stored(*blocks):
    return ['BlockStored', list(blocks), None, [], 0, None, DRAM, None]


def removed(*blocks):
    return ['BlockRemoved', list(blocks), DRAM]


def batch(*events):
    return msgpack.packb([0.0, list(events), None])


class FakeServer:
    """Publishes what it is told to, and answers when it is told to."""

    def __init__(self, test):
        self._context = zmq.Context()
        self._pub, self._router = self._context.socket(zmq.XPUB), self._context.socket(zmq.ROUTER)
        test.addCleanup(self.close)
        self.events = f"127.0.0.1:{self._pub.bind_to_random_port('tcp://127.0.0.1')}"
        self.replay = f"127.0.0.1:{self._router.bind_to_random_port('tcp://127.0.0.1')}"
        for one in (self._pub, self._router):
            one.setsockopt(zmq.RCVTIMEO, 10_000)

    def close(self):
        for one in (self._pub, self._router):
            one.close(linger=0)
        self._context.term()

    def wait_for_subscriber(self):
        self._pub.recv()

    def publish(self, number, *events):
        self._pub.send_multipart([b'', number.to_bytes(8, 'big'), batch(*events)])

    def asked(self):
        """(who, what)."""
        return self._router.recv_multipart()

    def nobody_asks(self):
        return not self._router.poll(0)

    def answer(self, who, *batches):
        for number, *events in batches:
            self._router.send_multipart([who, number.to_bytes(8, 'big'), batch(*events)])
        self._router.send_multipart([who, END, b''])


class KvFollowerTest(unittest.TestCase):
    def start(self, replay=None, **options):
        server = FakeServer(self)
        follower = Follower(server.events, server.replay if replay is None else replay, **options)
        self.addCleanup(follower.close)
        server.wait_for_subscriber()
        return server, follower

    def poll_until(self, follower, condition, what):
        def holds():
            follower.poll(0.02)
            return condition()
        until(holds, 10, what)

    def silent_port(self):
        listener = socket.create_server(('127.0.0.1', 0))  # takes connections, says nothing
        self.addCleanup(listener.close)
        return listener.getsockname()[1]

    def test_who_gets_no_answer_is_stale_and_polls_no_longer_than_told(self):
        for what, replay in (('closed', f'127.0.0.1:{free_port()}'), ('silent', f'127.0.0.1:{self.silent_port()}'),
                             ('none', '')):
            with self.subTest(what):
                server, follower = self.start(replay, patience=1)
                begun, number, longest, heard = time.monotonic(), 1000, {0: 0, 0.05: 0}, 0
                while time.monotonic() < begun + 2.5:
                    for seconds in longest:
                        server.publish(number, stored(b'x'))
                        number += 2  # always a hole
                        before = time.monotonic()
                        heard += follower.poll(seconds)
                        longest[seconds] = max(longest[seconds], time.monotonic() - before - seconds)
                        self.assertTrue(follower.stale)
                self.assertLess(max(longest.values()), 0.8, 'less than its patience')
                self.assertGreater(heard, 10, 'it hears the stream')
                self.assertLess(time.monotonic() - follower.heard_at, 1)
                self.assertEqual(follower.states, 0)

    def test_an_answer_that_comes_late_is_taken_in_by_a_later_poll_with_what_came_meanwhile(self):
        server, follower = self.start(patience=20)
        self.assertEqual(follower.poll(0), 0)
        who, what = server.asked()
        self.assertEqual(what, STATE_NOW)
        server.publish(7, stored(b'c'))
        server.publish(8, removed(b'b'))
        until(lambda: follower.poll(0) or follower.heard_at, 10, 'heard')
        self.assertEqual((follower.stale, follower.blocks[DRAM]), (True, set()))
        server.answer(who, (6, ['AllBlocksCleared'], stored(b'a', b'b')), (7, stored(b'c')))
        self.poll_until(follower, lambda: not follower.stale and follower.last == 8, 'told')
        self.assertEqual((follower.blocks[DRAM], follower.states), ({b'a', b'c'}, 1))
        self.assertTrue(server.nobody_asks(), 'nothing more was missed')
        server.publish(10, stored(b'e'))  # 9 was lost
        self.poll_until(follower, lambda: follower.stale, 'a hole')
        who, what = server.asked()
        self.assertEqual(int.from_bytes(what, 'big'), 9)
        server.answer(who, (9, stored(b'd')))
        self.poll_until(follower, lambda: follower.last == 10, 'both')
        self.assertEqual((follower.stale, follower.blocks[DRAM]), (False, {b'a', b'c', b'd', b'e'}))

    def test_who_is_busy_is_asked_again_after_a_while(self):
        server, follower = self.start()
        follower.poll(0)
        server.answer(server.asked()[0])
        begun, asked = time.monotonic(), 0
        while time.monotonic() < begun + 1:
            follower.poll(0)
            self.assertTrue(follower.stale)
            if not server.nobody_asks():
                asked += 1
                server.answer(server.asked()[0])
        self.assertIn(asked, range(1, 11))
        until(lambda: follower.poll(0) or not server.nobody_asks(), 10, 'asked once more')
        server.answer(server.asked()[0], (3, ['AllBlocksCleared'], stored(b'a')))
        self.poll_until(follower, lambda: not follower.stale, 'told')
        self.assertEqual(follower.has(b'a'), DRAM)

    def test_a_server_whose_numbers_go_back_is_asked_for_its_state(self):
        server, follower = self.start()
        follower.poll(0)
        server.answer(server.asked()[0], (100, ['AllBlocksCleared'], stored(b'a')))
        server.publish(101, stored(b'b'))
        self.poll_until(follower, lambda: follower.last == 101, 'follows')
        server.publish(50, ['AllBlocksCleared'])
        self.poll_until(follower, lambda: follower.stale, 'noticed')
        who, what = server.asked()
        self.assertEqual(what, STATE_NOW)
        server.publish(51, stored(b'd'))
        server.answer(who, (50, ['AllBlocksCleared'], stored(b'c')))
        self.poll_until(follower, lambda: follower.last == 51, 'follows again')
        self.assertEqual((follower.stale, follower.blocks[DRAM]), (False, {b'c', b'd'}))

    def test_without_a_port_to_ask_it_knows_what_came_since_the_last_hole(self):
        server, follower = self.start('')
        for number, block in ((5, b'a'), (6, b'b')):
            server.publish(number, stored(block))
        self.poll_until(follower, lambda: follower.blocks[DRAM] == {b'a', b'b'}, 'what came')
        server.publish(8, stored(b'c'))
        self.poll_until(follower, lambda: follower.last == 8, 'a hole')
        self.assertEqual((follower.stale, follower.blocks[DRAM]), (True, {b'c'}))

    def test_a_module_that_is_missing_is_named_with_its_package(self):
        for module, call, says in (('zmq', lambda: Follower('127.0.0.1:1', ''), r'python3-zmq \(Debian\) or pyzmq'),
                                   ('msgpack', lambda: decode(b''), 'python3-msgpack'),
                                   ('xxhash', lambda: BlockNames.of_key(b''), 'python3-xxhash')):
            with mock.patch.dict(sys.modules, {module: None}):
                with self.assertRaisesRegex(ImportError, f'ems.kv_events needs the module {module}: install {says}'):
                    call()


if __name__ == '__main__':
    unittest.main()
