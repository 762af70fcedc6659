"""KV in the memory of a GPU, through real daemons and back: types, layouts, and the order of copies and kernels.

Exit code 77, which CTest calls skipped, where torch or a GPU is not.
"""
import os
import sys
import threading
import unittest

from cluster import SOURCE_DIR, Cluster

import ems

sys.path.insert(0, os.path.join(SOURCE_DIR, 'tests', 'integrations', 'engines'))

try:
    import torch
    REASON = '' if torch.cuda.is_available() else 'torch sees no CUDA device'
except ImportError:
    REASON = 'torch is not installed'
if REASON:
    print(f'skipped: {REASON}')
    sys.exit(77)

PAGE, BLOCKS = 16, 64
OPTION = ems.CcKvOption(timeout=10000)
LONG = 200_000_000  # cycles of a kernel that does nothing: a tenth of a second


def bits(shape):
    return torch.randint(-2**15, 2**15, shape, dtype=torch.int16, device='cuda')


def slots(pages):
    return [page * PAGE + i for page in pages for i in range(PAGE)]


class CudaTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(5)
        cls.cluster = Cluster(servers=2, dram='1GiB').__enter__()
        cls.addClassCleanup(cls.cluster.stop)
        os.environ['EMS_CONTROLLER'] = cls.cluster.address
        cls.addClassCleanup(os.environ.pop, 'EMS_CONTROLLER')
        cls.client = ems.Client(cls.cluster.address, timeout=10)
        cls.addClassCleanup(cls.client.close)

    def open(self, kvcache, model='', **stated):
        ems.Ems.shutdown()
        self.addCleanup(ems.Ems.shutdown)
        name = self.id().rsplit('.', maxsplit=1)[-1] + model
        ems.Ems.init(ems.EmsConfig(cc_config_v1=ems.CcConfig_v1(rank_id=0, device_id=0, model_id=name)))
        ems.Ems.get_cc().register_kvcache(kvcache, **stated)
        return ems.Ems.get_cc()

    def layouts(self):
        """Name → (two layers of K and V, the order)."""
        fused = [bits((BLOCKS, 2, PAGE, 4, 32)).view(torch.bfloat16) for _ in 'ab']
        swapped = [[bits((BLOCKS, PAGE, 4, 32)).view(torch.float16).transpose(1, 2) for _ in 'kv'] for _ in 'ab']
        return {
            'bfloat16': ([[bits((BLOCKS, PAGE, 4, 32)).view(torch.bfloat16) for _ in 'kv'] for _ in 'ab'], 'NHD'),
            'mla': ([[bits((BLOCKS, PAGE, 1, 576)).view(torch.bfloat16)] for _ in 'ab'], 'NHD'),
            'fp8': ([[bits((BLOCKS, PAGE, 4, 16)).view(torch.float8_e4m3fn) for _ in 'kv'] for _ in 'ab'], 'NHD'),
            'uint8': ([[bits((BLOCKS, PAGE, 4, 16)).view(torch.uint8) for _ in 'kv'] for _ in 'ab'], 'NHD'),
            'slices of one tensor': ([[one[:, 0], one[:, 1]] for one in fused], 'NHD'),
            'heads first, by strides': (swapped, 'HND'),
            'megabytes a page': ([[bits((8, PAGE, 128, 512)).view(torch.bfloat16) for _ in 'kv'] for _ in 'ab'], 'NHD'),
        }

    def test_each_type_and_layout(self):
        for name, (layers, order) in self.layouts().items():
            with self.subTest(name):
                blocks = layers[0][0].shape[0]
                before = [[tensor.clone() for tensor in layer] for layer in layers]
                cc = self.open(layers, name, order=order)
                half = blocks // 2
                out = torch.randperm(half).tolist()
                back = (half + torch.randperm(blocks - half)[:half]).tolist()
                hashes = list(range(half))
                self.assertEqual(cc.save(slots(out), hashes, [PAGE] * half, OPTION).success, half)
                self.assertEqual(cc.load(slots(back), hashes, [PAGE] * half, OPTION).success, half)
                for layer, was in zip(layers, before):
                    for tensor, old in zip(layer, was):
                        raw = torch.uint8 if old.element_size() == 1 else torch.int16
                        now, expected = tensor.view(raw), old.view(raw)
                        expected[back] = expected[out]
                        self.assertTrue(torch.equal(now, expected))

    def test_copies_come_behind_kernels_that_have_not_run(self):
        layers = [[bits((BLOCKS, PAGE, 4, 32)) for _ in 'kv'] for _ in 'ab']
        views = [[tensor.view(torch.bfloat16) for tensor in layer] for layer in layers]
        cc = self.open(views, order='NHD')
        torch.cuda._sleep(LONG)
        for layer in layers:
            for tensor in layer:
                tensor[3:6] = 9
        self.assertEqual(cc.save(slots([3, 4, 5]), [1, 2, 3], [PAGE] * 3, OPTION).success, 3)
        for layer in layers:
            for tensor in layer:
                tensor[3:6] = 4  # as soon as the save is over its pages are the engine's
        before = [[tensor[10:13].clone() for tensor in layer] for layer in layers]
        torch.cuda._sleep(LONG)
        read = [[tensor[10:13].clone() for tensor in layer] for layer in layers]  # the last look at what was there
        self.assertEqual(cc.load(slots([12, 10, 11]), [1, 2, 3], [PAGE] * 3, OPTION).success, 3)
        for layer, old, seen in zip(layers, before, read):
            for tensor, was, got in zip(layer, old, seen):
                self.assertTrue(torch.equal(was, got))
                self.assertTrue((tensor[10:13] == 9).all())

    def test_layers_come_before_kernels_that_are_given_behind_wait_layer(self):
        layers = [[bits((BLOCKS, PAGE, 4, 32)) for _ in 'kv'] for _ in range(8)]
        layout = ems.DeviceKvLayout([[tensor.view(torch.bfloat16) for tensor in layer] for layer in layers])
        cache = ems.ContextCache(self.client, model='layers', kv_layout=layout.fingerprint, block_tokens=PAGE)
        keys = [cache.own_key(b'%d' % i) for i in range(BLOCKS // 2)]
        out, back = range(BLOCKS // 2), range(BLOCKS // 2, BLOCKS)
        self.assertEqual(cache.save_paged(layout, keys, slot_mapping=slots(out)).stored, len(keys))
        for _ in range(5):
            for layer in layers:
                for tensor in layer:
                    tensor[BLOCKS // 2:] = 0
            read = []
            with cache.load_layers(layout, keys, slot_mapping=slots(back), layer_read_bytes=1) as load:
                for number in range(8):
                    load.wait_layer(number)
                    read.append([tensor[BLOCKS // 2:].clone() for tensor in layers[number]])
                    torch.cuda._sleep(LONG // 100)
                load.result()
            for layer, seen in zip(layers, read):
                for tensor, got in zip(layer, seen):
                    self.assertTrue(torch.equal(tensor[:BLOCKS // 2], got))

    def test_saves_and_loads_of_several_threads(self):
        layers = [[bits((BLOCKS, PAGE, 4, 32)) for _ in 'kv'] for _ in range(4)]
        cc = self.open([[tensor.view(torch.bfloat16) for tensor in layer] for layer in layers], order='NHD')
        failed = []

        def work(mine):
            out, back = list(range(mine * 4, mine * 4 + 4)), list(range(32 + mine * 4, 36 + mine * 4))
            with torch.cuda.stream(torch.cuda.Stream()):
                for turn in range(20):
                    for layer in layers:
                        for tensor in layer:
                            tensor[out] = mine * 100 + turn
                            tensor[back] = -1
                    hashes = [mine * 10000 + turn * 10 + i for i in range(4)]
                    saved = cc.save(slots(out), hashes, [PAGE] * 4, OPTION).success
                    loaded = cc.get_result(cc.async_load(slots(back), hashes, [PAGE] * 4, OPTION)).success
                    is_right = all(bool((tensor[back] == mine * 100 + turn).all()) for layer in layers for tensor in layer)
                    if (saved, loaded, is_right) != (4, 4, True):
                        failed.append((mine, turn, saved, loaded, is_right))
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])

    def test_an_engine_of_vllm(self):
        import fake_vllm  # pylint: disable=import-outside-toplevel
        from ems import device_rows  # pylint: disable=import-outside-toplevel
        fake_vllm.install()
        for dtype in (torch.float16, torch.float32):
            engines = [fake_vllm.Engine(self.cluster.address, make=lambda shape, dtype=dtype: HostView(shape, dtype))
                       for _ in range(2)]
            for engine in engines:
                self.addCleanup(engine.close)
                self.assertIsInstance(engine.worker._worker._rows, device_rows.DeviceRows)
            prompt = [i * 31 + dtype.itemsize for i in range(12 * fake_vllm.BLOCK + 3)]
            engines[0].run(fake_vllm.Request('a', prompt))
            engines[0].settle()
            loaded, ids = engines[1].run(fake_vllm.Request('b', prompt))
            self.assertEqual(loaded, 12 * fake_vllm.BLOCK)
            self.assertTrue(engines[1].is_right(fake_vllm.Request('b', prompt), ids))


class HostView(torch.Tensor):
    """A tensor of the GPU of which numpy.array() is a copy, and into which numpy arrays can be written."""

    def __new__(cls, shape, dtype):
        return torch.zeros(shape, dtype=dtype, device='cuda').as_subclass(cls)

    def __array__(self, dtype=None, copy=None):
        return self.cpu().as_subclass(torch.Tensor).numpy().astype(dtype)

    def __setitem__(self, at, value):
        value = value if isinstance(value, (int, float)) else torch.as_tensor(value).to(self.device, self.dtype)
        super().__setitem__(at, value)

    def swapaxes(self, one, other):
        return self.transpose(one, other)


if __name__ == '__main__':
    unittest.main()
