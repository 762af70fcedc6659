"""Tensors of a version in numpy, by name or as they arrive, against real daemons that read a folder."""
import json
import threading
import unittest

import numpy
from model_case import DTYPES, MATRIX, NORM, WITHOUT_NUMPY, ModelCase, whole
from model_files import gguf, random_bytes, safetensors, write

import ems

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None


class ModelSessionTest(ModelCase):
    def test_tensors_of_each_dtype_are_the_files(self):
        self.add('py/dtypes', {'model.safetensors': safetensors(whole(), {'format': 'pt'})})
        with self.cache.safe_open('py/dtypes') as tensors:
            self.assertEqual(tensors.keys(), sorted(whole()))
            self.assertEqual(tensors.offset_keys()[:2], ['matrix', 'norm'])
            self.assertEqual(tensors.metadata(), {'format': 'pt'})
            self.assertTrue('norm' in tensors and 'nobody' not in tensors and len(tensors) == len(whole()))
            found = {name: tensors.get_tensor(name) for name in tensors}
            with self.assertRaisesRegex(ems.errors.NotFound, 'no tensor nobody'):
                tensors.get_tensor('nobody')
        with self.assertRaises(ems.errors.InvalidArgument):
            tensors.keys()
        streamed = dict(self.cache.load_tensors('py/dtypes'))
        self.assertEqual(set(streamed), set(whole()))
        for name, (dtype, shape, content) in whole().items():
            for tensor in (found[name], streamed[name]):
                self.assertEqual((tensor.shape, tensor.tobytes()), (tuple(shape), content), name)
                if dtype in DTYPES:
                    self.assertEqual(tensor.dtype, DTYPES[dtype], name)
                else:
                    own, plain = WITHOUT_NUMPY[dtype]
                    self.assertEqual(tensor.dtype, getattr(ml_dtypes, own) if ml_dtypes else plain)
        found['norm'][0] = 77  # its own memory, which stays
        self.assertEqual(found['norm'][0], 77)
        del streamed

    def test_slices_are_those_of_numpy(self):
        self.add('py/slices', {'model.safetensors': safetensors(whole())})
        with self.cache.safe_open('py/slices') as tensors:
            part = tensors.get_slice('matrix')
            self.assertEqual((part.get_shape(), part.get_dtype()), ([512, 768], 'U32'))
            for index in (slice(None), slice(3, 9), (slice(None), slice(100, 103)), (slice(500, None), slice(-7, None)), 5, (-1, -1),
                          (Ellipsis, 4), (7, Ellipsis), slice(9, 3), (slice(2, 300), 3), (), numpy.int64(4), slice(-900, 900)):
                wanted = MATRIX[index]
                self.assertTrue(numpy.array_equal(part[index], wanted), index)
                self.assertEqual(part[index].shape, wanted.shape, index)
            self.assertEqual(tensors.get_slice('scalar')[...], -5)
            for index, error in ((slice(None, None, 2), IndexError), ((0, 0, 0), IndexError), (512, IndexError), ('a', TypeError)):
                with self.assertRaises(error):
                    part[index]

    def test_ranks_get_what_split_gives(self):
        self.add('py/ranks', {'model.safetensors': safetensors(whole())}, block_bytes=64 << 10)
        for axis in (0, 1, -1):
            for rank in range(4):
                load = self.cache.load_tensors('py/ranks', names=['matrix', 'norm'], rank=rank, ranks=4,
                                               axis={'matrix': axis}, order='file', fallback_to_source=False)
                (first, matrix), (second, norm) = load
                self.assertEqual((first, second), ('matrix', 'norm'))
                self.assertTrue(numpy.array_equal(matrix, numpy.split(MATRIX, 4, axis)[rank]))
                self.assertTrue(numpy.array_equal(norm, NORM))
                self.assertEqual(load.stats().bytes, matrix.nbytes + norm.nbytes)
        sliced = dict(self.cache.load_tensors('py/ranks', names=['matrix', 'norm'], rank=1, ranks=2, axis=1))
        self.assertEqual((sliced['matrix'].shape, sliced['norm'].shape), ((512, 384), (64,)))  # norm has no axis 1
        by_shape = self.cache.load_tensors('py/ranks', names=['norm'], rank=1, ranks=2,
                                           axis=lambda name, shape: 0 if shape == [64] else None)
        self.assertTrue(numpy.array_equal(dict(by_shape)['norm'], NORM[32:]))
        with self.assertRaisesRegex(ems.errors.InvalidArgument, 'cannot share evenly'):
            dict(self.cache.load_tensors('py/ranks', names=['norm'], rank=0, ranks=3))
        for wrong in ({'rank': 2, 'ranks': 2}, {'order': 'size'}, {'framework': 'tf'}, {'device': 'cuda'},
                      {'ranks': 2, 'axis': {'norm': 4}, 'names': ['norm']}):
            with self.assertRaises(ems.errors.InvalidArgument):
                self.cache.load_tensors('py/ranks', **wrong)

    def test_gguf(self):
        quantised = random_bytes(4 * 2 * 34, 3)  # 2 blocks of 32 elements a row
        self.add('py/gguf', {'model.gguf': gguf({'blk.0.w': ('F32', NORM.reshape(8, 8).shape, NORM.tobytes()),
                                                 'blk.0.q': ('Q8_0', (4, 64), quantised)}, {'general.name': 'tiny'})})
        with self.cache.safe_open('py/gguf') as tensors:
            self.assertEqual(tensors.metadata()['general.name'], 'tiny')
            self.assertTrue(numpy.array_equal(tensors.get_tensor('blk.0.w'), NORM.reshape(8, 8)))
            bits = tensors.get_tensor('blk.0.q')
            self.assertEqual((bits.dtype, bits.shape, bits.tobytes()), (numpy.uint8, (4, 68), quantised))
            self.assertEqual(tensors.get_slice('blk.0.q').get_dtype(), 'Q8_0')
            with self.assertRaisesRegex(ems.errors.InvalidArgument, 'blocks of 32'):
                tensors.get_slice('blk.0.q')[0]
        half = dict(self.cache.load_tensors('py/gguf', names=['blk.0.q'], rank=1, ranks=2))['blk.0.q']
        self.assertEqual(half.tobytes(), quantised[len(quantised) // 2:])

    def test_an_index_says_which_shard_has_a_tensor(self):
        def one(value):
            return safetensors({'shared': ('U8', (4,), value * 4), 'own' + value.decode(): ('U8', (1,), value)})

        def index(**where):
            return json.dumps({'metadata': {}, 'weight_map': where}).encode()
        shards = {'a.safetensors': one(b'a'), 'b.safetensors': one(b'b')}
        self.add('py/sharded', dict(shards, **{'model.safetensors.index.json': index(
            shared='b.safetensors', owna='a.safetensors', ownb='b.safetensors')}))
        with self.cache.safe_open('py/sharded') as tensors:
            self.assertEqual(tensors.keys(), ['owna', 'ownb', 'shared'])
            self.assertEqual(tensors.get_tensor('shared').tobytes(), b'bbbb')
        with self.cache.safe_open('py/sharded', files=['a.safetensors']) as tensors:
            self.assertEqual(tensors.keys(), ['owna'])
        self.add('py/two', shards)
        with self.assertRaisesRegex(ems.errors.InvalidArgument, 'shared is in a.safetensors and in b.safetensors'):
            self.cache.safe_open('py/two')
        self.assertEqual(self.cache.safe_open('py/two', files=['a.safetensors']).get_tensor('shared').tobytes(), b'aaaa')
        self.add('py/lying', dict(shards, **{'model.safetensors.index.json': index(nobody='a.safetensors')}))
        with self.assertRaisesRegex(ems.errors.InvalidArgument, 'looks for nobody in a.safetensors'):
            self.cache.safe_open('py/lying')
        self.add('py/broken', dict(shards, **{'model.safetensors.index.json': b'{"weight_map": 5'}))
        with self.assertRaisesRegex(ems.errors.InvalidArgument, 'is no index'):
            self.cache.safe_open('py/broken')

    def test_another_version_does_not_change_what_is_open(self):
        self.add('py/versions', {'model.safetensors': safetensors({'t': ('U8', (1,), b'1')})})
        tensors = self.cache.safe_open('py/versions')
        write(self.folder('newer'), {'model.safetensors': safetensors({'t': ('U8', (1,), b'2')})})
        self.cache.add('py/versions@v2', self.folder('newer'))
        self.assertEqual((tensors.name, tensors.get_tensor('t').tobytes()), ('py/versions@v1', b'1'))
        self.assertEqual(self.cache.safe_open('py/versions').get_tensor('t').tobytes(), b'2')

    def test_threads_share_an_open_version(self):
        self.add('py/threads', {'model.safetensors': safetensors(whole())})
        tensors, wrong = self.cache.safe_open('py/threads'), []

        def look():
            for name, (_, _, content) in whole().items():
                if tensors.get_tensor(name).tobytes() != content:
                    wrong.append(name)
        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])


if __name__ == '__main__':
    unittest.main()
