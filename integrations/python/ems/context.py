"""ems.ContextCache: prefix caching for an inference engine; ems.KvLayout: where an engine keeps its KV."""
import functools
from dataclasses import dataclass, field
from typing import List, Optional

from ems import _ems, tensors
from ems.errors import Error, InvalidArgument
from ems.layer_load import LayerLoad, LoadResult


@dataclass
class LookupResult:
    """`leading_blocks`: what a load would find now. `keys`: of all full blocks."""
    leading_blocks: int
    keys: List[bytes] = field(repr=False)


@dataclass
class SaveResult:
    """`stored` blocks were moved, `existing` were there. `blocks`: None, or an ems.Error.

    `skipped` were left out for the save policy or another rank, or are a key that the call has already.
    """
    stored: int
    existing: int
    blocks: List[Optional[Error]] = field(repr=False)
    skipped: int = 0


class KvLayout:
    """Paged KV tensors: a list of layers, each a list of tensors [blocks, block tokens, heads, head size].

    Keeps the tensors. A slot is block * block tokens + token. `groups`: the layer group of each layer; layers of a group
    have the same paging (None: all in one). order='HND': [blocks, heads, block tokens, head size].
    """

    def __init__(self, layers, *, order='NHD', groups=None):
        if order not in ('NHD', 'HND'):
            raise ValueError(f'order is "{order}"; it may be NHD, HND')
        layers = [list(layer) for layer in layers]
        groups = [0] * len(layers) if groups is None else list(groups)
        if len(groups) != len(layers):
            raise ValueError(f'{len(layers)} layers and {len(groups)} groups')
        described = [(group, [tensors.paged(tensor, order) for tensor in layer]) for group, layer in zip(groups, layers)]
        kept = [tensors.kept(tensor) for layer in layers for tensor in layer]
        self._native = _ems.KvLayout(described, kept)
        self._fingerprint = self._native.fingerprint

    @property
    def layers(self):
        return self._native.layers

    @property
    def groups(self):
        return self._native.groups

    @property
    def fingerprint(self):
        """Equal texts, equal bytes of a block: belongs into ContextCache(kv_layout=…)."""
        return self._fingerprint

    def slots(self, group=0):
        return self._native.slots(group)

    def block_tokens(self, group=0):
        """Tokens of a page of the engine."""
        return self._native.block_tokens(group)

    def block_bytes(self, tokens, group=0):
        """Bytes of a cached block of so many tokens."""
        return self._native.block_bytes(group, tokens)


