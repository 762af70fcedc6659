#!/usr/bin/env python3
"""Prompts through node-llama-cpp with EMS in trouble: an answer each time, the one that is computed without a pool."""
import unittest

from cluster import Cluster, until
from llama_case import ModelCase
from llama_testing import Engine, prompt

LENGTH, KEPT = 700, 576
NOBODY = '127.0.0.1:1'


class PromptCacheFaultTest(ModelCase):
    def check_answer(self, engine, answer, cached):
        got = engine.run(prompt(LENGTH))
        self.assertEqual((got['cachedTokens'], got['tokens']), (cached, answer['tokens']))

    def test_a_server_that_is_killed_is_a_miss(self):
        with Cluster(servers=1, controller_flags=['damping_ms=0']) as cluster:
            with Engine(self.model, {'controller': cluster.address, 'lookupTimeoutMs': 5000}) as engine:
                answer = engine.run(prompt(LENGTH), cache=False)
                self.check_answer(engine, answer, 0)
                engine.flush()
                self.check_answer(engine, answer, KEPT)
                cluster.kill_servers()
                results = []
                # Its memory is mapped here, and holds what it held, until the engine has seen that it is gone.
                until(lambda: results.append(engine.run(prompt(LENGTH))) or results[-1]['cachedTokens'] == 0, 10, 'a miss')
                self.assertTrue(all(one['tokens'] == answer['tokens'] for one in results))
                for _ in range(3):
                    self.check_answer(engine, answer, 0)
                engine.flush()
                cluster.start_servers()  # empty: all is computed and saved again
                results = []
                until(lambda: (results.append(engine.run(prompt(LENGTH))), engine.flush())
                      and results[-1]['cachedTokens'] == KEPT, 60, 'the pool is used again')
                self.assertTrue(all(one['tokens'] == answer['tokens'] for one in results))
            self.assertEqual(engine.close(), 0)

    def test_a_server_that_is_killed_in_the_middle_of_a_save(self):
        with Cluster(servers=1, server_flags=['ssd.capacity_bytes=512MiB'], controller_flags=['damping_ms=0']) as cluster:
            options = {'controller': cluster.address, 'lookupTimeoutMs': 5000, 'saveTimeoutMs': 2000, 'durability': 'ssd',
                       'saveEveryTokens': 0}
            with Engine(self.model, options) as engine:
                answer = engine.run(prompt(LENGTH), cache=False)
                engine.kill_at_manifest(cluster.servers[0].pid)
                self.check_answer(engine, answer, 0)
                engine.flush()
                stats = engine.stats()
                self.assertEqual((stats['saves'], stats['savesFailed']), (0, 1))
                cluster.kill_servers()
                cluster.start_servers()  # with the parts, which nobody lists
                results = []
                until(lambda: (results.append(engine.run(prompt(LENGTH))), engine.flush())
                      and results[-1]['cachedTokens'] == KEPT, 60, 'it is saved again')
                self.assertEqual(results[0]['cachedTokens'], 0)
                self.assertTrue(all(one['tokens'] == answer['tokens'] for one in results))
            self.assertEqual(engine.close(), 0)

    def test_daemons_that_stand_still_cost_their_deadline(self):
        with Cluster(servers=1) as cluster:
            with Engine(self.model, {'controller': cluster.address, 'lookupTimeoutMs': 50}) as engine:
                answer = engine.run(prompt(LENGTH), cache=False)
                cluster.stand_still()
                for _ in range(2):
                    self.check_answer(engine, answer, 0)
                self.assertEqual(engine.stats()['saves'], 0)
                cluster.go_on()
            self.assertEqual(engine.close(), 0)

    def test_a_pool_that_comes_later_is_found(self):
        with Cluster(servers=1) as cluster:
            cluster.controller.kill()
            options = {'controller': cluster.address, 'startTimeoutMs': 200, 'reconnectMs': 100}
            with Engine(self.model, options) as engine:
                answer = engine.run(prompt(LENGTH), cache=False)
                self.assertFalse(engine.stats()['connected'])
                self.check_answer(engine, answer, 0)
                cluster.controller.start()
                cluster.controller.wait_ready()
                results = []
                until(lambda: (results.append(engine.run(prompt(LENGTH))), engine.flush())
                      and results[-1]['cachedTokens'] == KEPT, 60, 'the pool is used')
                self.assertTrue(all(one['tokens'] == answer['tokens'] for one in results))

    def test_no_pool_at_all(self):
        with Engine(self.model, {'controller': NOBODY, 'startTimeoutMs': 200}) as engine:
            answer = engine.run(prompt(LENGTH), cache=False)
            self.check_answer(engine, answer, 0)
            engine.flush()
        self.assertEqual(engine.close(), 0)

    def test_a_state_that_is_spoilt_is_refused_and_written_again(self):
        with Cluster(servers=1) as cluster:
            with Engine(self.model, {'controller': cluster.address, 'lookupTimeoutMs': 5000}) as engine:
                answer = engine.run(prompt(LENGTH))
                engine.flush()
                for how in ('flip', 'shorten', 'manifest', 'truncate', 'otherTokens'):
                    with self.subTest(how):
                        self.assertEqual(engine.damage(how, prompt(LENGTH)), 2)
                        self.check_answer(engine, answer, 0)
                        engine.flush()
                        self.check_answer(engine, answer, KEPT)
                self.assertEqual(engine.stats()['loadsFailed'], 5)
            self.assertEqual(engine.close(), 0)


if __name__ == '__main__':
    unittest.main()
