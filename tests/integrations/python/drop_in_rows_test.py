"""The drop-in surface with torch tensors of a device: whole blocks as rows of host memory, of a save in memory that servers read."""
import os
import sys
import unittest
from unittest import mock

from cluster import SOURCE_DIR, Cluster

try:
    import torch
except ImportError:
    print('skipped: torch is not installed')
    sys.exit(77)

from ems import CcConfig_v1, CcKvOption, Ems, EmsConfig, device_copies, device_rows, tensors

sys.path.insert(0, os.path.join(SOURCE_DIR, 'bench', 'engines'))
# pylint: disable=wrong-import-position
import stand_in_device

PAGE, BLOCKS = 16, 24
OPTION = CcKvOption(timeout=10000)


def slots(pages):
    return [page * PAGE + i for page in pages for i in range(PAGE)]


class RowsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2).__enter__()
        cls.addClassCleanup(cls.cluster.stop)
        os.environ['EMS_CONTROLLER'] = cls.cluster.address
        cls.addClassCleanup(os.environ.pop, 'EMS_CONTROLLER')

    def setUp(self):
        for of, name in ((torch, 'empty'), (torch.Tensor, 'pin_memory'), (tensors, 'device_of')):
            self.enterContext(mock.patch.object(of, name, getattr(of, name)))  # put back in the end
        stand_in_device.install()
        stand_in_device.Runtime.pinned.clear()

    def open(self, layers, model=''):
        Ems.shutdown()
        self.addCleanup(Ems.shutdown)
        name = self.id().rsplit('.', maxsplit=1)[-1] + model
        Ems.init(EmsConfig(cc_config_v1=CcConfig_v1(rank_id=0, device_id=0, model_id=name)))
        Ems.get_cc().register_kvcache(layers, order='NHD')
        return Ems.get_cc()

    @staticmethod
    def layers(*shapes):
        """Two layers of tensors of such pages."""
        made = [[torch.randint(-2**15, 2**15, (BLOCKS, *shape), dtype=torch.int16).view(torch.bfloat16) for shape in shapes] for _ in 'ab']
        return [[stand_in_device.on_device(tensor) for tensor in layer] for layer in made]

    def moves(self, layers, model=''):
        """Pages go out and come back in another order, over several turns, and no other is touched."""
        cc = self.open(layers, model)
        before = [[tensor.clone() for tensor in layer] for layer in layers]
        out, back, hashes = [7, 0, 3, 11, 2, 5], [12, 20, 15, 23, 13, 14], list(range(6))
        self.assertEqual(cc.save(slots(out), hashes, [PAGE] * 6, OPTION).success, 6)
        self.assertEqual(cc.load(slots(back), hashes, [PAGE] * 6, OPTION).success, 6)
        for layer, was in zip(layers, before):
            for tensor, old in zip(layer, was):
                old[back] = old[out]
                self.assertTrue(torch.equal(tensor.view(torch.int16), old.view(torch.int16)))
        return cc

    def test_pages_of_all_sizes_go_out_and_come_back(self):
        for shapes in (((PAGE, 4, 32),) * 2, ((PAGE, 1, 576),), ((PAGE, 3, 5), (PAGE, 2, 8)), ((PAGE, 1, 1),)):
            with self.subTest(shapes), mock.patch.dict(os.environ, EMS_STAGING_BYTES=str(1 << 20)):
                self.moves(self.layers(*shapes), str(shapes))

    def test_the_host_memory_of_saves_is_memory_that_servers_read_pinned_where_it_is(self):
        allocated, runs = [], []
        rows_in, run = device_rows.DeviceRows.rows_in, device_rows.DeviceRows.save

        def noted(rows, memory, count):
            allocated.append(rows_in(rows, memory, count))
            return allocated[-1]
        with mock.patch.object(device_rows.DeviceRows, 'rows_in', noted), mock.patch.object(
                device_rows.DeviceRows, 'save', lambda *args: runs.append(args[2].data_ptr()) or run(*args)):
            self.moves(self.layers((PAGE, 4, 32), (PAGE, 4, 32)))
        self.assertEqual(len(allocated), 1)
        begin, size = allocated[0].data_ptr(), allocated[0].numel()
        self.assertEqual(stand_in_device.Runtime.pinned, {begin: size})
        self.assertTrue(runs and all(begin <= at < begin + size for at in runs))
        del allocated[:]
        Ems.shutdown()
        self.assertEqual(stand_in_device.Runtime.pinned, {}, 'given back')

    def test_where_the_device_does_not_pin_it_saves_take_the_way_of_other_memory(self):
        refusals, pinned = mock.Mock(return_value=1), device_rows.DeviceRows.pinned
        with mock.patch.object(device_rows.DeviceRows, 'pinned', autospec=True, side_effect=pinned) as made:
            for model, call in (('refused', refusals), ('raises', mock.Mock(side_effect=OSError))):
                with mock.patch.object(stand_in_device.Runtime, 'cudaHostRegister', call):
                    self.moves(self.layers((PAGE, 4, 32)), model)
                self.assertEqual(stand_in_device.Runtime.pinned, {})
            refusals.assert_called_once()
            with mock.patch.object(stand_in_device.Accelerator, 'cudart', new_callable=mock.PropertyMock, side_effect=AttributeError):
                self.moves(self.layers((PAGE, 4, 32)), 'no runtime')
            self.assertEqual(made.call_count, 6, 'for saves and for loads')
            self.moves(self.layers((PAGE, 4, 32)), 'pinned')
            self.assertEqual(made.call_count, 7, 'for loads alone')

    def test_large_pieces_are_copied_straight_to_where_they_belong(self):
        layers = self.layers((PAGE, 4, 32), (PAGE, 4, 32))
        refuse = mock.Mock(side_effect=AssertionError('through memory of the device'))
        with mock.patch.object(device_copies, 'DIRECT_BYTES', PAGE * 4 * 32 * 2):
            with mock.patch.object(torch.Tensor, 'index_copy_', refuse), mock.patch.object(torch.Tensor, 'index_select', refuse):
                self.moves(layers)
        with mock.patch.object(device_copies, 'DIRECT_BYTES', PAGE * 4 * 32 * 2 + 1):
            with mock.patch.object(torch.Tensor, 'index_copy_', refuse), self.assertRaisesRegex(Exception, 'through memory'):
                self.moves(layers, 'small')

    def test_requests_of_more_and_of_fewer_blocks_than_the_ones_before(self):
        layers = self.layers((PAGE, 4, 32), (PAGE, 4, 32))
        with mock.patch.dict(os.environ, EMS_STAGING_BYTES=str(64 << 20)):
            cc = self.open(layers)
        for begin, count in ((0, 1), (1, 5), (6, 2), (8, 4)):
            out, back, hashes = ([first + i for i in range(count)] for first in (begin, 12 + begin, 100 + begin))
            self.assertEqual(cc.save(slots(out), hashes, [PAGE] * count, OPTION).success, count)
            self.assertEqual(cc.load(slots(reversed(back)), hashes, [PAGE] * count, OPTION).success, count)
            for tensor in layers[0] + layers[1]:
                bits = tensor.view(torch.int16)
                self.assertTrue(torch.equal(bits[list(reversed(back))], bits[out]))

    def test_elements_are_moved_in_eights_of_bytes_where_they_lie_so(self):
        made = torch.zeros((4, 6, 12), dtype=torch.bfloat16)
        for tensor, expected in ((made, torch.int64), (made[:, :, :6], torch.int32), (made[:, :, 1:7], torch.int16),
                                 (made[:, :, 4:8], torch.int64), (made.transpose(1, 2), torch.int16), (made[:, :, :3], torch.int16),
                                 (torch.zeros((4, 8)), torch.int64), (torch.zeros((4, 3), dtype=torch.uint8), torch.uint8)):
            with self.subTest(shape=tuple(tensor.shape), stride=tensor.stride()):
                wide = device_copies.wide_bits_of(tensor, torch)
                self.assertIs(wide.dtype, expected)
                self.assertEqual(wide.data_ptr(), tensor.data_ptr())


if __name__ == '__main__':
    unittest.main()
