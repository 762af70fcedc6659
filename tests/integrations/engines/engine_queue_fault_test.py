"""What the connectors have in common, where there is no pool, or something else in its place."""
import gc
import os
import socket
import threading
import time
import unittest
from unittest import mock

from harness import Cluster, until

from ems.engine_queue import EngineQueue
from ems.errors import NotFound

AWAY = {'controller': '127.0.0.1:1', 'start_timeout': 0.05}
SLACK = 5.0


def counted(folder):
    return len(os.listdir(f'/proc/self/{folder}'))


class NotFoundServer:
    """An HTTP/2 server that is no controller: each request is answered with 404, as a proxy does."""

    SETTINGS = b'\x00\x00\x00\x04\x00\x00\x00\x00\x00'
    SETTINGS_ACK = b'\x00\x00\x00\x04\x01\x00\x00\x00\x00'

    def __init__(self):
        self._listening = socket.create_server(('127.0.0.1', 0))
        self.address = f'127.0.0.1:{self._listening.getsockname()[1]}'
        self.answered = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                peer = self._listening.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer):
        with peer, peer.makefile('rb') as stream:
            try:
                stream.read(24)  # the preface
                peer.sendall(self.SETTINGS)
                while len(head := stream.read(9)) == 9:
                    kind, flags, number = head[3], head[4], head[5:9]
                    body = stream.read(int.from_bytes(head[:3], 'big'))
                    if kind == 4 and not flags & 1:
                        peer.sendall(self.SETTINGS_ACK)
                    elif kind == 6 and not flags & 1:  # a ping
                        peer.sendall(b'\x00\x00\x08\x06\x01' + bytes(4) + body)
                    elif kind == 1:  # headers: ":status 404" is 13 of HPACK's table, and the stream ends
                        peer.sendall(b'\x00\x00\x01\x01\x05' + number + b'\x8d')
                        self.answered += 1
            except OSError:
                pass

    def close(self):
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


class EngineQueueFaultTest(unittest.TestCase):
    def test_engine_starts_where_something_else_answers_in_the_pools_place(self):
        server = NotFoundServer()
        self.addCleanup(server.close)
        with self.assertLogs('ems', 'WARNING') as logs:
            queue = EngineQueue({'model': 'm'}, controller=server.address, start_timeout=2.0)
        self.addCleanup(queue.close)
        self.assertIn('404', ''.join(logs.output))
        self.assertGreater(server.answered, 0)
        flags, error = queue.run_at('exists', ['a', 'b'])
        self.assertEqual(flags, [False, False])
        self.assertIn('not connected', error)

    def test_queues_dropped_without_close_leave_no_threads_or_descriptors(self):
        EngineQueue({'model': 'm'}, **AWAY).close()  # what the first one makes stays
        gc.collect()
        before = counted('task'), counted('fd')
        for _ in range(10):
            queue = EngineQueue({'model': 'm'}, **AWAY)
            thread = queue._connecting
            del queue
        gc.collect()
        until(lambda: not thread.is_alive(), 10, 'the thread of the last one ends')
        until(lambda: counted('task') <= before[0] and counted('fd') <= before[1], 15, 'all of them are gone')

    def test_queue_in_use_is_not_dropped_by_its_thread(self):
        with Cluster(servers=1) as cluster:
            cluster.controller.kill()
            queue = EngineQueue({'model': 'm'}, controller=cluster.address, start_timeout=0.05)
            self.addCleanup(queue.close)
            gc.collect()
            cluster.controller.start()
            cluster.controller.wait_ready()
            until(lambda: queue.run_at('exists', ['a']) == ([False], None), 30, 'it is connected')

    def test_pool_that_is_away_for_several_attempts_is_found(self):
        attempts, attach = [], EngineQueue._attach

        def counted_attach(queue, timeout):
            attempts.append(timeout)
            attach(queue, timeout)
        with Cluster(servers=1) as cluster, mock.patch.object(EngineQueue, '_attach', counted_attach):
            cluster.controller.kill()
            queue = EngineQueue({'model': 'm'}, controller=cluster.address, start_timeout=0.05)
            self.addCleanup(queue.close)
            until(lambda: len(attempts) > 2, 30, 'a second attempt follows one that failed')
            cluster.controller.start()
            cluster.controller.wait_ready()
            until(lambda: queue.run_at('exists', ['a']) == ([False], None), 30, 'it is connected')

    def test_close_while_the_pool_is_away_does_not_wait_for_it(self):
        queue = EngineQueue({'model': 'm'}, **AWAY)
        begin = time.monotonic()
        queue.close()
        self.assertLess(time.monotonic() - begin, SLACK)
        self.assertFalse(queue._connecting.is_alive())

    def test_namespace_that_is_missing_when_the_pool_comes_is_said_once(self):
        with Cluster(servers=1) as cluster:
            cluster.controller.kill()
            queue = EngineQueue({'model': 'm'}, controller=cluster.address, namespace='nobody', start_timeout=0.05)
            self.addCleanup(queue.close)
            with self.assertLogs('ems', 'WARNING') as logs:
                cluster.controller.start()
                cluster.controller.wait_ready()
                until(lambda: logs.output, 30, 'it is said')
                time.sleep(2.5)  # two more attempts
            self.assertEqual(len(logs.output), 1)
            self.assertIn('nobody', logs.output[0])
            with self.assertRaises(NotFound):
                EngineQueue({'model': 'm'}, controller=cluster.address, namespace='nobody')


if __name__ == '__main__':
    unittest.main()
