"""How vLLM's worker half copies blocks: in parts, in the order of what the pool answers; and torch tensors of a device through rows."""
import os
import sys
import unittest
import weakref
from types import SimpleNamespace
from unittest import mock

import numpy
from fake_vllm import BLOCK, Request
from harness import SOURCE_DIR
from vllm_case import VllmCase

from ems import device_copies, device_rows, paged_rows, vllm_worker

sys.path.insert(0, os.path.join(SOURCE_DIR, 'bench', 'engines'))


def torch_or_skip(test):
    try:
        import torch  # pylint: disable=import-outside-toplevel
    except ImportError:
        test.skipTest('torch is not installed')
    return torch


class Recorded:
    """HostRows that note what is called."""

    def __init__(self, layers, row, log):
        self._rows, self._log = paged_rows.HostRows(layers, row), log

    def __getattr__(self, name):
        def call(*args):
            self._log.append(name)
            answer = getattr(self._rows, name)(*args)
            return self if name == 'copied' else answer
        return call


class Watched(paged_rows.HostRows):
    """HostRows whose copies fail where they are told to, and whose rows have to be there until their copy has been waited for."""

    def __init__(self, layers, row):
        super().__init__(layers, row)
        self.fails = {}   # name of a call → how many of them do not
        self.open = {}    # rows of copies that nobody has waited for → a reference to them
        self.is_lost = False

    def _call(self, name, rows, call):
        if rows is not None:
            self.open[id(rows)] = weakref.ref(rows)
        if self.fails.get(name) == 0:
            raise RuntimeError('the device has no memory left')
        self.fails[name] = self.fails.get(name, 1000) - 1
        return call()

    def empty(self, count):
        return self._call('empty', None, lambda: super(Watched, self).empty(count))

    def load(self, rows, places, ids):
        self._call('load', rows, lambda: super(Watched, self).load(rows, places, ids))

    def save(self, ids, rows):
        self._call('save', rows, lambda: super(Watched, self).save(ids, rows))

    def copied(self):
        return SimpleNamespace(synchronize=lambda known=set(self.open): self._waited(known))

    def _waited(self, known):
        for one in known & set(self.open):
            self.is_lost |= self.open.pop(one)() is None


