"""Tensors of torch on the CPU through real daemons and back. Exit code 77, which CTest calls skipped, where torch is not."""
import asyncio
import sys
import unittest

from cluster import Cluster

import ems

try:
    import torch
except ImportError:
    print('skipped: torch is not installed (Debian: python3-torch)')
    sys.exit(77)

PAGE = 16


class TorchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(5)
        cls.cluster = Cluster(servers=2).__enter__()
        cls.client = ems.Client(cls.cluster.address, timeout=10)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.cluster.stop()

    def test_values_of_each_dtype(self):
        for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.uint8, torch.int64, torch.bool):
            with self.subTest(dtype=dtype):
                value = (torch.randn(33, 65) * 100).to(dtype)
                self.client.put(f'value-{dtype}', value)
                into = torch.zeros_like(value)
                self.assertEqual(self.client.get_into(f'value-{dtype}', into), value.numel() * value.element_size())
                self.assertTrue(torch.equal(into, value))
        half = torch.randn(8, 8, dtype=torch.bfloat16)
        self.client.put('parts', [half[:4], half[4:]])
        self.assertEqual(self.client.get('parts'), bytes(half.view(torch.uint8).flatten().tolist()))
        with self.assertRaisesRegex(BufferError, 'contiguous'):
            self.client.put('columns', half[:, ::2])
        with self.assertRaises(BufferError):
            self.client.put('nowhere', torch.empty(4, device='meta'))

    def layers(self, dtype, order, fill):
        """8 layers of K and V as views of one [blocks, 2, …] tensor each, as engines have them."""
        shape = (12, 2, PAGE, 4, 32) if order == 'NHD' else (12, 2, 4, PAGE, 32)
        fused = [(torch.randn(shape) * 50).to(dtype) if fill else torch.zeros(shape, dtype=dtype) for _ in range(8)]
        return [[tensor[:, 0], tensor[:, 1]] for tensor in fused]

    def by_slot(self, tensor, order):
        return (tensor if order == 'NHD' else tensor.transpose(1, 2)).reshape(12 * PAGE, 4, 32)

    def test_paged_kv_of_each_dtype_layer_by_layer(self):
        for dtype, order in ((torch.bfloat16, 'NHD'), (torch.bfloat16, 'HND'), (torch.float16, 'NHD'), (torch.int8, 'HND')):
            with self.subTest(dtype=dtype, order=order):
                mine, yours = self.layers(dtype, order, True), self.layers(dtype, order, False)
                source, target = (ems.KvLayout(layers, order=order) for layers in (mine, yours))
                cache = ems.ContextCache(self.client, model='torch', kv_layout=source.fingerprint, block_tokens=PAGE)
                keys = cache.hash_tokens(torch.arange(4 * PAGE))
                out, back = (torch.randperm(12 * PAGE)[:4 * PAGE] for _ in range(2))
                self.assertEqual(cache.save_paged(source, keys, slot_mapping=out).stored, 4)
                load = cache.load_layers(target, keys, slot_mapping=back, layer_read_bytes=1)
                for layer, ready in enumerate(load):
                    self.assertEqual(ready.missing, [])
                    for here, there in zip(mine[layer], yours[layer]):
                        self.assertTrue(torch.equal(self.by_slot(here, order)[out], self.by_slot(there, order)[back]))
                self.assertEqual(load.result().leading_blocks, 4)

    def test_with_asyncio_and_gradients(self):
        async def main():
            value = torch.randn(100, dtype=torch.bfloat16, requires_grad=True)
            await self.client.aput('grad', value)
            into = torch.zeros(100, dtype=torch.bfloat16)
            self.assertEqual(await self.client.aget_into('grad', into), 200)
            return torch.equal(into, value.detach())
        self.assertTrue(asyncio.run(main()))


if __name__ == '__main__':
    unittest.main()
