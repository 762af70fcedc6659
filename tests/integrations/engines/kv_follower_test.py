"""What a Follower of KV events does with what a server says, or does not say: the server is the test."""
import select
import socket
import sys
import threading
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
        self.publish_frames(b'', number.to_bytes(8, 'big'), batch(*events))

    def publish_frames(self, *frames):
        self._pub.send_multipart(frames)

    def asked(self):
        """(who, what)."""
        return self._router.recv_multipart()

    def nobody_asks(self):
        return not self._router.poll(0)

    def answer(self, who, *batches):
        for number, *events in batches:
            self.answer_frames(who, number.to_bytes(8, 'big'), batch(*events))
        self.answer_frames(who, END, b'')

    def answer_frames(self, *frames):
        self._router.send_multipart(frames)


class Host:
    """In front of a server. Once it has vanished, connections of before are never heard of again; new ones are as ever."""

    def __init__(self, test, address):
        self._server = address.split(':')
        self._listener = socket.create_server(('127.0.0.1', 0))
        self.address = f'127.0.0.1:{self._listener.getsockname()[1]}'
        self._others = {}     # end of a connection → the other
        self._gone = set()    # ends that are not heard
        self._ending = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        test.addCleanup(self._close)

    def vanish(self):
        self._gone = set(self._others)

    def _run(self):
        while not self._ending:
            for one in select.select([self._listener, *self._others], [], [], 0.05)[0]:
                if one is self._listener:
                    near, far = self._listener.accept()[0], socket.create_connection(self._server)
                    self._others.update({near: far, far: near})
                elif one in self._others:
                    self._pass_on(one)

    def _pass_on(self, one):
        try:
            data = one.recv(65536)
            if one not in self._gone:
                self._others[one].sendall(data)
        except OSError:
            data = b''
        if not data:
            other = self._others.pop(one)
            del self._others[other]
            one.close()
            other.close()

    def _close(self):
        self._ending = True
        self._thread.join()
        for one in (self._listener, *self._others):
            one.close()


