"""Blocks of paged tensors as rows of bytes: numpy arrays, and torch tensors where torch is installed."""
import unittest

import numpy

from ems import paged_rows

IDS = [5, 0, 3]


class PagedRowsTest(unittest.TestCase):
    def round_trip(self, source, target, dim, equal):
        size = paged_rows.row_bytes(source, dim)
        rows = numpy.zeros((len(IDS), size + 32), numpy.uint8)[:, 16:-16]  # as a layer's part of a row
        paged_rows.gather(source, dim, IDS, rows)
        paged_rows.scatter(rows, target, dim, [1, 2, 4])
        for out_of, into in zip(IDS, [1, 2, 4]):
            self.assertTrue(equal(target, into, source, out_of))
        self.assertTrue(equal(target, 0, target, 6), 'others are left alone')

    def test_numpy_along_each_dimension(self):
        for shape, dim in (((2, 7, 4, 3), 1), ((7, 2, 4, 3), 0), ((7, 4, 3), 0)):
            with self.subTest(shape=shape):
                source = numpy.random.default_rng(1).random(shape).astype(numpy.float16)
                self.round_trip(source, numpy.zeros_like(source), dim,
                                lambda a, i, b, j, dim=dim: (a.take(i, dim) == b.take(j, dim)).all())

    def test_torch_in_bfloat16(self):
        try:
            import torch  # pylint: disable=import-outside-toplevel
        except ImportError:
            self.skipTest('torch is not installed')
        for shape, dim in (((2, 7, 4, 3), 1), ((7, 2, 4, 3), 0)):
            with self.subTest(shape=shape):
                source = torch.rand(shape).to(torch.bfloat16)
                self.round_trip(source, torch.zeros_like(source), dim,
                                lambda a, i, b, j, dim=dim: torch.equal(a.select(dim, i), b.select(dim, j)))


if __name__ == '__main__':
    unittest.main()