class ContextCache:
    """Blocks of prompt prefixes in the pool of `client`. Thread-safe.

    The fields of the domain must be equal before a block may be reused: model (a fingerprint of the weights), dtype,
    kv_layout, tp and pp ranks, lora, cache_salt, multimodal_hashes, custom (a dict, or pairs).

    shared_by_tp: all tp ranks hold the same bytes (MLA). They then share keys, of the blocks of a save_paged, which must
    be the same on all ranks, each rank stores every tp_size-th, and all ranks load all.
    save_policy: which phases are worth saving: 'prefill_only', 'final_response' (and the answer, once it is complete),
    'all' (and decoded tokens as their blocks fill).
    """

    def __init__(self, client, *, model, dtype='', kv_layout='', tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, lora='',
                 cache_salt='', multimodal_hashes=(), custom=(), block_tokens=128, hash='sha256', timeout=None,
                 durability='', shared_by_tp=False, save_policy='prefill_only'):
        pairs = custom.items() if hasattr(custom, 'items') else custom
        self._client = client
        self._kv_layout = kv_layout
        self._save_policy = save_policy
        self._ranks = tp_size if shared_by_tp else 1  # that share a save_paged
        self._native = _ems.ContextCache(
            client._native, block_tokens=block_tokens, timeout=timeout, durability=durability, tp_rank=tp_rank,
            tp_size=tp_size, shared_by_tp=shared_by_tp, save_policy=save_policy)
        self._hasher = _ems.BlockHasher(
            model=model, dtype=dtype, kv_layout=kv_layout, tp_rank=0 if shared_by_tp else tp_rank,
            tp_size=1 if shared_by_tp else tp_size, pp_rank=pp_rank, pp_size=pp_size, lora=lora, cache_salt=cache_salt,
            multimodal_hashes=list(multimodal_hashes), custom=[(str(name), str(value)) for name, value in pairs], hash=hash,
            block_tokens=block_tokens)

    @property
    def block_tokens(self):
        return self._hasher.block_tokens

    @property
    def save_policy(self):
        return self._save_policy

    def saves(self, phase):
        """Whether blocks of this phase ('prefill', 'decode', 'final') are stored: what is not need not be kept for it."""
        return self._native.saves(phase)

    def hash_tokens(self, tokens, parent=b''):
        """Keys of the full blocks of `tokens`, as bytes. `parent`: the key of the block before; b'' at the start."""
        return self._hasher.hash_tokens(tokens, parent)

    def own_key(self, name):
        """The key of a block that the engine has named itself."""
        return self._hasher.own_key(name)

    def lookup(self, tokens, *, timeout=None):
        """How many leading blocks of a prompt are there. One round trip a server, no block bytes."""
        leading, keys = self._native.lookup_tokens(self._hasher, tokens, timeout)
        return LookupResult(leading, keys)

    def lookup_keys(self, keys, *, timeout=None):
        """The same for keys; returns the number of leading blocks."""
        return self._native.lookup(keys, timeout)

    def load(self, keys, buffers, *, timeout=None):
        """Copies block i into buffers[i]: writable memory exactly as large as the block, or a list of it."""
        return LoadResult(*self._native.load(keys, buffers, timeout))

    def save(self, keys, values, *, phase='prefill', timeout=None):
        """Stores the blocks that are not there yet. values[i] is memory, or a list of it. `phase`: as save_paged's."""
        return SaveResult(*self._native.save(keys, values, phase, timeout))

    def load_paged(self, layout, keys, *, slot_mapping=None, runs=None, tokens=None, timeout=None):
        """Scatters blocks into the tensors of a KvLayout, or of a DeviceKvLayout.

        Where block i lies: `runs[i]` is a list of (start slot, tokens), or for several layer groups a list of such
        lists; or `slot_mapping` is the slots token by token, `tokens` a block (this cache's block_tokens), or for several
        layer groups a list of such mappings.
        Raises InvalidArgument when kv_layout is not the layout's fingerprint, or a slot would be written twice.
        """
        runs = self._runs(layout, keys, slot_mapping, runs, tokens)
        if not isinstance(layout, KvLayout):
            return layout._load_paged(self, keys, runs, timeout, self._start_layers)
        return LoadResult(*self._native.load_paged(layout._native, keys, runs, timeout))

    def save_paged(self, layout, keys, *, slot_mapping=None, runs=None, tokens=None, phase='prefill', timeout=None):
        """Gathers blocks from the tensors of a KvLayout; arguments as load_paged's. A slot may be read twice.

        `phase` says where the tokens come from, 'prefill', 'decode' or 'final' (the final response): what save_policy does
        not want is skipped.
        """
        runs = self._runs(layout, keys, slot_mapping, runs, tokens)

        def save(host, keys, runs, timeout):
            return SaveResult(*self._native.save_paged(host._native, keys, runs, phase, timeout))
        if not isinstance(layout, KvLayout):
            return layout._save_paged(keys, runs, timeout, self._ranks, save)
        return save(layout, keys, runs, timeout)

    def load_layers(self, layout, keys, *, slot_mapping=None, runs=None, tokens=None, timeout=None, layer_read_bytes=None):
        """Starts to load layer 0 of all blocks, then layer 1, …, and returns a LayerLoad at once; it does not wait.

        Arguments as load_paged's. The slots must be left alone until the load is over. `layer_read_bytes`: at least so
        much of a block is read at a time, in whole layers (None: 256 KiB); less makes the first layer come sooner and the
        last one later.
        """
        runs = self._runs(layout, keys, slot_mapping, runs, tokens)

        def start(host, keys, runs):
            return self._start_layers(host, keys, runs, timeout, layer_read_bytes)
        if not isinstance(layout, KvLayout):
            return layout._load_layers(self, keys, runs, start)
        return LayerLoad(self._client, start(layout, keys, runs))

    def _start_layers(self, host, keys, runs, timeout, layer_read_bytes=None):
        return _ems.load_layers(self._native, host._native, keys, runs, timeout, layer_read_bytes)

    def _runs(self, layout, keys, slot_mapping, runs, tokens):
        # Keys that do not name the layout would meet another layout's bytes of the same length.
        if self._kv_layout != layout.fingerprint:
            raise InvalidArgument(f'the cache has kv_layout "{self._kv_layout}", the layout is "{layout.fingerprint}"')
        if (runs is None) == (slot_mapping is None):
            raise ValueError('give either slot_mapping or runs')
        if runs is None:
            runs = self._mapped(layout, keys, slot_mapping, self.block_tokens if tokens is None else tokens)
        else:
            runs = [block if block and not isinstance(block[0], tuple) else [block] for block in runs]
        if len(runs) != len(keys):
            raise ValueError(f'{len(keys)} keys and runs for {len(runs)} blocks')
        for block in runs:
            if len(block) != layout.groups:
                raise ValueError(f'runs of {len(block)} layer groups, the layout has {layout.groups}')
        return runs

    @staticmethod
    def _mapped(layout, keys, slot_mapping, tokens):
        mappings = [slot_mapping] if layout.groups == 1 else list(slot_mapping)
        if len(mappings) != layout.groups:
            raise ValueError(f'slot mappings of {len(mappings)} layer groups, the layout has {layout.groups}')
        for mapping in mappings:
            if len(mapping) != tokens * len(keys):
                raise ValueError(f'{len(keys)} blocks of {tokens} tokens, {len(mapping)} slots')
        return [list(groups) for groups in zip(*(_ems.runs_of(mapping, tokens) for mapping in mappings))]

    # --- asyncio, on the client's threads

    async def alookup(self, tokens, *, timeout=None):
        return await self._client._run(self.lookup, tokens, timeout=timeout)

    async def aload(self, keys, buffers, *, timeout=None):
        return await self._client._run(self.load, keys, buffers, timeout=timeout)

    async def asave(self, keys, values, *, phase='prefill', timeout=None):
        return await self._client._run(self.save, keys, values, phase=phase, timeout=timeout)

    async def aload_paged(self, layout, keys, **where):
        return await self._client._run(_elsewhere(layout, functools.partial(self.load_paged, layout, keys, **where)))

    async def asave_paged(self, layout, keys, **where):
        return await self._client._run(_elsewhere(layout, functools.partial(self.save_paged, layout, keys, **where)))

    def stats(self):
        """Counts since construction, as a dict. The hit rate is lookup_hit_tokens / lookup_requested_tokens."""
        return self._native.stats()


def _elsewhere(layout, call):
    """The call for another thread: a device has streams, and which one is current is the thread's own."""
    return call if isinstance(layout, KvLayout) else layout._elsewhere(call)
