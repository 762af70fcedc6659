"""Large batches of both generations whose servers are killed, or stand still, in their middle: over by their timeout.

256 MiB a batch, so that bytes are always on their way somewhere when the time is over: to a socket, to staging memory, out of
a server's memory.
"""
import itertools
import os
import threading
import time
import unittest

import numpy
from cluster import Cluster, until
from ems import CcConfig, CcConfig_v1, CcKvOption, Ems, EmsConfig, EmsErrorCode, EmsException, KvBufferWrapper
from npu_tensor import NpuTensor

BLOCKS, BLOCK_TOKENS, HEADS, HEAD_SIZE = 64, 16, 64, 1024
BLOCK_BYTES = BLOCK_TOKENS * HEADS * HEAD_SIZE * 4
GRACE = 0.1  # s beyond the timeout
TIMEOUT = 80  # ms; less than all of it takes


class DeadlineTest(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(servers=3, dram='640MiB', controller_flags=['damping_ms=0']).__enter__()
        self.addCleanup(self.cluster.stop)
        os.environ['EMS_CONTROLLER'] = self.cluster.address
        self.addCleanup(os.environ.pop, 'EMS_CONTROLLER', None)
        self.tensor = NpuTensor((BLOCKS, BLOCK_TOKENS, HEADS, HEAD_SIZE), 'float32')
        Ems.init(EmsConfig(cc_config=CcConfig(0, 0, 'late'), cc_config_v1=CcConfig_v1(rank_id=0, device_id=0, model_id='late')))
        self.addCleanup(Ems.shutdown)
        self.cc = Ems.get_cc()
        self.cc.register_kvcache([[self.tensor]])
        self.names = itertools.count(0, BLOCKS)

    def call(self, generation, is_load, is_async, first, timeout):
        """(successes or None, seconds) of one batch; only a timeout may raise."""
        option = CcKvOption(timeout=timeout)
        verb = ('async_' if is_async else '') + ('load' if is_load else 'save')
        begin = time.perf_counter()
        try:
            if generation == 0:
                result = getattr(self.cc, verb)(option, [f'key-{first + i}' for i in range(BLOCKS)], [
                    [KvBufferWrapper(self.tensor.data_ptr() + i * BLOCK_BYTES, BLOCK_BYTES)] for i in range(BLOCKS)])
            else:
                result = getattr(self.cc, verb)(hashes=[first + i for i in range(BLOCKS)], option=option,
                                                chunk_descs=[[(i * BLOCK_TOKENS, BLOCK_TOKENS) for i in range(BLOCKS)]])
            result = result.result() if is_async else result
        except EmsException as error:
            self.assertEqual(error.status_code(), EmsErrorCode.EMS_IO_TIMEOUT)
            return None, time.perf_counter() - begin
        return result.success, time.perf_counter() - begin

    def fill(self, first):
        """Block i holds first + i."""
        self.tensor.host()[:] = numpy.arange(first, first + BLOCKS, dtype=numpy.uint32)[:, None, None, None]

    def check_each_call(self, fault, recover):
        """`fault` in the middle of each kind of call."""
        slowest = 0.0
        for generation, is_load, is_async in itertools.product((0, 1), (False, True), (False, True)):
            with self.subTest(generation=generation, is_load=is_load, is_async=is_async):
                first = next(self.names)
                self.fill(first)
                if is_load:
                    saved, _ = self.call(generation, False, False, first, 20000)
                    self.assertIsNotNone(saved)
                    self.tensor.host()[:] = 0
                timer = threading.Timer(TIMEOUT / 1000 * 0.4, fault)
                timer.start()
                success, seconds = self.call(generation, is_load, is_async, first, TIMEOUT)
                timer.join()
                slowest = max(slowest, seconds - TIMEOUT / 1000)
                self.assertLess(seconds, TIMEOUT / 1000 + GRACE)
                for i in range(success or 0):
                    self.assertTrue((self.tensor.host()[i] == first + i).all(), f'block {i}')
                begin = time.perf_counter()
                self.assertLessEqual(self.cc.exists([first + i for i in range(BLOCKS)], CcKvOption(timeout=60)).success, BLOCKS)
                self.assertLess(time.perf_counter() - begin, 0.06 + GRACE)
                recover()
                until(Ems.check_health, 30, 'the pool is healthy again')
        print(f'latest batch: {slowest * 1e3:.1f} ms after its timeout')

    def test_servers_that_are_killed(self):
        self.check_each_call(self.cluster.kill_servers, self.cluster.start_servers)

    def test_servers_that_stand_still(self):
        self.check_each_call(self.cluster.stand_still, self.cluster.go_on)

    def test_one_server_that_stands_still(self):
        def go_on():
            self.cluster.servers[0].go_on()
        self.check_each_call(self.cluster.servers[0].stand_still, go_on)


if __name__ == '__main__':
    unittest.main()