class VllmCopiesTest(VllmCase):
    def moves(self, seed, **options):
        """One engine computes and saves 12 blocks, the other one loads them."""
        prompt = [seed * 1000 + i * 31 for i in range(12 * BLOCK + 3)]
        first, second = self.engine(**options), self.engine(**options)
        first.run(Request('a', prompt))
        first.settle()
        loaded, ids = second.run(Request('b', prompt))
        self.assertEqual(loaded, 12 * BLOCK)
        self.assertTrue(second.is_right(Request('b', prompt), ids))
        return first, second

    def test_parts_of_one_block_each(self):
        with mock.patch.object(vllm_worker, 'LOAD_BYTES', 1), mock.patch.object(vllm_worker, 'SAVE_BYTES', 1):
            self.moves(1)

    def test_the_device_is_waited_for_before_the_pool_reads_and_the_engine_before_it_computes(self):
        log = []
        with mock.patch.object(paged_rows, 'rows_of', lambda layers, row: Recorded(layers, row, log)):
            with mock.patch.object(vllm_worker, 'SAVE_BYTES', 1), mock.patch.object(vllm_worker, 'LOAD_BYTES', 1):
                first, second = self.moves(2)
                del log[:]
                submit = first.worker._worker._queue.submit
                with mock.patch.object(first.worker._worker._queue, 'submit',
                                       lambda kind, *args, **more: log.append(kind) or submit(kind, *args, **more)):
                    first.run(Request('c', [7000 + i for i in range(2 * BLOCK + 1)]))
                self.assertEqual([name for name in log if name != 'empty'],
                                 ['begin', 'save', 'copied', 'save', 'copied', 'synchronize', 'set', 'synchronize', 'set'])
                del log[:]
                second.run(Request('d', [2000 + i * 31 for i in range(3 * BLOCK)]))
                loads = [name for name in log if name in ('begin', 'load', 'copied', 'join')]
                self.assertEqual(loads[:6], ['begin', 'load', 'copied', 'load', 'copied', 'join'])

    def watched(self, engine):
        worker = engine.worker._worker
        worker._rows = Watched(list(worker._layers.values()), worker._row)
        return worker._rows

    def test_rows_stay_until_the_device_has_read_them(self):
        with mock.patch.object(vllm_worker, 'LOAD_BYTES', 1), mock.patch.object(vllm_worker, 'SAVE_BYTES', 1):
            prompt = [3300 + i * 31 for i in range(12 * BLOCK + 3)]
            first, second = self.engine(), self.engine()
            rows = [self.watched(one) for one in (first, second)]
            first.run(Request('a', prompt))
            first.settle()
            self.assertEqual(second.run(Request('b', prompt))[0], 12 * BLOCK)
            second.idle()
            self.assertEqual([(one.open, one.is_lost) for one in rows], [({}, False)] * 2)

    def test_a_copy_that_fails_is_a_miss_and_the_engine_goes_on(self):
        with mock.patch.object(vllm_worker, 'LOAD_BYTES', 1), mock.patch.object(vllm_worker, 'SAVE_BYTES', 1):
            for seed, name in ((34, 'load'), (35, 'empty')):
                prompt = [seed * 100 + i * 31 for i in range(12 * BLOCK + 3)]
                first, second = self.engine(), self.engine()
                first.run(Request('a', prompt))
                first.settle()
                rows = self.watched(second)
                rows.fails[name] = 5
                with self.assertLogs('ems', 'ERROR'):
                    loaded, ids = second.run(Request('b', prompt))
                self.assertEqual(loaded, 5 * BLOCK)
                self.assertTrue(second.is_right(Request('b', prompt), ids))
                second.idle()
                self.assertEqual((rows.open, rows.is_lost, second.worker._worker._loads), ({}, False, {}))

    def test_of_a_save_whose_copy_fails_the_blocks_before_are_stored(self):
        with mock.patch.object(vllm_worker, 'SAVE_BYTES', 1):
            for seed, name in ((36, 'save'), (37, 'empty')):
                prompt = [seed * 100 + i * 31 for i in range(12 * BLOCK + 3)]
                first, second = self.engine(), self.engine()
                rows = self.watched(first)
                rows.fails[name] = 5
                with self.assertLogs('ems', 'ERROR'):
                    first.run(Request('a', prompt))
                self.assertEqual((rows.open, rows.is_lost, first.worker._worker.skipped_blocks), ({}, False, 7))
                first.settle()
                loaded, ids = second.run(Request('b', prompt))
                self.assertEqual(loaded, 5 * BLOCK)
                self.assertTrue(second.is_right(Request('b', prompt), ids))

    def stand_in(self):
        torch = torch_or_skip(self)
        for of, name in ((torch, 'empty'), (torch.Tensor, 'pin_memory'), (device_copies.tensors, 'device_of')):
            self.enterContext(mock.patch.object(of, name, getattr(of, name)))  # put back in the end
        import stand_in_device  # pylint: disable=import-outside-toplevel
        stand_in_device.install()
        return torch, stand_in_device

    def test_torch_tensors_of_a_device_go_through_rows(self):
        torch, device = self.stand_in()
        for seed, dtype in ((3, torch.float16), (4, torch.float32)):
            with mock.patch.object(device_rows, 'DEVICE_BYTES', 1 if seed == 3 else 32 << 20):
                first, _ = self.moves(seed, make=lambda shape, dtype=dtype: device.on_device(torch.zeros(shape, dtype=dtype)))
            self.assertIsInstance(first.worker._worker._rows, device_rows.DeviceRows)

    def test_tensors_of_several_places_are_copied_one_by_one(self):
        torch, device = self.stand_in()
        there = [device.on_device(torch.zeros((9, 4))) for _ in range(2)]
        for other in (there[1], torch.zeros((9, 4)).to('meta'), numpy.zeros((9, 4), numpy.float32)):
            layers = [(tensor, 0, at * 16, 16) for at, tensor in enumerate((there[0], other))]
            self.assertEqual(isinstance(paged_rows.rows_of(layers, 32), device_rows.DeviceRows), other is there[1])

    def test_rows_of_tensors_of_several_types_and_layouts(self):
        torch, device = self.stand_in()
        made = [torch.randint(0, 255, shape, dtype=torch.uint8).view(dtype)
                for shape, dtype in (((9, 3, 5), torch.uint8), ((2, 9, 4, 12), torch.bfloat16), ((9, 8), torch.float32))]
        dims = (0, 1, 0)
        device_tensors = [device.on_device(tensor.clone()) for tensor in made]
        layers, row = [], 0
        for tensor, dim in zip(device_tensors, dims):
            size = paged_rows.row_bytes(tensor, dim)
            layers.append((tensor, dim, row, size))
            row += size
        mover = paged_rows.rows_of(layers, row)
        self.assertIsInstance(mover, device_rows.DeviceRows)
        rows, expected = mover.empty(3), paged_rows.HostRows(layers, row).empty(3)
        mover.begin()
        mover.save([5, 0, 7], rows)
        mover.copied().synchronize()
        for tensor, (_, dim, offset, size) in zip(made, layers):
            paged_rows.gather(tensor, dim, [5, 0, 7], expected[:, offset:offset + size])
        self.assertTrue((rows == expected).all())
        mover.load(rows, [0, 2], [1, 8])  # the second did not arrive
        mover.join()
        for tensor, was, dim in zip(device_tensors, made, dims):
            bits, old = tensor.contiguous().view(torch.uint8), was.contiguous().view(torch.uint8)
            for block, source in ((1, 5), (8, 7), (0, 0), (5, 5), (2, 2)):
                self.assertTrue(torch.equal(bits.select(dim, block), old.select(dim, source)))


if __name__ == '__main__':
    unittest.main()
