#!/usr/bin/env python3
"""The serving loop in parts - a router, two decode and two prefill processes, a pool of two servers - while parts of it
are killed, stopped and started again under steady load. What must hold: every request ends in time; an answer is the
one that a loop in one process gives, without pool and faults, and what comes of one that is cut begins it; an error is
one that OpenAI's clients understand; the loop serves again; nothing leaks."""
import os
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'support'))
from loop_testing import Client, Load, Loop  # noqa: E402
from model_testing import Cluster, wait_until  # noqa: E402

COMMON = {'model.preset': 'small', 'model.seed': 7, 'kv.bytes': '24MiB', 'kv.block_tokens': 32}
MODEL = 'ems-small'
STALL_MS = 3000
REQUEST_MS = 25_000  # what the router gives a request
PATIENCE_MS = 2500
FAILOVER_S = 15      # a peer that does not answer for 3 s is dead, and the machine may be busy
STREAMS = 8

SYSTEM = 'You are the keeper of a lighthouse, and you answer in the manner of someone who has all night. ' * 2
PROMPTS = {f'prompt-{i}': {
    'prompt': (SYSTEM if i % 2 else '') + f'Question {i}: what does the sea say on day {i * i + 7}? ' * (1 + i % 3),
    'max_tokens': 60 + 20 * (i % 4), 'ignore_eos': True, 'temperature': 0 if i % 4 == 0 else 1, 'seed': 1000 + i}
    for i in range(13)}


class ServingLoopKillTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.reference = cls.ask_one_process()
        cls.cluster = cls.enterClassContext(Cluster(servers=2, server={'dram.bytes': '64MiB'}))
        cls.loop = cls.enterClassContext(Loop(**COMMON))
        pool = {'pool.controller': cls.cluster.address, 'pool.timeout_ms': 1000}
        stall = {'prefill.stall_ms': STALL_MS, 'decode.stall_ms': STALL_MS, 'patience_ms': PATIENCE_MS}
        cls.prefills = [cls.loop.add(f'prefill-{i}', role='prefill', **pool) for i in range(2)]
        peers = ' '.join(one.address for one in cls.prefills)
        cls.decodes = [cls.loop.add(f'decode-{i}', role='decode', prefill_peers=peers, **pool, **stall)
                       for i in range(2)]
        peers = ' '.join(one.address for one in cls.decodes)
        cls.router = cls.loop.add('router', role='router', decode_peers=peers, **stall,
                                  **{'api.request_timeout_ms': REQUEST_MS})
        for part in cls.loop.parts.values():
            part.start(wait=False)
        for part in cls.loop.parts.values():
            part.wait_ready()
        cls.client = Client(cls.router.http, MODEL, REQUEST_MS / 1000 + 10)
        cls.wait_whole()
        cls.free = {part.name: part.metric(f'{part.options["role"]}_free_blocks')
                    for part in cls.prefills + cls.decodes}

    @classmethod
    def ask_one_process(cls):
        """What is right."""
        with Loop(**COMMON) as loop:
            one = loop.add('one', role='all').start()
            client = Client(one.http, MODEL)
            answers = {name: client.ask(stream=True, **fields) for name, fields in PROMPTS.items()}
            for name, answer in answers.items():
                assert answer.whole and answer.error is None, (name, answer)
            texts = {name: answer.text for name, answer in answers.items()}
            assert len(set(texts.values())) == len(PROMPTS), 'prompts tell answers apart'
            one.stop()
            return texts

    @classmethod
    def wait_whole(cls):
        """Every part sees all that it needs."""
        def look():
            if not all(one.is_ready() for one in cls.loop.parts.values()):
                return False
            whole = [cls.router.metric('router_peer_healthy') == 2]
            whole += [one.metric('decode_peer_healthy') == 2 and one.metric('pool_connected') for one in cls.decodes]
            return all(whole)
        wait_until(look, 'loop with all its parts', FAILOVER_S)

    def begin(self):
        for part in self.loop.parts.values():
            part.alive()
        self.wait_whole()
        load = self.enterContext(Load(self.client, PROMPTS, self.reference, STREAMS))
        load.wait_for(STREAMS)
        return load

    def finish(self, load, errors=0):
        """It serves all again, and nothing is left of what was under way."""
        self.wait_whole()
        load.wait_for(2 * STREAMS)
        load.end()
        self.assertEqual(load.faults, [])
        self.assertLessEqual(len(load.errors), errors, load.errors[:3])
        self.assertLess(load.slowest, REQUEST_MS / 1000 + 2)
        self.expect_nothing_left()

    def expect_nothing_left(self):
        for part in self.prefills + self.decodes:
            def look(part=part):
                role, found = part.options['role'], part.metrics()
                self.seen = {name: value for name, value in found.items() if name.startswith(role)}

                def value(name):
                    return sum(value for key, value in found.items() if key.startswith(f'{role}_{name}{{'))
                busy = value('prompts') if role == 'prefill' else value('waiting') + value('admitted')
                return busy == 0 and value('free_blocks') == self.free[part.name]
            try:
                wait_until(look, f'{part.name} that has given all KV back')
            except AssertionError as error:
                raise AssertionError(f'{error}: {self.seen}') from None
        self.assertEqual(self.router.metric('router_running') + self.router.metric('router_waiting'), 0)

    def test_a_prefill_process_is_killed_and_comes_back(self):
        load = self.begin()
        for part in self.prefills:
            part.kill()
            load.wait_for(STREAMS)
            part.start()
            self.wait_whole()
        self.finish(load)

    def test_a_decode_process_is_killed_and_comes_back(self):
        load = self.begin()
        before = self.router.metric('router_failovers_total')
        for part in self.decodes:
            part.kill()
            load.wait_for(STREAMS)
            part.start()
            self.wait_whole()
        self.finish(load)
        self.assertGreater(self.router.metric('router_failovers_total'), before, 'something was under way')

    def test_processes_are_restarted_in_order(self):
        """As an upgrade would: nobody hears of it."""
        load = self.begin()
        for part in self.prefills + self.decodes:
            part.stop()
            part.start()
            self.wait_whole()
            load.wait_for(STREAMS)
        self.finish(load)

    def stop_and_continue(self, part, is_noticed):
        load = self.begin()
        part.kill(signal.SIGSTOP)
        try:
            wait_until(is_noticed, f'parts that notice that {part.name} stands still', FAILOVER_S)
            load.wait_for(2 * STREAMS)
        finally:
            part.kill(signal.SIGCONT)
        self.finish(load)

    def test_a_prefill_process_stands_still_and_goes_on(self):
        name = f'decode_peer_healthy{{peer="{self.prefills[0].address}"}}'
        self.stop_and_continue(self.prefills[0], lambda: not any(one.metrics()[name] for one in self.decodes))

    def test_a_decode_process_stands_still_and_goes_on(self):
        part = self.decodes[0]
        name = f'router_peer_healthy{{peer="{part.address}"}}'
        self.stop_and_continue(part, lambda: self.router.metrics()[name] == 0)

    def test_all_decode_processes_are_killed_and_come_back(self):
        load = self.begin()
        for part in self.decodes:
            part.kill()
        wait_until(lambda: len(load.errors) >= STREAMS or load.faults, 'requests that end with an error', FAILOVER_S)
        self.assertFalse(self.router.is_ready())
        refused = self.client.ask(prompt='x', max_tokens=1)
        self.assertEqual((refused.status, refused.error['code']), (503, 'unavailable'))
        self.assertLess(refused.seconds, 1)
        for part in self.decodes:
            part.start(wait=False)
        self.finish(load, errors=1 << 30)
        for answer in load.errors:
            self.assertLess(answer.seconds, FAILOVER_S, answer)

    def test_all_prefill_processes_are_killed_and_come_back(self):
        load = self.begin()
        for part in self.prefills:
            part.kill()
        wait_until(lambda: len(load.errors) >= STREAMS or load.faults, 'requests that end with an error', FAILOVER_S)
        for part in self.decodes + [self.router]:
            self.assertFalse(part.is_ready(), part.name)
        for part in self.prefills:
            part.start(wait=False)
        self.finish(load, errors=1 << 30)
        for answer in load.errors:
            self.assertLess(answer.seconds, FAILOVER_S, answer)

    def test_a_server_of_the_pool_is_killed_and_comes_back(self):
        load = self.begin()
        self.cluster.kill('server-1')
        load.wait_for(2 * STREAMS)
        self.cluster.start('server-1')
        self.finish(load)

    def test_the_controller_is_killed_and_comes_back(self):
        load = self.begin()
        self.cluster.kill('controller')
        load.wait_for(2 * STREAMS)
        self.cluster.start('controller')
        self.finish(load)

    def test_restarts_leave_nothing_behind(self):
        """Descriptors and rings of those who have seen five of their peers come and go."""
        load = self.begin()
        victims, witnesses = (self.prefills[0], self.decodes[0]), (self.prefills[1], self.decodes[1], self.router)
        before = None
        for _ in range(6):
            for part in victims:
                part.kill()
            for part in victims:
                part.start(wait=False)
            self.wait_whole()
            load.wait_for(STREAMS)
            # The first one is left out: what is made once, like pools of threads, is there after it.
            before = before or {part.name: (part.descriptors(), part.shared_kib()) for part in witnesses}
        self.finish(load)
        for part in witnesses:
            descriptors, shared_kib = before[part.name]
            wait_until(lambda part=part, most=descriptors + 4: part.descriptors() <= most,
                       f'{part.name} with about {descriptors} descriptors')
            self.assertLessEqual(part.shared_kib(), shared_kib * 1.2 + 4096, part.name)


if __name__ == '__main__':
    unittest.main()
