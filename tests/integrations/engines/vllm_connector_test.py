"""vLLM's KV connector: a little engine whose KV shows which tokens it came from, over real daemons."""
import unittest
from types import SimpleNamespace

import fake_vllm
import numpy
from fake_vllm import BLOCK, Engine, Request
from harness import Cluster

fake_vllm.install()


class VllmConnectorTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2, dram='128MiB')
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.stop)

    def engine(self, **options):
        engine = Engine(self.cluster.address, **options)
        self.addCleanup(engine.close)
        return engine

    @staticmethod
    def prompt(seed, tokens=5 * BLOCK + 3):
        return [(seed * 1000 + i * 31) % 32000 for i in range(tokens)]

    def test_another_engine_loads_the_prefix_and_has_the_same_kv(self):
        first, second = self.engine(), self.engine()
        request = Request('a', self.prompt(1))
        self.assertEqual(first.run(request)[0], 0)
        first.settle()
        loaded, ids = second.run(Request('b', self.prompt(1)))
        self.assertEqual((loaded, second.computed), (5 * BLOCK, 3))
        self.assertTrue(second.is_right(request, ids))
        # A longer turn of the same conversation.
        longer = Request('c', self.prompt(1) + self.prompt(2))
        loaded, ids = second.run(longer)
        self.assertEqual(loaded, 5 * BLOCK)
        self.assertTrue(second.is_right(longer, ids))

    def test_nothing_is_promised_that_exists_did_not_say(self):
        first, second = self.engine(), self.engine()
        first.run(Request('a', self.prompt(3)))
        first.settle()
        other = self.prompt(3)
        other[2 * BLOCK] += 1
        self.assertEqual(second.matched(Request('b', other)), 2 * BLOCK)
        self.assertEqual(second.matched(Request('c', self.prompt(4))), 0)

    def test_asking_many_times_has_no_side_effect(self):
        first, second = self.engine(), self.engine()
        first.run(Request('a', self.prompt(5)))
        first.settle()
        request = Request('b', self.prompt(5))
        self.assertEqual([second.matched(request) for _ in range(5)], [5 * BLOCK] * 5)
        self.assertEqual(second.matched(request, 2 * BLOCK), 3 * BLOCK)
        self.assertEqual(second.matched(request, 5 * BLOCK), 0)
        self.assertEqual(second.matched(request, 7), 0, 'no whole block is behind')

    def test_last_token_is_always_computed(self):
        first, second = self.engine(), self.engine()
        whole = self.prompt(6, 4 * BLOCK)
        first.run(Request('a', whole))
        first.settle()
        self.assertEqual(second.matched(Request('b', whole)), 3 * BLOCK)

    def test_chunked_prefill_saves_each_block_once_it_is_whole(self):
        first, second = self.engine(), self.engine()
        request = Request('a', self.prompt(7))
        first.run(request, chunk=BLOCK + 5)
        first.settle()
        loaded, ids = second.run(Request('b', self.prompt(7)))
        self.assertEqual(loaded, 5 * BLOCK)
        self.assertTrue(second.is_right(request, ids))

    def test_lora_salt_dtype_model_and_domain_never_meet(self):
        first = self.engine()
        first.run(Request('a', self.prompt(8)))
        first.settle()
        lora = SimpleNamespace(lora_name='tenant')
        self.assertEqual(first.matched(Request('b', self.prompt(8), lora_request=lora)), 0)
        self.assertEqual(first.matched(Request('c', self.prompt(8), cache_salt='tenant')), 0)
        for options in ({'dtype': 'float16'}, {'cache_dtype': 'fp8'}, {'model': 'llama2'}, {'domain': 'b'}, {'tp_size': 2}):
            self.assertEqual(self.engine(**options).matched(Request('d', self.prompt(8))), 0, options)
        self.assertEqual(first.matched(Request('e', self.prompt(8))), 5 * BLOCK)

    def test_prompt_whose_kv_is_not_of_tokens_alone_is_left_alone(self):
        engine = self.engine()
        for extra in ({'mm_features': ['image']}, {'prompt_embeds': object()}):
            for _ in 'xy':
                self.assertEqual(engine.run(Request('a', self.prompt(9), **extra))[0], 0)
                engine.settle()

    def test_block_that_went_after_exists_is_told_and_computed(self):
        first, second = self.engine(), self.engine()
        request = Request('a', self.prompt(10))
        first.run(request)
        first.settle()

        def evict():
            names = second.scheduler._scheduler._names.of(request)
            queue = second.worker._worker._queue
            self.assertEqual(queue.run_at('remove', names[2:3])[0], [True])
        loaded, ids = second.run(Request('b', self.prompt(10)), between=evict)
        self.assertEqual(loaded, 2 * BLOCK)
        self.assertTrue(second.is_right(request, ids))
        self.assertEqual(second.worker.get_block_ids_with_load_errors(), set(), 'told once')

    def test_block_of_another_layout_is_computed(self):
        first = self.engine()
        first.run(Request('a', self.prompt(11)))
        first.settle()
        second = self.engine(make=lambda shape: numpy.zeros(shape[:-1] + (16,), numpy.float16))
        loaded, ids = second.run(Request('b', self.prompt(11)))
        self.assertEqual(loaded, 0)
        self.assertTrue(second.is_right(Request('b', self.prompt(11)), ids))

    def test_too_much_under_way_is_not_saved_and_nothing_waits(self):
        engine = self.engine(staging_bytes=1)
        engine.run(Request('a', self.prompt(12)))
        self.assertEqual(engine.worker._worker.skipped_blocks, 5)

    def test_hybrid_model_is_refused_with_what_to_do(self):
        import ems.vllm  # pylint: disable=import-outside-toplevel
        with self.assertRaisesRegex(ValueError, '2 KV cache groups.*LMCache'):
            ems.vllm.EmsConnector(fake_vllm.config(self.cluster.address), fake_vllm.KVConnectorRole.WORKER,
                                  SimpleNamespace(num_blocks=4, kv_cache_groups=[1, 2]))

    def test_unknown_option_is_named(self):
        import ems.vllm  # pylint: disable=import-outside-toplevel
        with self.assertRaisesRegex(ValueError, 'controler'):
            ems.vllm.EmsConnector(fake_vllm.config(self.cluster.address, controler=1), fake_vllm.KVConnectorRole.WORKER)


if __name__ == '__main__':
    unittest.main()
