"""KV events of a real server, decoded by the structs of engines: restated here, and their own where their sources are.

EMS_HOST_VLLM: vLLM of August 2026 or later; EMS_HOST_VLLM_OLDER: before June 2026; EMS_HOST_SGLANG, EMS_HOST_SGLANG_OLDER.
"""
import importlib.util
import os
import sys
import unittest
from typing import Optional, Union

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, '..', 'integrations', 'engines')]

# pylint: disable=wrong-import-position,too-few-public-methods
import msgspec_stand_in
import stand_ins
from event_peer import EventTest, Wire, block

from ems.kv_events import decode

msgspec = msgspec_stand_in.install()
Hash = Union[bytes, int]
NUMBER = int.from_bytes(block('a')[-8:], 'big')
FLAGS = {'arrays': ('kv_events.encoding=arrays',), 'maps': ('kv_events.encoding=maps',),
         'numbers': ('kv_events.encoding=arrays', 'kv_events.block_hash=int64')}
# Which release takes which form, and the folder of its sources.
RELEASES = {'vllm-2026-08': ('maps', 'EMS_HOST_VLLM', 'vllm/distributed/kv_events.py'),
            'vllm-2026-02': ('arrays', 'EMS_HOST_VLLM_OLDER', 'vllm/distributed/kv_events.py'),
            'sglang-2026-08': ('numbers', 'EMS_HOST_SGLANG', 'python/sglang/srt/disaggregation/kv_events.py'),
            'sglang-2026-02': ('numbers', 'EMS_HOST_SGLANG_OLDER', 'python/sglang/srt/disaggregation/kv_events.py')}


def batch_of(hash_type, is_array, *names):
    """A batch's struct: events with hashes of this type, as arrays or maps; `names`: of fields behind block_size and lora_id."""
    class Event(msgspec.Struct, array_like=is_array, tag=True):
        pass

    optional = {name: Optional[str] for name in names}
    stored = type('BlockStored', (Event,), {'__annotations__': {
        'block_hashes': list[hash_type], 'parent_block_hash': Optional[hash_type], 'token_ids': list[int], 'block_size': int,
        'lora_id': Optional[int], **optional}})
    removed = type('BlockRemoved', (Event,), {'__annotations__': {'block_hashes': list[hash_type], 'medium': Optional[str]}})
    cleared = type('AllBlocksCleared', (Event,), {})
    return type('KVEventBatch', (msgspec.Struct,), {'__annotations__': {
        'ts': float, 'events': list[Union[stored, removed, cleared]], 'rank': Optional[int]}, 'rank': None}, array_like=True)


RESTATED = {'vllm-2026-08': batch_of(Hash, False, 'medium', 'lora_name'),
            'vllm-2026-02': batch_of(Hash, True, 'medium', 'lora_name'),
            'sglang-2026-08': batch_of(int, True, 'medium'), 'sglang-2026-02': batch_of(int, True, 'medium')}


def own_struct(folder, path):
    """KVEventBatch of an engine's own file; what it imports beside msgspec and ZeroMQ is a stand-in."""
    for name in ('vllm', 'vllm.config', 'vllm.config.kv_events', 'vllm.logger', 'vllm.v1', 'vllm.v1.core',
                 'vllm.v1.core.kv_cache_utils', 'pydantic'):
        sys.modules.setdefault(name, stand_ins.StandIn(name))
    sys.modules['vllm.v1.core.kv_cache_utils'].ExternalBlockHash = Hash
    name = f'events_{abs(hash(folder))}'
    spec = importlib.util.spec_from_file_location(name, os.path.join(folder, path))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # there its annotations are looked up
    spec.loader.exec_module(module)
    return module.KVEventBatch


class KvEventsHostTest(EventTest):
    @classmethod
    def setUpClass(cls):
        cls.payloads = {}

    def payloads_of(self, form):
        """[payload] that have a block stored, and removed, and the present state."""
        if form not in self.payloads:
            cluster, client = self.start(*FLAGS[form])
            wire = Wire(self, cluster)
            wire.next()
            client.put('a', b'1' * 1000)
            payloads = [wire.payload_with(b'BlockStored')]
            client.remove('a')
            payloads.append(wire.payload_with(b'BlockRemoved'))
            asker = wire.asker()
            asker.send(b'\xff' * 8)
            payloads.append(asker.recv_multipart()[1])
            self.payloads[form] = payloads
        return self.payloads[form]

    def check(self, release, struct):
        form = RELEASES[release][0]
        stored, removed, state = (msgspec.msgpack.Decoder(type=struct).decode(one) for one in self.payloads_of(form))
        name = NUMBER if form == 'numbers' else block('a')
        [event] = stored.events
        self.assertEqual((type(event).__name__, event.block_hashes, event.medium), ('BlockStored', [name], 'EMS_DRAM'))
        [event] = removed.events
        self.assertEqual((type(event).__name__, event.block_hashes, event.medium), ('BlockRemoved', [name], 'EMS_DRAM'))
        self.assertEqual(type(state.events[0]).__name__, 'AllBlocksCleared')

    def test_each_release_decodes_its_form(self):
        for release, struct in RESTATED.items():
            with self.subTest(release):
                self.check(release, struct)

    def test_each_form_fits_some_release_and_is_read_by_ems_too(self):
        self.assertEqual({form for form, *_ in RELEASES.values()}, set(FLAGS))
        for form in FLAGS:
            with self.subTest(form):
                self.assertEqual([decode(one)[0][0] for one in self.payloads_of(form)],
                                 ['BlockStored', 'BlockRemoved', 'AllBlocksCleared'])

    @unittest.skipUnless(any(os.environ.get(variable) for _, variable, _ in RELEASES.values()), 'no sources of engines')
    def test_their_own_structs(self):
        for release, (_, variable, path) in RELEASES.items():
            if os.environ.get(variable):
                with self.subTest(release):
                    self.check(release, own_struct(os.environ[variable], path))


if __name__ == '__main__':
    unittest.main()
