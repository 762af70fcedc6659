"""vLLM's KV connector: a little engine whose KV shows which tokens it came from, over real daemons."""
import logging
import math
import pickle
import unittest
from types import SimpleNamespace
from unittest import mock

import fake_vllm
import numpy
from fake_vllm import BLOCK, Engine, Request
from vllm_case import VllmCase

from ems.vllm_staging import Staging


class VllmConnectorTest(VllmCase):
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

    def settings(self, part, **values):
        settings = fake_vllm.config(self.cluster.address)
        for name, value in values.items():
            setattr(getattr(settings, part), name, value)
        return settings

    def test_models_of_one_name_whose_kv_differs_never_meet(self):
        first = self.engine()
        first.run(Request('a', self.prompt(40)))
        first.settle()
        for values in ({'revision': 'v2'}, {'quantization': 'fp8'}, {'hf_overrides': {'rope_scaling': {'factor': 8}}},
                       {'hf_overrides': self.settings}, {'rope_scaling': {'factor': 2}}, {'hf_config_path': 'other'},
                       {'disable_sliding_window': True}, {'override_attention_dtype': 'bfloat16'}, {'max_model_len': 4096}):
            # What is not set is the same as what a release does not have.
            engine = self.engine(settings=self.settings('model_config', **values))
            self.assertEqual(engine.matched(Request('b', self.prompt(40))), 0, values)
        engine = self.engine(settings=self.settings('model_config', revision=None, quantization=None, hf_overrides={}))
        self.assertEqual(engine.matched(Request('c', self.prompt(40))), 5 * BLOCK)

    def test_lengths_of_contexts_part_only_models_that_choose_their_rope_by_it(self):
        def settings(length, **rope):
            return self.settings('model_config', max_model_len=length, hf_text_config=SimpleNamespace(rope_scaling=rope))
        for number, (rope, found) in enumerate((({'rope_type': 'longrope', 'short_factor': [1.0], 'long_factor': [2.0]}, 0),
                                                ({'rope_type': 'yarn', 'factor': 4.0}, 5 * BLOCK))):
            first = self.engine(settings=settings(4096, **rope))
            first.run(Request('a', self.prompt(60 + number)))
            first.settle()
            second = self.engine(settings=settings(131072, **rope))
            self.assertEqual(second.matched(Request('b', self.prompt(60 + number))), found, rope)

    def test_draft_models_never_meet(self):
        first = self.engine()
        first.run(Request('a', self.prompt(62)))
        first.settle()
        settings = fake_vllm.config(self.cluster.address)
        settings.speculative_config = SimpleNamespace(draft_model_config=SimpleNamespace(model='eagle'))
        self.assertEqual(self.engine(settings=settings).matched(Request('b', self.prompt(62))), 0)

    def test_requests_that_want_every_position_of_the_prompt_are_promised_nothing(self):
        engine = self.engine()
        engine.run(Request('a', self.prompt(63)))
        engine.settle()
        request = Request('b', self.prompt(63))
        request.skip_reading_prefix_cache = True
        self.assertEqual(engine.matched(request), 0)

    def test_other_roles_than_both_are_refused(self):
        with self.assertRaisesRegex(ValueError, 'kv_consumer: .*kv_both'):
            self.engine(settings=self.settings('kv_transfer_config', kv_role='kv_consumer'))

    def test_lora_adapters_of_one_name_from_two_places_never_meet(self):
        engine = self.engine()

        def lora(path):
            return SimpleNamespace(lora_name='tenant', lora_path=path)
        engine.run(Request('a', self.prompt(41), lora_request=lora('/v1')))
        engine.settle()
        self.assertEqual(engine.matched(Request('b', self.prompt(41), lora_request=lora('/v2'))), 0)
        self.assertEqual(engine.matched(Request('c', self.prompt(41), lora_request=lora('/v1'))), 5 * BLOCK)

    def test_layouts_of_one_size_never_meet(self):
        first, heads_first = self.engine(), self.engine(heads_first=True)
        request = Request('a', self.prompt(42))
        for engine in (first, heads_first, first):
            loaded, ids = engine.run(request)
            engine.settle()
            self.assertTrue(engine.is_right(request, ids))
        self.assertEqual(loaded, 5 * BLOCK)
        strided = self.engine(make=lambda shape: numpy.zeros((shape[0], shape[1], shape[3], shape[2], shape[4]),
                                                             numpy.float16).swapaxes(2, 3))
        self.assertEqual(strided.matched(request), 0)
        other = type('Other', (Engine,), {'LAYERS': ('a', 'b', 'c')})(self.cluster.address)
        self.addCleanup(other.close)
        self.assertEqual(other.matched(request), 0)

    def test_order_in_which_layers_are_registered_does_not_matter(self):
        first, second = self.engine(), self.engine(order=-1)
        request = Request('a', self.prompt(43))
        first.run(request)
        first.settle()
        loaded, ids = second.run(request)
        self.assertEqual(loaded, 5 * BLOCK)
        self.assertTrue(second.is_right(request, ids))

    def test_without_the_workers_word_nothing_is_promised_unless_the_layout_is_given(self):
        first = self.engine(layout='ours')
        request = Request('a', self.prompt(44))
        first.run(request)
        first.settle()
        silent = self.engine(does_handshake=False)
        with self.assertLogs('ems', 'WARNING') as logs:
            self.assertEqual([silent.matched(request) for _ in range(3)], [0, 0, 0])
        self.assertRegex(' '.join(logs.output), 'layout')
        self.assertEqual(len(logs.output), 1)
        self.assertEqual(self.engine(does_handshake=False, layout='theirs').matched(request), 0)
        told = self.engine(does_handshake=False, layout='ours')
        loaded, ids = told.run(request)
        self.assertEqual(loaded, 5 * BLOCK)
        self.assertTrue(told.is_right(request, ids))
        silent.run(request)
        silent.settle()
        silent.scheduler.set_xfer_handshake_metadata({0: silent.worker.get_handshake_metadata()})  # without pipeline ranks
        self.assertEqual(silent.matched(Request('b', self.prompt(44))), 5 * BLOCK)

    def test_handshakes_of_other_connectors_are_ignored(self):
        first = self.engine()
        request = Request('a', self.prompt(70))
        first.run(request)
        first.settle()
        silent = self.engine(does_handshake=False)
        said = silent.worker.get_handshake_metadata()
        foreign = SimpleNamespace(compatibility_hash='x', layout='of another connector', tp_rank=0, pp_rank=0)
        for metadata in ({0: foreign}, {(0, 0): foreign}, {0: object()}, {0: None}, {}):
            silent.scheduler.set_xfer_handshake_metadata(metadata)
            silent.scheduler.set_xfer_handshake_metadata_pp_aware(metadata)
        self.assertFalse(silent.scheduler._scheduler._keys)
        silent.scheduler.set_xfer_handshake_metadata({0: foreign, 1: said})
        self.assertEqual(silent.matched(request), 5 * BLOCK)

    def test_no_handshake_is_sent_that_nobody_needs_or_another_connector_would_get(self):
        self.assertIsNone(self.engine(layout='ours').worker.get_handshake_metadata())
        engine = self.engine()
        for group, is_sent in ((None, True), (engine.worker, True), (object(), False)):
            with mock.patch.object(fake_vllm, 'transfer_group', group):
                self.assertEqual(engine.worker.get_handshake_metadata() is not None, is_sent, group)

    def test_nothing_is_stored_that_was_computed_on_what_another_connector_did_not_load(self):
        class BesideAnother(Engine):
            """MultiConnector has chosen another connector, which promised two blocks and loads none of them."""
            failed = set()

            def _admit(self, request):
                _, ids = super()._admit(request)
                self.failed = set(ids[:2])
                return 2 * BLOCK, ids

            def _run_step(self, metadata, forward):
                errors, self.failed = super()._run_step(metadata, forward) | self.failed, set()
                return errors
        with mock.patch.object(fake_vllm, 'transfer_group', object()):
            first, second = BesideAnother(self.cluster.address, layout='ours'), self.engine(layout='ours')
        self.addCleanup(first.close)
        request = Request('a', self.prompt(71))
        _, ids = first.run(request, before_step=first.settle)  # what is stored first stays
        self.assertTrue(first.is_right(request, ids))
        for _ in range(5):
            first.idle()
        first.settle()
        loaded, ids = second.run(Request('b', self.prompt(71)))
        self.assertTrue(second.is_right(request, ids))
        self.assertEqual(loaded, 5 * BLOCK, 'what was computed again is stored')

    def test_policy_that_fails_requests_is_told_at_the_start(self):
        for policy, count in (('fail', 1), ('recompute', 0)):
            settings = self.settings('kv_transfer_config', kv_load_failure_policy=policy)
            with self.assertLogs('ems', 'INFO') as logs:
                self.engine(settings=settings)
            told = [one for one in logs.records if one.levelname == 'ERROR']
            self.assertEqual(len(told), count, policy)
            self.assertTrue(all('"kv_load_failure_policy": "recompute"' in one.getMessage() for one in told))

    def test_nothing_has_to_be_delivered(self):
        self.assertIs(self.engine().scheduler.requires_kv_delivery, False)

    def test_configuration_whose_blocks_are_not_whole_or_not_alike_is_refused(self):
        for part, values, why in (('model_config', {'is_prefix_caching_supported': False}, 'llama: vLLM caches no prefixes'),
                                  ('parallel_config', {'decode_context_parallel_size': 2}, 'decode_context.*LMCache'),
                                  ('parallel_config', {'prefill_context_parallel_size': 2}, 'prefill_context.*LMCache'),
                                  ('cache_config', {'cache_dtype': 'fp8_e4m3', 'calculate_kv_scales': True}, 'scales')):
            with self.assertRaisesRegex(ValueError, why):
                self.engine(settings=self.settings(part, **values))
        # A tensor whose blocks are no parts of those that vLLM's ids name.
        with self.assertRaisesRegex(ValueError, r'model.layers.0: dimension 1 .* the 64 blocks'):
            self.engine(make=lambda shape: numpy.zeros((2, shape[1] + 1, *shape[2:]), numpy.float16))

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

        loaded, ids = second.run(Request('b', self.prompt(10)), between=lambda: self.assertTrue(second.remove(request, 2)))
        self.assertEqual(loaded, 2 * BLOCK)
        self.assertTrue(second.is_right(request, ids))
        self.assertEqual(second.worker.get_block_ids_with_load_errors(), set(), 'told once')

    def check_pool_after_missing_block(self, seed, rank=0, chunk=None, **options):
        """Three of six blocks are there, the second goes before it is loaded; then every request that loads anything has the right KV."""
        first, second, third = (self.engine(**options) for _ in range(3))
        whole = Request('whole', self.prompt(seed, 6 * BLOCK + 3))
        first.run(Request('a', whole.prompt_token_ids[:3 * BLOCK + 1]))
        first.settle()
        loaded, ids = second.run(whole, chunk=chunk, between=lambda: self.assertTrue(second.remove(whole, 1, rank)))
        second.settle()
        self.assertEqual(loaded, BLOCK)
        self.assertTrue(second.is_right(whole, ids))
        first.run(Request('heals', whole.prompt_token_ids[:3 * BLOCK + 1]))
        first.settle()
        loaded, ids = third.run(Request('b', whole.prompt_token_ids))
        self.assertTrue(third.is_right(whole, ids))
        return loaded

    def test_nothing_computed_on_a_block_that_did_not_arrive_is_stored(self):
        self.assertGreaterEqual(self.check_pool_after_missing_block(20), 3 * BLOCK)

    def test_what_is_computed_again_after_a_load_error_is_stored(self):
        self.assertEqual(self.check_pool_after_missing_block(21, chunk=BLOCK), 6 * BLOCK)

    def test_steps_that_were_planned_on_a_block_that_did_not_arrive_store_nothing(self):
        for chunk in (BLOCK, 2 * BLOCK + 5):
            self.assertGreaterEqual(self.check_pool_after_missing_block(22 + chunk, chunk=chunk, ahead=2), 3 * BLOCK)

    def test_other_ranks_store_nothing_computed_on_a_block_that_one_rank_missed(self):
        for seed, (rank, ahead, chunk) in enumerate(((0, 1, None), (1, 1, None), (1, 2, BLOCK))):
            self.check_pool_after_missing_block(100 + seed, rank, chunk, tp_size=2, ahead=ahead)

    def test_ranks_store_when_the_scheduler_has_heard_that_none_failed(self):
        for seed, ahead in enumerate((1, 2)):
            first, second = (self.engine(tp_size=2, ahead=ahead) for _ in range(2))
            request = Request('a', self.prompt(110 + seed))
            first.run(request, chunk=BLOCK)
            first.settle()
            self.assertEqual(first.worker._worker._held, [])
            loaded, ids = second.run(Request('b', self.prompt(110 + seed)))
            self.assertEqual(loaded, 5 * BLOCK)
            self.assertTrue(second.is_right(request, ids))

    def test_block_that_one_rank_has_not_is_not_promised(self):
        for seed, options in enumerate(({}, {'layout': 'ours'})):
            first, second = (self.engine(tp_size=2, **options) for _ in range(2))
            request = Request('a', self.prompt(120 + seed))
            first.run(request)
            first.idle()
            first.settle()
            self.assertEqual(first.parts(request), [[True] * 5] * 2)
            for rank, at in ((1, 3), (0, 2)):
                self.assertTrue(first.remove(request, at, rank))
                self.assertEqual(second.matched(Request(f'b{rank}', self.prompt(120 + seed))), at * BLOCK, options)

    def test_look_up_of_a_prompt_that_is_not_there_asks_one_rank(self):
        engine = self.engine(tp_size=2)
        queue = engine.scheduler._scheduler._queue
        with mock.patch.object(queue, 'submit', side_effect=queue.submit) as submit:
            self.assertEqual(engine.matched(Request('a', self.prompt(126))), 0)
        self.assertEqual([len(call.args[1]) for call in submit.call_args_list], [5])

    def test_ranks_save_the_same_blocks_whatever_each_has_under_way(self):
        engine, request = self.engine(tp_size=2), Request('a', self.prompt(124))
        worker = engine.workers[1]._worker
        worker._under_way[0] = worker._staging_bytes - 2 * worker._row
        engine.run(request)
        engine.idle()
        del worker._under_way[0]
        engine.settle()
        self.assertEqual(engine.parts(request), [[True] * 5] * 2)

    def test_blocks_without_room_are_saved_when_no_rank_can_have_the_copies_before_them(self):
        engine, request, ids, now = self.engine(tp_size=2), Request('a', self.prompt(125)), list(range(1, 7)), [0.0]
        engine.matched(request)
        scheduler = engine.scheduler._scheduler
        scheduler._staging = Staging(3, ahead=3, timeout=1.0, clock=lambda: now[0])

        def saved(begin, end, kind='running', seconds=0.0):
            now[0] += seconds
            return pickle.loads(engine._plan(request, ids if kind == 'new' else [], begin, end, kind)).step.saves.block_ids
        with self.assertLogs('ems', 'WARNING') as logs:
            self.assertEqual(saved(0, 5 * BLOCK + 3, 'new'), [1, 2, 3])
            self.assertEqual([saved(83, 84, seconds=10.0) for _ in range(6)], [[]] * 6, 'a rank may have them still')
            self.assertEqual(saved(83, 84, seconds=0.5), [], 'a batch may run still')
            self.assertEqual(saved(83, 84, seconds=0.5), [4, 5])
        self.assertEqual(len(logs.output), 1)
        self.assertIn('staging_bytes', logs.output[0])

    def test_ranks_save_nothing_where_vllm_does_not_say_how_large_blocks_are(self):
        import ems.vllm  # pylint: disable=import-outside-toplevel
        for tp_size, count in ((2, 1), (1, 0)):
            with self.assertLogs('ems', 'INFO') as logs:
                logging.getLogger('ems').info('so that there is one')
                connector = ems.vllm.EmsConnector(
                    fake_vllm.config(self.cluster.address, tp_size=tp_size), fake_vllm.KVConnectorRole.SCHEDULER,
                    SimpleNamespace(num_blocks=4, kv_cache_groups=[]))
            self.addCleanup(connector.shutdown)
            self.assertEqual(sum('nothing is saved' in line for line in logs.output), count)
            self.assertEqual(connector._scheduler._staging.room(0), 0 if count else math.inf)

    def test_replayed_cuda_graphs_that_call_no_layer_load_and_save_the_same(self):
        import ems.vllm  # pylint: disable=import-outside-toplevel
        self.assertIs(ems.vllm.EmsConnector.requires_piecewise_for_cudagraph({}), False)
        first, second = (self.engine(calls_layers=False) for _ in range(2))
        request = Request('a', self.prompt(30))
        first.run(request)
        first.settle()
        loaded, ids = second.run(Request('b', self.prompt(30)))
        self.assertEqual(loaded, 5 * BLOCK)
        self.assertTrue(second.is_right(request, ids))

    def test_step_that_starts_after_its_forward_pass_stores_what_it_computed(self):
        first, second = (self.engine(starts_late=True) for _ in range(2))
        request = Request('a', self.prompt(31))
        first.run(request)
        first.settle()
        loaded, ids = second.run(Request('b', self.prompt(31)))
        self.assertEqual(loaded, 5 * BLOCK)
        self.assertTrue(second.is_right(request, ids))

    def test_forward_pass_that_failed_stores_nothing(self):
        for seed, options in enumerate(({}, {'starts_late': True}, {'tp_size': 2})):
            first, second = (self.engine(**options) for _ in range(2))
            first.fails_in_layer = 1
            with self.assertRaises(fake_vllm.ForwardFailed):
                first.run(Request('a', self.prompt(32 + seed)))
            for _ in range(5):
                first.idle()
            first.settle()
            self.assertEqual(second.run(Request('b', self.prompt(32 + seed)))[0], 0)

    def test_request_that_was_preempted_loads_what_it_saved_and_goes_on(self):
        first, second = (self.engine() for _ in range(2))
        request = Request('a', self.prompt(36))
        _, ids = first.run(request, chunk=BLOCK, preempt_at=3 * BLOCK, before_step=first.settle)
        first.settle()
        self.assertTrue(first.is_right(request, ids))
        self.assertLess(first.computed, 5 * BLOCK + 3 + 3 * BLOCK, 'some of it was loaded')
        loaded, ids = second.run(Request('b', self.prompt(36)))
        self.assertEqual(loaded, 5 * BLOCK)
        self.assertTrue(second.is_right(request, ids))

    def test_load_larger_than_staging_comes_in_parts(self):
        first = self.engine()
        first.run(Request('a', self.prompt(37)))
        first.settle()
        row = first.worker._worker._row
        second = self.engine(staging_bytes=12 * row)
        queue, sizes = second.worker._worker._queue, []
        submit = queue.submit

        def watched(kind, names, memory=None, **options):
            if kind == 'get':
                sizes.append(sum(one.nbytes for one in memory))
            return submit(kind, names, memory, **options)
        queue.submit = watched
        request = Request('b', self.prompt(37))
        loaded, ids = second.run(request)
        self.assertEqual((loaded, sizes), (5 * BLOCK, [2 * row, 2 * row, row]))
        self.assertTrue(second.is_right(request, ids))

    def test_shutdown_stores_what_runs_and_touches_nothing_afterwards(self):
        first, second = (self.engine() for _ in range(2))
        request = Request('a', self.prompt(38))
        first.run(request)
        first.close()  # waits for what runs; what has not begun is a failure
        done = [ok for _, _, _, done in first.worker._worker._queue.drain() for ok in done]
        loaded, ids = second.run(Request('b', self.prompt(38)))
        self.assertEqual(loaded, 5 * BLOCK if all(done) else 0)
        self.assertTrue(second.is_right(request, ids))
        first.run(Request('c', self.prompt(38)))  # nothing raises, all is computed

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
        with self.assertLogs('ems', 'WARNING') as logs:
            for request in 'ab':
                engine.run(Request(request, self.prompt(12)))
        self.assertEqual(engine.worker._worker.skipped_blocks, 10)
        self.assertEqual(len(logs.output), 1)
        self.assertIn('staging_bytes', logs.output[0])

    def test_of_a_step_with_more_than_staging_takes_the_first_blocks_are_saved(self):
        first, second = self.engine(), self.engine()
        first.worker._worker._staging_bytes = 3 * first.worker._worker._row
        first.run(Request('a', self.prompt(48)))
        first.settle()
        self.assertEqual(first.worker._worker.skipped_blocks, 2)
        request = Request('b', self.prompt(48))
        loaded, ids = second.run(request)
        self.assertEqual(loaded, 3 * BLOCK)
        self.assertTrue(second.is_right(request, ids))

    def test_hybrid_model_is_refused_with_what_to_do(self):
        import ems.vllm  # pylint: disable=import-outside-toplevel
        with self.assertRaisesRegex(ValueError, '2 KV cache groups.*LMCache'):
            ems.vllm.EmsConnector(fake_vllm.config(self.cluster.address), fake_vllm.KVConnectorRole.WORKER,
                                  SimpleNamespace(num_blocks=4, kv_cache_groups=[1, 2]))

    def test_model_whose_requests_lose_blocks_is_refused(self):
        import ems.vllm  # pylint: disable=import-outside-toplevel
        sliding = type('SlidingWindowSpec', (), {})()
        for spec in (sliding, SimpleNamespace(kv_cache_specs={'layer': sliding})):
            with self.assertRaisesRegex(ValueError, 'SlidingWindowSpec.*LMCache'):
                ems.vllm.EmsConnector(fake_vllm.config(self.cluster.address), fake_vllm.KVConnectorRole.WORKER,
                                      SimpleNamespace(num_blocks=4, kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)]))

    def test_saves_that_are_void_for_another_request_are_made_again(self):
        engine, request, ids = self.engine(tp_size=2), Request('a', self.prompt(49)), list(range(1, 7))
        engine.matched(request)
        engine._plan(request, ids, 0, 5 * BLOCK, 'new')
        engine.scheduler.update_connector_output(SimpleNamespace(invalid_block_ids={40}))
        step = pickle.loads(engine._plan(request, [], 5 * BLOCK, 5 * BLOCK + 3, 'running')).step
        self.assertEqual((step.void, step.saves.block_ids), (1, ids[:5]))

    def test_null_block_is_never_stored(self):
        engine, request = self.engine(), Request('a', self.prompt(45))
        engine.matched(request)
        engine._plan(request, [0, 1, 0, 2, 3, 4], 0, 1, 'new')
        step = pickle.loads(engine._plan(request, [], 1, 5 * BLOCK, 'running')).step
        self.assertEqual(step.saves.block_ids, [1, 2, 3])

    def test_after_a_reset_nothing_of_before_is_loaded_and_nothing_that_began_before_is_stored(self):
        first, second = self.engine(), self.engine()
        first.run(Request('a', self.prompt(46)))
        first.run(Request('b', self.prompt(47)), between=lambda: self.assertIs(first.scheduler.reset_cache(), True))
        first.settle()
        self.assertEqual([first.matched(Request('c', self.prompt(seed))) for seed in (46, 47)], [0, 0])
        self.assertEqual([second.matched(Request(f'd{seed}', self.prompt(seed))) for seed in (46, 47)], [5 * BLOCK, 0])
        again = Request('e', self.prompt(46))
        first.run(again)
        first.settle()
        loaded, ids = first.run(Request('f', self.prompt(46)))
        self.assertEqual(loaded, 5 * BLOCK)
        self.assertTrue(first.is_right(again, ids))
        first.scheduler.reset_cache()
        self.assertEqual(first.matched(Request('g', self.prompt(46))), 0)

    def test_unknown_option_is_named(self):
        import ems.vllm  # pylint: disable=import-outside-toplevel
        with self.assertRaisesRegex(ValueError, 'controler'):
            ems.vllm.EmsConnector(fake_vllm.config(self.cluster.address, controler=1), fake_vllm.KVConnectorRole.WORKER)


if __name__ == '__main__':
    unittest.main()