class KvFollowerTest(unittest.TestCase):
    def start(self, replay=None, **options):
        server = FakeServer(self)
        follower = Follower(server.events, server.replay if replay is None else replay, **options)
        self.addCleanup(follower.close)
        server.wait_for_subscriber()
        return server, follower

    def start_with(self, *blocks, **options):
        """As of batch 10, and following."""
        server, follower = self.start(**options)
        follower.poll(0)
        server.answer(server.asked()[0], (9, ['AllBlocksCleared'], stored(*blocks)))
        server.publish(10)
        self.poll_until(follower, lambda: not follower.stale, 'follows')
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
                server, follower = self.start(replay, patience=3)
                begun, number, longest, heard = time.monotonic(), 1000, {0: 0, 0.05: 0}, 0
                while time.monotonic() < begun + 4:
                    for seconds in longest:
                        server.publish(number, stored(b'x'))
                        number += 2  # always a hole
                        before = time.monotonic()
                        heard += follower.poll(seconds)
                        longest[seconds] = max(longest[seconds], time.monotonic() - before - seconds)
                        self.assertTrue(follower.stale)
                self.assertLess(max(longest.values()), 2, 'less than its patience')
                self.assertGreater(heard, 10, 'it hears the stream')
                self.assertLess(time.monotonic() - follower.heard_at, 2)
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
        self.poll_until(follower, lambda: follower.last == 3, 'told')
        server.publish(4)
        self.poll_until(follower, lambda: not follower.stale, 'and heard')
        self.assertEqual(follower.has(b'a'), DRAM)

    def test_a_server_whose_numbers_go_back_is_asked_for_its_state(self):
        server, follower = self.start()
        follower.poll(0)
        server.answer(server.asked()[0], (100, ['AllBlocksCleared'], stored(b'a')))
        server.publish(101, stored(b'b'))
        self.poll_until(follower, lambda: follower.last == 101, 'follows')
        server.publish(50, ['AllBlocksCleared'])
        self.poll_until(follower, lambda: follower.stale, 'noticed')
        self.poll_until(follower, lambda: not server.nobody_asks(), 'asks')
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

    def test_it_is_stale_until_something_of_this_server_came_on_the_stream(self):
        server, follower = self.start()
        follower.poll(0)
        server.answer(server.asked()[0], (9, ['AllBlocksCleared'], stored(b'a')))
        self.poll_until(follower, lambda: follower.last == 9, 'told')
        self.assertTrue(follower.stale, 'another topic, or nothing listens there')
        server.publish(3, removed(b'a'))
        self.poll_until(follower, lambda: follower.heard_at, 'heard')
        follower.poll(0.1)
        self.assertTrue(follower.stale, 'another process publishes there')
        self.assertEqual(follower.has(b'a'), DRAM)
        for number in (9, 10):
            server.publish(number)
            self.poll_until(follower, lambda: follower.last == max(number, 9) and not follower.stale, 'it is this one')

    def test_a_server_that_is_quiet_is_taken_for_gone_until_it_says_something(self):
        server, follower = self.start_with(b'a', quiet=0.3)
        for number in range(11, 19):  # heartbeats
            server.publish(number)
            self.poll_until(follower, lambda: follower.last == number, 'heard')
            time.sleep(0.05)
        begun = time.monotonic()
        self.poll_until(follower, lambda: follower.stale, 'quiet')
        self.assertLess(time.monotonic() - begun, 5)
        self.assertEqual(follower.has(b'a'), DRAM, 'what it had')
        server.publish(19)
        self.poll_until(follower, lambda: not follower.stale, 'there again')
        self.assertTrue(server.nobody_asks(), 'nothing was missed')

    def test_who_polls_seldom_does_not_take_for_new_what_waited(self):
        server, follower = self.start_with(b'a', quiet=0.3)
        server.publish(11)
        time.sleep(0.5)  # and then it died
        self.assertEqual(follower.poll(0), 1)
        self.assertEqual((follower.last, follower.stale), (11, True))

    def test_the_stream_of_a_host_that_vanished_is_connected_to_again(self):
        with mock.patch.multiple('ems.kv_events', PING_MS=100, GONE_MS=500):
            server = FakeServer(self)
            host = Host(self, server.events)
            follower = Follower(host.address, '')
        self.addCleanup(follower.close)
        server.wait_for_subscriber()
        server.publish(10, stored(b'a'))
        self.poll_until(follower, lambda: follower.has(b'a'), 'follows')
        host.vanish()
        number = 10

        def follows():
            nonlocal number
            number += 1
            server.publish(number, stored(b'b'))
            follower.poll(0.02)
            return follower.has(b'b')
        until(follows, 10, 'follows again')

    def test_foreign_messages_on_the_stream_are_counted_and_change_nothing(self):
        server, follower = self.start_with(b'a')
        number = (11).to_bytes(8, 'big')
        for frames in ([b'hello'], [b'', number], [b'', number, batch(), b'x'], [b'', b'\xff\xff', batch()],
                       [b'', b'\x01' * 20, batch()]):
            server.publish_frames(*frames)
        self.poll_until(follower, lambda: follower.foreign == 5, 'counted')
        server.publish(11, stored(b'b'))
        self.poll_until(follower, lambda: follower.has(b'b'), 'follows')
        self.assertEqual((follower.stale, follower.states), (False, 1))

    def test_a_batch_that_cannot_be_read_counts_as_missed(self):
        wrong = [b'\xc1\xc1', *map(msgpack.packb, (5, {'ts': 1}, [0.0], [0.0, 7], [0.0, [[]]], [0.0, [['BlockStored']]], [
            0.0, [['BlockStored', None, None, [], 0, None, DRAM]]], [0.0, [['BlockRemoved', [['x']], DRAM]]], [
                0.0, [['BlockRemoved', [b'a'], {}]]], {'events': [{'type': 'BlockStored'}]}))]
        server, follower = self.start_with(b'a')
        for at, payload in enumerate(wrong):
            server.publish_frames(b'', (11 + 2 * at).to_bytes(8, 'big'), payload)
            self.poll_until(follower, lambda: follower.foreign == at + 1, payload)
            self.assertTrue(follower.stale)
            self.poll_until(follower, lambda: not server.nobody_asks(), 'asks')
            who, what = server.asked()
            self.assertEqual(what, STATE_NOW)
            server.answer(who, (11 + 2 * at, ['AllBlocksCleared'], stored(b'a')))
            server.publish(12 + 2 * at)
            self.poll_until(follower, lambda: not follower.stale, 'follows again')

    def test_an_answer_that_cannot_be_read_is_asked_for_again_seldom(self):
        number = (5).to_bytes(8, 'big')
        for what, frames in (('no batch', [number, b'\xc1']), ('one frame', [number]), ('number', [b'1', batch()]),
                             ('no state', [number, batch(stored(b'a'))])):
            with self.subTest(what):
                server, follower = self.start()
                begun, asked = time.monotonic(), 0
                while time.monotonic() < begun + 0.5:
                    follower.poll(0.01)
                    if not server.nobody_asks():
                        asked += 1
                        who, _ = server.asked()
                        server.answer_frames(who, *frames)
                        server.answer_frames(who, END, b'')
                self.assertIn(asked, range(1, 7))
                self.assertIn(follower.foreign, (asked - 1, asked))
                self.assertEqual((follower.stale, follower.blocks[DRAM]), (True, set()))

    def test_numbers_that_go_back_again_and_again_are_not_asked_about_each_time(self):
        server, follower = self.start_with(b'a')
        begun, asked = time.monotonic(), 0
        while time.monotonic() < begun + 0.5:
            for number in (3, 2):
                server.publish(number)
            follower.poll(0.005)
            while not server.nobody_asks():
                server.asked()
                asked += 1
        self.assertIn(asked, range(1, 8))

    def test_events_of_other_kinds_change_nothing(self):
        server, follower = self.start_with(b'a')
        server.publish_frames(b'', (11).to_bytes(8, 'big'), msgpack.packb({'ts': 0.0, 'events': [
            {'type': 'BlockTouched', 'block_hashes': [b'a'], 'medium': DRAM}, {'type': 'New'},
            {'type': 'BlockStored', 'block_hashes': [b'b'], 'medium': 'GPU', 'extra': [1]}]}))
        server.publish(12, ['BlockTouched', [b'a'], DRAM], ['New'], [*stored(b'c'), 'extra'])
        self.poll_until(follower, lambda: follower.last == 12, 'both')
        self.assertEqual((follower.blocks[DRAM], follower.foreign), ({b'a', b'c'}, 0))

    def test_a_name_is_found_where_numbers_are_published(self):
        name = bytes(range(16))
        number = int.from_bytes(name[-8:], 'big')
        _, follower = self.start_with(number)
        self.assertEqual((follower.has(name), follower.has(number), follower.has(bytes(16))), (DRAM, DRAM, None))

    def test_a_large_state_is_taken_in_by_many_calls_and_shows_when_it_is_whole(self):
        blocks = [i.to_bytes(16, 'big') for i in range(200 * 1024)]
        server, follower = self.start()
        follower.poll(0)
        server.answer(server.asked()[0], (8, ['AllBlocksCleared'], stored(b'old')))
        self.poll_until(follower, lambda: follower.last == 8, 'told')
        for number in (9, 5):
            server.publish(number)  # the latter is another process's
        self.poll_until(follower, lambda: not server.nobody_asks(), 'asks')
        who, _ = server.asked()
        server.answer(who, *((9, *([['AllBlocksCleared']] if at == 0 else []), stored(*blocks[at * 1024:(at + 1) * 1024]))
                             for at in range(200)))
        spent = []
        while follower.last != 9:
            self.assertIn(follower.blocks[DRAM], ({b'old'}, set(blocks)))
            before = time.thread_time()
            follower.poll(0)
            spent.append(time.thread_time() - before)
        self.assertEqual(follower.blocks[DRAM], set(blocks))
        self.assertGreater(len(spent), 5)
        self.assertLess(sorted(spent)[len(spent) // 2], 0.015)


if __name__ == '__main__':
    unittest.main()
