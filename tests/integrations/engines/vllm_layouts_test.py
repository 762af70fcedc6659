"""vLLM's KV connector where tensors, blocks and ranks are not one for one: over real daemons, by the little engine of fake_vllm."""
import unittest
from types import SimpleNamespace

import fake_vllm
import numpy
from fake_vllm import BLOCK, Request
from vllm_case import VllmCase

import ems.vllm


def halved(caches):
    """As attention kernels have them whose blocks are half as large as vLLM's: two in a row are one."""
    return {name: kv.reshape(2, 2 * kv.shape[1], kv.shape[2] // 2, *kv.shape[3:]) for name, kv in caches.items()}


def by_slots(caches):
    """A tensor with a dimension for the token slots of all blocks, [K and V, slots, …]."""
    return {name: kv.reshape(2, kv.shape[1] * kv.shape[2], *kv.shape[3:]) for name, kv in caches.items()}


def with_sharing(caches):
    """A layer behind the others attends to the KV of the first one."""
    return {**caches, 'model.layers.9': caches['model.layers.0']}


class VllmLayoutsTest(VllmCase):
    def check_reuse(self, seed, **options):
        first, second = self.engine(**options), self.engine(**options)
        request = Request('a', self.prompt(seed))
        self.assertEqual(first.run(request)[0], 0)
        first.settle()
        loaded, ids = second.run(Request('b', self.prompt(seed)))
        self.assertEqual(loaded, 5 * BLOCK)
        self.assertTrue(second.is_right(request, ids))
        return first, second

    def test_blocks_of_kernels_that_are_smaller_than_vllms_are_moved_together(self):
        first, _ = self.check_reuse(1, registered=halved)
        whole = self.engine()
        self.assertEqual(first.worker._worker._row, whole.worker._worker._row)
        self.assertEqual(whole.matched(Request('c', self.prompt(1))), 0, 'another layout')

    def test_tensors_that_count_token_slots_are_taken_by_blocks(self):
        self.check_reuse(2, registered=by_slots)

    def test_a_number_of_blocks_that_divides_another_extent_does_not_mislead(self):
        import ems.vllm_worker  # pylint: disable=import-outside-toplevel
        dim_of = ems.vllm_worker.WorkerHalf._dim_of
        for shape, blocks, dim in (((64, 16, 8), 64, 0), ((2, 64, 16, 2, 8), 64, 1), ((128, 16, 8), 64, 0), ((64, 64, 8), 64, 0),
                                   ((2, 128, 8, 2, 8), 64, 1), ((2, 2, 16, 2, 8), 2, 1), ((4, 64, 576), 4, 0), ((2, 1024, 2, 8), 64, 1),
                                   ((2, 3, 4, 2, 8), 7, 1)):
            with self.subTest(shape=shape, blocks=blocks):
                self.assertEqual(dim_of(numpy.empty(shape, numpy.uint8), blocks), dim)

    def test_kv_that_layers_share_is_moved_once(self):
        first, _ = self.check_reuse(3, registered=with_sharing)
        self.assertEqual(first.worker._worker._row, self.engine().worker._worker._row)

    def connector(self, role, spec=None, **parallel):
        settings = fake_vllm.config(self.cluster.address)
        for name, value in parallel.items():
            setattr(settings.parallel_config, name, value)
        connector = ems.vllm.EmsConnector(settings, role, SimpleNamespace(
            num_blocks=64, kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)], kv_cache_tensors=[]))
        self.addCleanup(connector.shutdown)
        return connector

    def test_blocks_have_the_size_of_their_group_whatever_the_configuration_says(self):
        connector = self.connector(fake_vllm.KVConnectorRole.SCHEDULER, SimpleNamespace(block_size=2 * BLOCK))
        self.assertEqual(len(connector._scheduler._names.of(Request('a', self.prompt(4)))), 2)
        self.assertEqual(connector._settings.block_tokens, 2 * BLOCK)

    def test_replicas_that_a_launcher_counts_in_one_order_share_blocks(self):
        workers = [self.connector(fake_vllm.KVConnectorRole.WORKER, rank=rank) for rank in (0, 3)]
        for worker in workers:
            worker.register_kv_caches({'a': numpy.zeros((64, BLOCK, 8), numpy.float16)})
        self.assertEqual(*[worker._worker._keys([bytes(32)]) for worker in workers])

    def test_ranks_that_plan_each_for_itself_are_refused(self):
        with self.assertRaisesRegex(ValueError, 'external_launcher.*load errors'):
            self.connector(fake_vllm.KVConnectorRole.WORKER, tensor_parallel_size=2, distributed_executor_backend='external_launcher')
        self.connector(fake_vllm.KVConnectorRole.WORKER, distributed_executor_backend='external_launcher')


if __name__ == '__main__':
    unittest.main()
