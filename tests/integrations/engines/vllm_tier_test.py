"""vLLM's secondary tier: the four methods, by a little tiering manager over a CPU tier of the test's own."""
import math
import mmap
import sys
import time
import unittest
from types import SimpleNamespace
from unittest import mock

import fake_vllm
import numpy
from harness import Cluster, filled, until

fake_vllm.install()

# pylint: disable=wrong-import-position
import ems.vllm
import ems.vllm_tier
from ems.engine_queue import hasher_of
from fake_vllm import (FirstJobResult, JobMetadata, JobResult, Locality, LookupResult, Medium, OffloadingEvent, OffloadingGroup,
                       OffloadingModel, OffloadingParallel, OffloadPolicy, RequestOffloadingContext, TransferJob, offloading_spec)

BLOCKS, SIZE = 32, 16 << 10


ANSWERS = {LookupResult.HIT: True, LookupResult.MISS: False, LookupResult.RETRY: None}


class Tier:
    """A CPU tier, and what vLLM does with the tier behind it."""

    def __init__(self, address, spec=None, **config):
        self.memory = numpy.zeros((BLOCKS, SIZE), numpy.uint8)
        ems.vllm.register_tier()
        self.manager = fake_vllm.SecondaryTierFactory.create_secondary_tier(
            {'type': 'ems', 'controller': address, **config}, memoryview(self.memory), spec or offloading_spec())
        self.jobs = 0
        self.results = {}

    def job(self, submit, keys, block_ids):
        self.jobs += 1
        submit(TransferJob(self.jobs, keys, numpy.array(block_ids, numpy.int64)))
        return self.jobs

    def wait(self, *jobs):
        over = {}

        def are_over():
            for result in self.manager.get_finished_jobs():
                assert isinstance(result, JobResult) and result.job_id not in over
                over[result.job_id] = result.success
                self.results[result.job_id] = result
            return set(jobs) <= set(over)
        until(are_over, 30, f'jobs {jobs} are over')
        return [over[job] for job in jobs]

    def store(self, keys, block_ids):
        return self.wait(self.job(self.manager.submit_store, keys, block_ids))[0]

    def load(self, keys, block_ids):
        return self.wait(self.job(self.manager.submit_load, keys, block_ids))[0]

    def ask(self, key):
        """One look-up."""
        return ANSWERS[self.manager.lookup(key, None)]

    def lookup(self, key):
        found = []

        def is_answered():
            found.append(self.ask(key))
            return found[-1] is not None
        until(is_answered, 30, 'the look-up is answered')
        return found[-1]


def key(number):
    """As vLLM's: a block hash and the group's number."""
    return number.to_bytes(32, 'big') + (0).to_bytes(4, 'big')


class VllmTierTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2, dram='128MiB')
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.stop)

    def tier(self, **config):
        tier = Tier(self.cluster.address, **config)
        self.addCleanup(tier.manager.shutdown)
        return tier

    def test_blocks_are_demoted_and_promoted_elsewhere(self):
        tier = self.tier()
        keys = [key(i) for i in range(8)]
        for i in range(8):
            tier.memory[i] = numpy.frombuffer(filled(i, SIZE), numpy.uint8)
        self.assertEqual([tier.lookup(k) for k in keys], [False] * 8)
        self.assertTrue(tier.store(keys, range(8)))
        self.assertEqual([tier.lookup(k) for k in keys], [True] * 8)
        self.assertTrue(tier.load(keys, range(31, 23, -1)))
        self.assertTrue((tier.memory[31:23:-1] == tier.memory[:8]).all())

    def test_one_batch_of_lookups_answers_all(self):
        tier = self.tier()
        keys = [key(100 + i) for i in range(200)]
        tier.store(keys[:50], list(range(32)) + list(range(18)))
        tier.manager.submit_lookup(keys)
        self.assertEqual([tier.lookup(k) for k in keys], [True] * 50 + [False] * 150)

    def test_load_of_blocks_of_which_one_is_gone_is_no_success(self):
        tier = self.tier()
        tier.store([key(400)], [0])
        self.assertFalse(tier.load([key(400), key(401)], [1, 2]))

    def replace(self, tier, number, value):
        """What the pool has under a key, whatever its tier stored."""
        tier.manager._queue.client.put(hasher_of(tier.manager.domain).own_key(key(number)), value, overwrite=True)

    def test_key_whose_load_failed_is_a_miss_until_it_is_stored_again(self):
        tier = self.tier()
        self.replace(tier, 500, b'of another size')
        steps = []
        for _ in range(50):  # as vLLM does while a request waits for its blocks
            if not tier.lookup(key(500)):
                break
            steps.append(tier.load([key(500)], [1]))
        self.assertEqual(steps, [False], 'loaded once, then a miss')
        self.assertFalse(any(tier.ask(key(500)) for _ in range(5)))
        tier.manager.submit_lookup([key(500)])
        self.assertFalse(tier.lookup(key(500)))
        tier.manager._queue.client.remove(hasher_of(tier.manager.domain).own_key(key(500)))
        self.assertTrue(tier.store([key(500)], [0]))
        self.assertTrue(tier.lookup(key(500)))
        self.assertTrue(tier.load([key(500)], [1]))

    def test_load_says_which_of_its_keys_arrived(self):
        tier = self.tier()
        tier.memory[0] = 7
        self.assertTrue(tier.store([key(510), key(512)], [0, 0]))
        self.assertFalse(tier.load([key(510), key(511), key(512)], [1, 2, 3]))
        result = tier.results[tier.jobs]
        self.assertEqual(result.successful_keys, (key(510), key(512)))
        self.assertGreater(result.transfer_time, 0)
        self.assertTrue((tier.memory[[1, 3]] == 7).all())
        self.assertEqual([tier.lookup(key(n)) for n in (510, 511, 512)], [True, False, True])
        self.assertFalse(tier.load([key(513)], [1]))
        self.assertIsNone(tier.results[tier.jobs].successful_keys)

    def test_keys_whose_load_failed_are_bounded(self):
        tier = self.tier()
        with mock.patch.object(ems.vllm_tier, 'FAILED_MAX', 3):
            for number in range(520, 530):
                self.assertFalse(tier.load([key(number)], [0]))
        self.assertEqual(list(tier.manager._failed), [key(number) for number in (527, 528, 529)])

    def test_what_vllm_says_of_itself_keeps_blocks_apart(self):
        self.tier().store([key(600)], [0])
        for config in ({'model': OffloadingModel('llama2')}, {'model': OffloadingModel(dtype='fp8')},
                       {'parallel': OffloadingParallel(tp_size=2)}, {'parallel': OffloadingParallel(pp_size=2)},
                       {'parallel': OffloadingParallel(rank=1)}, {'groups': (OffloadingGroup(32),)},
                       {'groups': (OffloadingGroup(layer_names=('a',)),)}, {'worker_kv_bytes_per_block': 4096},
                       {'replicated_layout': True}):
            for domain in (None, {'model': 'llama', 'dtype': 'bfloat16'}):
                self.assertFalse(self.tier(spec=offloading_spec(**config), domain=domain).lookup(key(600)), config)
        with self.assertRaises(ImportError):  # of which it is not known how its bytes lie
            self.tier(spec=offloading_spec(canonical_layout=True))
        alike = offloading_spec(engine_id='another', extra_config={'cpu_bytes_to_use': 1}, publishes=True,
                                parallel=OffloadingParallel(data_parallel_index=3))
        self.assertTrue(self.tier(spec=alike).lookup(key(600)))

    def test_users_domain_adds_to_what_vllm_says(self):
        self.tier().store([key(610)], [0])
        for domain in ('revision 2', {'model': 'sha256'}, {'dtype': 'fp8'}, {'custom': [['quantization', 'fp8']]},
                       {'tp_rank': 1, 'tp_size': 2}):
            tier = self.tier(domain=domain)
            self.assertFalse(tier.lookup(key(610)), domain)
            self.assertTrue(tier.store([key(610)], [0]))
            self.assertTrue(self.tier(domain=domain).lookup(key(610)), domain)

    def test_blocks_of_other_sizes_never_meet(self):
        self.tier().store([key(620)], [0])
        self.assertFalse(self.tier(block_bytes=SIZE * 2).lookup(key(620)))

    def test_configuration_itself_where_vllm_hands_it_over_keeps_blocks_apart(self):
        def tier(by_spec=False, **values):
            config = fake_vllm.config(self.cluster.address)
            for part, name, value in values.values():
                setattr(getattr(config, part), name, value)
            groups = [SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=16), layer_names=['a'])]
            spec = SimpleNamespace(vllm_config=config, extra_config={}, kv_cache_config=SimpleNamespace(kv_cache_groups=groups))
            given = {'offloading_spec': spec} if by_spec else {'vllm_config': config}
            manager = ems.vllm.EmsTierManager(primary_kv_view=memoryview(numpy.zeros((BLOCKS, SIZE), numpy.uint8)),
                                              tier_type='ems', controller=self.cluster.address, **given)
            self.addCleanup(manager.shutdown)
            return manager.domain
        for by_spec in (False, True):
            self.assertEqual(tier(by_spec), tier(by_spec))
            for changed in (('model_config', 'model', 'llama2'), ('model_config', 'dtype', 'float16'),
                            ('model_config', 'revision', 'v2'), ('model_config', 'quantization', 'fp8'),
                            ('cache_config', 'cache_dtype', 'fp8'), ('cache_config', 'block_size', 32),
                            ('parallel_config', 'tensor_parallel_size', 2),
                            ('parallel_config', 'decode_context_parallel_size', 2)):
                self.assertNotEqual(tier(by_spec, changed=changed), tier(by_spec), changed)
        self.assertNotEqual(tier(True), tier(False))

    def test_tier_that_nobody_tells_the_model_does_not_start(self):
        for domain in (None, '', {}, 'a text', {'dtype': 'bf16'}):
            for given in ({}, {'offloading_spec': object()}, {'vllm_config': object()}):
                with self.assertRaisesRegex(ValueError, 'which model'):
                    ems.vllm.EmsTierManager(primary_kv_view=memoryview(bytearray(4096)), block_bytes=1024, domain=domain,
                                            controller=self.cluster.address, **given)

    def test_block_that_the_cpu_tier_has_not_fails_the_job_and_nothing_else(self):
        tier = self.tier()
        self.assertFalse(tier.store([key(700)], [BLOCKS]))
        self.assertFalse(tier.load([key(700)], [-1]))
        self.assertTrue(tier.store([key(700)], [BLOCKS - 1]))

    def test_absence_counts_once(self):
        tier = self.tier()
        self.assertFalse(tier.lookup(key(800)))
        self.assertNotIn(key(800), tier.manager._answers)
        tier.store([key(800)], [0])
        self.assertTrue(tier.lookup(key(800)))

    def test_presence_counts_until_the_block_is_loaded_or_stored(self):
        tier = self.tier()
        tier.store([key(801)], [0])
        self.assertTrue(tier.lookup(key(801)))
        with mock.patch.object(tier.manager._queue, 'submit', side_effect=AssertionError('asked again')):
            self.assertTrue(tier.ask(key(801)))
        for move in (tier.load, tier.store):
            self.assertTrue(tier.lookup(key(801)))
            self.assertTrue(move([key(801)], [1]))
            self.assertNotIn(key(801), tier.manager._answers)

    def test_presence_is_too_old_after_a_while(self):
        tier = self.tier(lookup_wait=0)
        tier.store([key(802)], [0])
        self.assertTrue(tier.lookup(key(802)))
        answer = tier.manager._answers[key(802)]
        tier.manager._answers[key(802)] = (*answer[:2], answer[2] - 60)
        self.assertIsNone(tier.ask(key(802)))
        self.assertTrue(tier.lookup(key(802)))

    def test_answer_from_before_a_store_is_forgotten(self):
        tier = self.tier(lookup_wait=0)
        tier.manager.lookup(key(810), None)  # asked, and not asked again
        self.assertTrue(tier.store([key(810)], [0]))
        self.assertTrue(tier.lookup(key(810)))

    def test_answer_that_nobody_took_is_too_old_after_a_while(self):
        tier, other = self.tier(), self.tier()
        tier.manager.submit_lookup([key(811)])
        until(lambda: tier.manager._drain() or not tier.manager._lookups, 30, 'it is answered')
        other.store([key(811)], [0])
        answer = tier.manager._answers[key(811)]
        tier.manager._answers[key(811)] = (*answer[:2], answer[2] - 60)
        self.assertTrue(tier.lookup(key(811)))

    def test_prefix_is_not_asked_again_for_each_of_its_blocks(self):
        tier = self.tier(lookup_wait=5)
        keys = [key(1200 + i) for i in range(50)]
        tier.store(keys, [0] * 50)
        self.assertEqual([tier.ask(k) for k in keys], [True] * 50)

    def manager_of(self, base, view, given, members):
        """Of a release with this base class, which its factory gives these, and that has these members besides."""
        theirs = sys.modules[fake_vllm.TIER]
        later = {'LookupResult': LookupResult, 'RequestOffloadingContext': RequestOffloadingContext}
        job_result = JobResult if 'RequestOffloadingContext' in members else FirstJobResult
        with mock.patch.object(theirs, 'SecondaryTierManager', base), mock.patch.object(theirs, 'JobResult', job_result):
            for name in later:
                delattr(theirs, name)
            vars(theirs).update({name: later[name] for name in members})
            try:
                manager = ems.vllm._tier_manager()(primary_kv_view=view, controller=self.cluster.address, **given)
            finally:
                vars(theirs).update(later)
        self.addCleanup(manager.shutdown)
        return manager

    def said_of(self, tier, keys):
        """What steps say that ask for all of them, until one has an answer for each."""
        said = set()

        def all_are_answered():
            step = [tier.ask(k) for k in keys]
            tier.manager.on_schedule_end(None)
            said.update(step)
            return None not in step
        until(all_are_answered, 30, 'look-ups are answered')
        return said

    def test_step_that_asks_for_a_long_prompt_waits_little_and_asks_in_batches(self):
        tier = self.tier()
        keys = [key(10_000 + i) for i in range(4000)]
        self.assertTrue(tier.store(keys, [i % BLOCKS for i in range(4000)]))
        for lookup_wait, waits in ((0.0002, 4), (0, 0)):
            with self.subTest(lookup_wait=lookup_wait), mock.patch.object(ems.vllm_tier, 'STEP_SECONDS', math.inf):
                tier = self.tier(lookup_wait=lookup_wait)
                with mock.patch.object(tier.manager._queue, 'submit', wraps=tier.manager._queue.submit) as submit, \
                        mock.patch.object(ems.vllm_tier.time, 'sleep', wraps=time.sleep) as sleep:
                    first = [tier.ask(k) for k in keys]
                    tier.manager.on_schedule_end(None)
                batches = [len(call.args[1]) for call in submit.call_args_list]
                self.assertEqual(sum(batches), len(keys), 'each key is asked for once')
                self.assertLessEqual(len(batches), 16 + waits, batches)
                self.assertLessEqual(sleep.call_count, waits)
                self.assertNotIn(False, first)
                self.assertNotIn(False, self.said_of(tier, keys))

    def test_next_step_waits_again_and_sends_what_the_last_one_left(self):
        tier = self.tier()
        for ends in (lambda: tier.manager.on_schedule_end(None), lambda: tier.manager.get_finished_jobs(),
                     lambda: tier.manager.drain_jobs(), lambda: tier.ask(key(901))):
            tier.manager._wait_left = 0  # as it is in the middle of a step
            tier.manager._looked = time.monotonic() + 60
            self.assertIsNone(tier.ask(key(902)))
            self.assertIn(key(902), tier.manager._next)
            tier.manager._looked = 0  # long ago
            ends()
            self.assertNotIn(key(902), tier.manager._next)
            self.assertFalse(tier.lookup(key(902)))

    def test_key_that_is_asked_for_again_in_a_step_is_sent(self):
        tier = self.tier(lookup_wait=0)
        tier.store([key(903)], [0])
        with mock.patch.object(ems.vllm_tier, 'STEP_SECONDS', math.inf):
            self.assertTrue(tier.lookup(key(903)))

    def test_lookups_for_which_there_is_no_room_are_asked_again(self):
        tier = self.tier()
        keys = [key(20_000 + i) for i in range(4000)]
        self.assertTrue(tier.store(keys, [i % BLOCKS for i in range(4000)]))
        tier = self.tier(lookup_wait=0, threads=1, waiting_max=1)
        refused, drain = [], tier.manager._queue.drain

        def drained():
            over = drain()
            refused.extend(error for _, _, error, _ in over if error)
            return over
        with mock.patch.object(tier.manager._queue, 'drain', drained):
            said = set()
            for k in keys:
                said.add(tier.ask(k))
                tier.manager.on_schedule_end(None)  # each key is a batch
            said |= self.said_of(tier, keys)
        self.assertEqual(said, {None, True})
        self.assertTrue(refused)

    def test_releases_differ_in_what_they_construct_with_and_call(self):
        view = memoryview(bytearray(4096)).cast('B', (4, 1024))
        self.assertEqual(self.tier().manager.tier_type, 'ems')
        first, newest = fake_vllm.FirstTierManager, fake_vllm.SecondaryTierManager
        for theirs, job, given, members in (
                (first, JobMetadata, {'offloading_spec': object(), 'tier_type': 'ems'}, []),
                (first, JobMetadata, {'vllm_config': object(), 'tier_type': 'ems'}, []),
                (first, JobMetadata, {'vllm_config': object()}, ['LookupResult']),
                (newest, JobMetadata, {'offloading_spec': object(), 'tier_type': 'ems'},
                 ['LookupResult', 'RequestOffloadingContext']),
                (newest, TransferJob, {'offloading_spec': object(), 'tier_type': 'ems'},
                 ['LookupResult', 'RequestOffloadingContext'])):
            given = {**given, 'domain': {'model': theirs.__name__}}
            with self.subTest(base=theirs.__name__, job=job.__name__, given=list(given)):
                made = {}
                taken = ', '.join(['primary_kv_view', *(name for name in given if name != 'domain')])
                exec(f'def __init__(self, {taken}): self.view = primary_kv_view', made)  # pylint: disable=exec-used
                base = type('Base', (theirs,), made)
                manager = self.manager_of(base, view, given, members)
                self.assertIs(manager.view, view)
                if theirs is newest:
                    self.assertEqual(manager.on_new_request(None).policy, OffloadPolicy.CHUNK_LEVEL)
                manager.submit_store(job(1, [key(820)], numpy.array([0])))
                manager.drain_jobs()
                made_of = JobResult if 'RequestOffloadingContext' in members else FirstJobResult
                self.assertEqual(list(manager.get_finished_jobs()), [made_of(1, True)])
                found, again = [], LookupResult.RETRY if 'LookupResult' in members else None
                until(lambda: found.append(manager.lookup(key(820), None)) or found[-1] is not again, 30, 'answered')
                self.assertIs(found[-1], LookupResult.HIT if 'LookupResult' in members else True)
                manager.on_schedule_end(None)
                manager.on_request_finished(None)

    def test_registering_again_does_nothing(self):
        for _ in 'xy':
            ems.vllm.register_tier()

    def test_shutdown_ends_what_runs_and_the_cpu_tier_is_left_alone(self):
        tier = self.tier()
        keys = [key(1300 + i) for i in range(BLOCKS)]
        for i in range(BLOCKS):
            tier.memory[i] = i + 1
        self.assertTrue(tier.store(keys, range(BLOCKS)))
        tier.memory[:] = 0
        jobs = [tier.job(tier.manager.submit_load, keys, range(BLOCKS)) for _ in range(20)]
        tier.manager.shutdown()
        before = tier.memory.copy()
        over = {result.job_id: result.success for result in tier.manager.get_finished()}
        self.assertEqual(set(over), set(jobs), 'each has ended, one way or the other')
        for i in range(BLOCKS):
            self.assertIn(set(before[i].tolist()), ({0}, {i + 1}))
        if any(over.values()):
            self.assertTrue((before[:, 0] == numpy.arange(1, BLOCKS + 1)).all())
        self.assertTrue((tier.memory == before).all())

    def test_cpu_tier_can_be_unmapped_after_shutdown(self):
        region = mmap.mmap(-1, 8 * 4096)
        view = memoryview(region).cast('B', (8, 4096))
        manager = ems.vllm.EmsTierManager(offloading_spec=offloading_spec(), primary_kv_view=view, tier_type='ems',
                                          controller=self.cluster.address)
        keys = [key(1400 + i) for i in range(8)]
        for _ in range(5):  # some are under way
            manager.submit_store(TransferJob(1, keys, numpy.arange(8)))
            manager.submit_load(TransferJob(2, keys, numpy.arange(8)))
        manager.shutdown()
        view.release()
        region.close()

    def test_stored_blocks_are_told_as_kv_events_where_vllm_publishes_any(self):
        tier = self.tier(spec=offloading_spec(publishes=True), enable_kv_events=True, locality='REMOTE')
        self.assertIs(tier.manager.medium, Medium.STORAGE)
        self.assertIs(tier.manager.locality, Locality.REMOTE)
        keys = [key(1500), key(1501)]
        self.assertTrue(tier.store(keys, [0, 1]))
        self.assertTrue(tier.load(keys, [2, 3]))
        self.assertEqual(list(tier.manager.take_events()), [OffloadingEvent(keys, Medium.STORAGE, False, Locality.REMOTE)])
        self.assertEqual(list(tier.manager.take_events()), [], 'each once')
        for spec, options in ((offloading_spec(publishes=True), {}), (offloading_spec(), {'enable_kv_events': True})):
            quiet = self.tier(spec=spec, **options)
            self.assertTrue(quiet.store(keys, [0, 1]))
            self.assertEqual(list(quiet.manager.take_events()), [])
        with self.assertRaises(ValueError):
            self.tier(locality='NOWHERE')

    def test_module_path_in_the_configuration_needs_no_plug_in(self):
        tier = self.tier(type='EmsTierManager', module_path='ems.vllm')
        self.assertEqual(type(tier.manager).__name__, 'EmsTierManager')
        self.assertTrue(tier.store([key(1600)], [0]))

    def test_flat_view_needs_the_size_of_a_block(self):
        with self.assertRaisesRegex(ValueError, 'block_bytes'):
            ems.vllm.EmsTierManager(primary_kv_view=memoryview(bytearray(64)), controller=self.cluster.address)

    def test_nothing_raises_after_shutdown(self):
        tier = self.tier()
        tier.manager.shutdown()
        self.assertFalse(tier.store([key(900)], [0]))
        self.assertFalse(tier.lookup(key(900)))
        tier.manager.touch([key(900)])
        tier.manager.request_finished()


if __name__ == '__main__':
    unittest.main()
