"""KV events on the wire, as their contract says, from real daemons: frames, both encodings, gap, replay, present state."""
import os
import subprocess
import unittest

import msgpack
import zmq
from event_peer import END, STATE_NOW, EventTest, Wire, block, blocks_of
from harness import filled, until

import ems
from ems.kv_events import BlockNames, decode
from ems.vllm_tier import TierConnector

from cluster import BIN

MIB = 1 << 20


class KvEventsTest(EventTest):
    def test_frames_and_arrays(self):
        cluster, client = self.start('kv_events.topic=kv@node-7', 'kv_events.block_tokens=128')
        wire = Wire(self, cluster, b'kv@')
        topic, first, batch = wire.next()
        self.assertEqual(topic, b'kv@node-7')
        self.assertIsInstance(batch[0], float)
        self.assertEqual(batch[1:], [[], None], 'a heartbeat: ts, no events, no rank')
        client.put('a', b'1' * 1000)
        stored = wire.event(lambda event: event[0] == 'BlockStored')
        self.assertEqual(stored, ['BlockStored', [block('a')], None, [], 128, None, 'EMS_DRAM', None])
        client.remove('a')
        removed = wire.event(lambda event: event[0] == 'BlockRemoved')
        self.assertEqual(removed, ['BlockRemoved', [block('a')], 'EMS_DRAM'])
        self.assertGreater(wire.next()[1], first)

    def test_maps_in_an_array_and_numbers(self):
        cluster, client = self.start('kv_events.encoding=maps', 'kv_events.block_hash=int64')
        wire = Wire(self, cluster)
        self.assertEqual(wire.next()[2][1:], [[], None], 'the batch is an array here, too')
        number = int.from_bytes(block('a')[-8:], 'big')
        client.put('a', b'1' * 1000)
        self.assertEqual(wire.event(lambda event: event['type'] == 'BlockStored'), {
            'type': 'BlockStored', 'block_hashes': [number], 'parent_block_hash': None, 'token_ids': [], 'block_size': 0,
            'lora_id': None, 'medium': 'EMS_DRAM', 'lora_name': None})
        client.remove('a')
        self.assertEqual(wire.event(lambda event: event['type'] == 'BlockRemoved'),
                         {'type': 'BlockRemoved', 'block_hashes': [number], 'medium': 'EMS_DRAM'})
        state = wire.ask(STATE_NOW)[0][1]
        self.assertEqual(state[1], [{'type': 'AllBlocksCleared'}])

    def test_numbers_have_no_holes_and_a_missed_part_is_replayed(self):
        cluster, client = self.start()
        wire = Wire(self, cluster)
        first = wire.next()[1]
        for i in range(20):
            client.put(f'k{i}', filled(i, 1000))
        seen, last = {}, first
        while len(blocks_of(seen.items()).get('EMS_DRAM', ())) < 20:
            _, number, batch = wire.next()
            self.assertEqual(number, last + 1)
            seen[number], last = batch, number
        middle = first + 1
        for delimited in (False, True):
            replayed = wire.ask(middle, delimited)
            self.assertEqual([number for number, _ in replayed[:last - first]], list(range(middle, last + 1)))
            for number, batch in replayed[:last - first]:
                self.assertEqual(batch, seen[number], 'the very same batch')

    def test_a_socket_of_kind_req_gets_the_first_message_of_an_answer_alone(self):
        cluster, client = self.start()
        client.put('a', b'1' * 1000)
        wire = Wire(self, cluster)
        req = wire.asker(zmq.REQ)
        req.send((0).to_bytes(8, 'big'))
        number, payload = req.recv_multipart()
        self.assertGreater(int.from_bytes(number, 'big'), 0)
        self.assertEqual(decode(payload)[0][0], 'AllBlocksCleared')
        with self.assertRaises(zmq.ZMQError):
            req.recv_multipart(zmq.NOBLOCK)  # a REQ socket has to ask before it may hear more

    def test_who_asks_again_asks_anew(self):
        cluster, client = self.start()
        keys = [f'k{i}' for i in range(3000)]
        client.multi_put([(key, filled(key, 100)) for key in keys])
        asker = Wire(self, cluster).asker()
        for _ in range(10):
            asker.send(STATE_NOW)
        answer, ends = [], 0
        while ends == 0 or asker.poll(1000):
            number, payload = asker.recv_multipart()
            ends += number == END
            if number != END:
                answer.append((int.from_bytes(number, 'big'), msgpack.unpackb(payload)))
        self.assertLess(ends, 10, 'an answer that was under way goes on as the next one')
        self.assertEqual(blocks_of(answer), {'EMS_DRAM': {block(key) for key in keys}})

    def test_who_is_late_or_has_fallen_out_of_the_buffer_gets_the_state(self):
        cluster, client = self.start('kv_events.replay_batches=3')
        keys = [f'k{i}' for i in range(3000)]
        client.multi_put([(key, filled(key, 100)) for key in keys])
        client.multi_remove(keys[:100])
        wire = Wire(self, cluster)
        first = wire.next()[1]
        until(lambda: wire.next()[1] > first + 5, 20, 'batches have gone by')
        for start in (first, 0, STATE_NOW):
            answer = wire.ask(start)
            self.assertEqual(answer[0][1][1][0], ['AllBlocksCleared'])
            self.assertEqual(blocks_of(answer), {'EMS_DRAM': {block(key) for key in keys[100:]}})
            numbers = [number for number, _ in answer]
            self.assertEqual(numbers, sorted(numbers))
        self.assertGreaterEqual(cluster.metric('states'), 3)

    def test_store_evict_demote_fetch_delete(self):
        cluster, client = self.start('ssd.capacity_bytes=256MiB')
        follower = self.follow(cluster)
        follower.poll(1)
        keys = [f'k{i}' for i in range(120)]  # twice the memory
        for key in keys:
            client.put(key, filled(key, MIB), durability='ssd')
        names = {block(key) for key in keys}
        self.follow_until(follower, lambda: follower.blocks['EMS_SSD'] == names, 'all are on the SSD')
        self.assertLess(len(follower.blocks['EMS_DRAM']), 80)
        demoted = [key for key in keys if follower.has(block(key)) == 'EMS_SSD']
        self.assertGreater(len(demoted), 40)
        self.assertEqual(follower.has(block(keys[-1])), 'EMS_DRAM')
        self.assertEqual(client.get(demoted[0]), filled(demoted[0], MIB))
        self.follow_until(follower, lambda: follower.has(block(demoted[0])) == 'EMS_DRAM', 'fetched')
        client.remove(demoted[0])
        self.follow_until(follower, lambda: follower.has(block(demoted[0])) is None, 'deleted from both')
        self.assertEqual(follower.states, 1, 'the stream alone told all of it')

    def test_evicted_without_an_ssd_is_gone(self):
        cluster, client = self.start()
        follower = self.follow(cluster)
        keys = [f'k{i}' for i in range(100)]
        for key in keys:
            client.put(key, filled(key, MIB))
        self.follow_until(follower, lambda: follower.has(block(keys[-1])), 'stored')
        self.follow_until(follower, lambda: follower.blocks['EMS_DRAM'] == {
            block(key) for key in keys if client.exists(key)}, 'what it says is what there is')
        self.assertLess(len(follower.blocks['EMS_DRAM']), 70, 'evicted')
        self.assertEqual(follower.blocks['EMS_SSD'], set())

    def test_only_the_namespace_that_is_named(self):
        cluster, client = self.start('kv_events.name_space=chat')
        for name in ('chat', 'other'):
            subprocess.run([os.path.join(BIN, 'emsctl'), '--controller', cluster.address, 'namespace', 'create', name],
                           check=True, capture_output=True)
        chat, other = ems.Client(cluster.address, 'chat', timeout=10), ems.Client(cluster.address, 'other', timeout=10)
        self.addCleanup(chat.close)
        self.addCleanup(other.close)
        follower = self.follow(cluster)
        for i in range(10):
            other.put(f'o{i}', b'1' * 1000)
            client.put(f'd{i}', b'1' * 1000)
        until(lambda: chat.put('c', b'1' * 1000) is None, 10, 'stored')
        self.follow_until(follower, lambda: follower.blocks['EMS_DRAM'] == {block('c')}, 'chat alone')
        subprocess.run([os.path.join(BIN, 'emsctl'), '--controller', cluster.address, 'namespace', 'delete', 'chat'],
                       check=True, capture_output=True)
        self.follow_until(follower, lambda: not follower.blocks['EMS_DRAM'], 'gone with its namespace')

    def test_a_router_finds_the_blocks_of_a_connector(self):
        cluster, _ = self.start()
        follower = self.follow(cluster)
        view = memoryview(bytearray(filled('tier', 8 * 4096))).cast('B', (8, 4096))
        connector = TierConnector(view, {'model': 'm', 'dtype': 'bf16'}, controller=cluster.address, timeout=10)
        self.addCleanup(connector._queue.close)
        hashes = [bytes([i]) * 32 for i in range(8)]  # the engine's own

        class Job:
            job_id, keys, block_ids = 1, hashes, list(range(8))
        connector.submit_store(Job)
        until(lambda: connector.get_finished() == [(1, True)], 10, 'stored')
        names = BlockNames(model='m', dtype='bf16')
        self.follow_until(follower, lambda: all(follower.has(names.of_name(one)) for one in hashes), 'found')
        self.assertIsNone(follower.has(BlockNames(model='m', dtype='fp8').of_name(hashes[0])))

    def test_hashes_of_tokens_are_those_of_the_cache(self):
        cluster, client = self.start()
        names = BlockNames(model='m', block_tokens=16)
        cache = ems.ContextCache(client, model='m', block_tokens=16)
        self.addCleanup(getattr(cache, 'close', lambda: None))
        tokens = list(range(40))
        self.assertEqual(names.of_tokens(tokens), [names.of_key(key) for key in cache.hash_tokens(tokens)])
        self.assertEqual(len(names.of_tokens(tokens)), 2)


if __name__ == '__main__':
    unittest.main()
