"""Blocks whose load failed and that vLLM keeps in its prefix cache: who builds on one computes it, and the pool gets nothing on it."""
import pickle
import unittest
from types import SimpleNamespace

from fake_vllm import BLOCK, Request
from vllm_case import VllmCase


class VllmLostBlocksTest(VllmCase):
    def admitted(self, engine, request, ids, computed):
        """A request of which vLLM has the first blocks in its own cache. Returns its blocks."""
        self.assertEqual(engine.matched(request, computed), 0)
        ids = ids + [engine.free.pop() for _ in range(-(-len(request.prompt_token_ids) // BLOCK) - len(ids))]
        engine.scheduler.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda: (ids,)), 0)
        return ids

    def step(self, engine, request, ids, begin, kind):
        """Computes the rest of a prompt. Returns (what the step says is lost, load errors)."""
        metadata = engine._plan(request, ids, begin, len(request.prompt_token_ids), kind)
        return pickle.loads(metadata).step.lost, engine._step(request, ids, metadata, begin, len(request.prompt_token_ids))

    def lose(self, engine, seed, ends_before_it_is_heard=False):
        """The second of five blocks goes before it is loaded, and the request ends before it is computed. Returns its blocks."""
        writer, request = self.engine(), Request('a', self.prompt(seed))
        writer.run(Request('w', self.prompt(seed)))
        writer.settle()
        loaded, ids = engine._admit(request)
        self.assertTrue(engine.remove(request, 1))
        lost, errors = self.step(engine, request, ids, loaded, 'new')
        self.assertEqual((loaded, lost, errors), (5 * BLOCK, [], {ids[1]}))
        end = [lambda: engine.scheduler.update_connector_output(SimpleNamespace(invalid_block_ids=errors)),
               lambda: engine.scheduler.request_finished(request, ids)]
        for one in end[::-1] if ends_before_it_is_heard else end:
            one()
        return ids

    def check_others(self, engine, ids, seed):
        """Another request takes the five blocks for computed."""
        longer = Request('b', self.prompt(seed, 5 * BLOCK) + self.prompt(seed + 1, 2 * BLOCK + 3))
        ids = self.admitted(engine, longer, ids[:5], 5 * BLOCK)
        lost, errors = self.step(engine, longer, ids, 5 * BLOCK, 'new')
        self.assertEqual((lost, errors), (ids[1:5], set(ids[1:5])))
        engine.scheduler.update_connector_output(SimpleNamespace(invalid_block_ids=errors))
        engine.idle()
        engine.settle()
        self.assertEqual(engine.parts(longer), [[True, False, True, True, True, False, False]], 'what stands on a lost block is stored')
        lost, errors = self.step(engine, longer, ids, BLOCK, 'running')
        self.assertEqual((lost, errors), ([], set()))
        engine.scheduler.update_connector_output(SimpleNamespace(invalid_block_ids=set()))
        self.assertTrue(engine.is_right(longer, ids))
        engine.finish(longer, ids)
        engine.settle()
        self.assertEqual(engine.parts(longer), [[True] * 7])
        reader = self.engine()
        loaded, into = reader.run(Request('c', longer.prompt_token_ids))
        self.assertEqual(loaded, 7 * BLOCK)
        self.assertTrue(reader.is_right(longer, into))
        self.assertEqual(engine.scheduler._scheduler._lost & set(ids), set())

    def test_a_block_whose_request_ended_before_it_was_computed_again_is_computed_by_the_next(self):
        engine = self.engine()
        self.check_others(engine, self.lose(engine, 1), 1)

    def test_so_is_one_whose_request_ended_before_the_scheduler_heard_of_it(self):
        engine = self.engine()
        self.check_others(engine, self.lose(engine, 11, ends_before_it_is_heard=True), 11)

    def test_a_block_that_is_loaded_or_computed_anew_is_lost_no_more(self):
        engine = self.engine()
        ids = self.lose(engine, 21)
        engine.free.extend(ids[::-1])  # the next request gets the same
        whole = Request('whole', self.prompt(31))
        for request, loaded in ((whole, 0), (Request('again', self.prompt(31)), 5 * BLOCK)):
            self.assertEqual(engine.run(request), (loaded, ids))
            self.assertTrue(engine.is_right(request, ids))
            self.assertEqual(engine.scheduler._scheduler._lost, set())
            engine.settle()
            engine.free.extend(ids[::-1])
            engine.scheduler._scheduler._lost.update(ids[:5])

    def test_a_step_that_computes_a_lost_block_serves_others_of_the_same_step(self):
        half = self.engine().scheduler._scheduler
        one, other, third = [1, 2, 3], [1, 2, 4], [5, 6]
        for parts, named, left in (([(one, 2 * BLOCK, 3 * BLOCK), (other, BLOCK, 3 * BLOCK), (third, 0, 2 * BLOCK)], [], set()),
                                   ([(one, 2 * BLOCK, 3 * BLOCK), (third, BLOCK, BLOCK + 1)], [2, 5], {2, 5}),
                                   ([(other, BLOCK + 1, 3 * BLOCK)], [2], {2, 5}), ([(third, BLOCK - 1, BLOCK)], [5], {2, 5}),
                                   ([(third, 0, 1)], [], {2}), ([], [], {2, 5})):
            half._lost = {2, 5}
            self.assertEqual((half._lost_of(parts), half._lost), (named, left), parts)

    def test_what_another_connector_loads_into_a_lost_block_counts(self):
        scheduler = self.engine().scheduler
        half, request = scheduler._scheduler, Request('a', self.prompt(51))
        scheduler.get_num_new_matched_tokens(request, BLOCK)
        for block_ids, left in (([3, 4, 5, 6, 7, 8], {3}), ([9, 5], {3, 5})):  # it is asked before the first time alone
            half._lost |= {3, 5}
            scheduler.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda ids=block_ids: (ids,)), 0)
            self.assertEqual(half._lost, left)

    def test_requests_that_ended_are_forgotten_once_their_steps_are_heard_of(self):
        engine = self.engine()
        for number in range(20):
            engine.free.extend(engine.run(Request(f'r{number}', self.prompt(41)))[1])
        self.assertLessEqual(len(engine.scheduler._scheduler._ended), 4)


if __name__ == '__main__':
    unittest.main()
