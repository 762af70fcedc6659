"""ems.ContextCache: prefix caching for an inference engine; ems.KvLayout: where an engine keeps its KV."""
import functools
from dataclasses import dataclass, field
from typing import List

from ems import _ems, tensors
from ems.errors import InvalidArgument


@dataclass
class LookupResult:
    """`leading_blocks`: what a load would find now. `keys`: of all full blocks."""
    leading_blocks: int
    keys: List[bytes] = field(repr=False)


@dataclass
class LoadResult:
    """`leading_blocks` arrived before the first that did not. `blocks`: bytes, None for a miss, or an ems.Error."""
    leading_blocks: int
    blocks: list = field(repr=False)


@dataclass
class SaveResult:
    """`stored` blocks were moved, `existing` were there. `blocks`: None, or an ems.Error."""
    stored: int
    existing: int
    blocks: list = field(repr=False)


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
    """

    def __init__(self, client, *, model, dtype='', kv_layout='', tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, lora='',
                 cache_salt='', multimodal_hashes=(), custom=(), block_tokens=128, hash='sha256', timeout=None,
                 durability=''):
        pairs = custom.items() if hasattr(custom, 'items') else custom
        self._client = client
        self._kv_layout = kv_layout
        self._hasher = _ems.BlockHasher(
            model=model, dtype=dtype, kv_layout=kv_layout, tp_rank=tp_rank, tp_size=tp_size, pp_rank=pp_rank,
            pp_size=pp_size, lora=lora, cache_salt=cache_salt, multimodal_hashes=list(multimodal_hashes),
            custom=[(str(name), str(value)) for name, value in pairs], hash=hash, block_tokens=block_tokens)
        self._native = _ems.ContextCache(client._native, block_tokens, timeout, durability)

    @property
    def block_tokens(self):
        return self._hasher.block_tokens

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

    def save(self, keys, values, *, timeout=None):
        """Stores the blocks that are not there yet. values[i] is memory, or a list of it."""
        return SaveResult(*self._native.save(keys, values, timeout))

    def load_paged(self, layout, keys, *, slot_mapping=None, runs=None, tokens=None, timeout=None):
        """Scatters blocks into the tensors of a KvLayout.

        Where block i lies: `runs[i]` is a list of (start slot, tokens), or for several layer groups a list of such
        lists; or `slot_mapping` is the slots token by token, `tokens` a block (this cache's block_tokens).
        Raises InvalidArgument when kv_layout is not the layout's fingerprint, or a slot would be written twice.
        """
        runs = self._runs(layout, keys, slot_mapping, runs, tokens)
        return LoadResult(*self._native.load_paged(layout._native, keys, runs, timeout))

    def save_paged(self, layout, keys, *, slot_mapping=None, runs=None, tokens=None, timeout=None):
        """Gathers blocks from the tensors of a KvLayout; arguments as load_paged's. A slot may be read twice."""
        runs = self._runs(layout, keys, slot_mapping, runs, tokens)
        return SaveResult(*self._native.save_paged(layout._native, keys, runs, timeout))

    def _runs(self, layout, keys, slot_mapping, runs, tokens):
        # Keys that do not name the layout would meet another layout's bytes of the same length.
        if self._kv_layout != layout.fingerprint:
            raise InvalidArgument(f'the cache has kv_layout "{self._kv_layout}", the layout is "{layout.fingerprint}"')
        if (runs is None) == (slot_mapping is None):
            raise ValueError('give either slot_mapping or runs')
        if runs is None:
            size = tokens or self.block_tokens
            if len(slot_mapping) != size * len(keys):
                raise ValueError(f'{len(keys)} blocks of {size} tokens, {len(slot_mapping)} slots')
            runs = [_joined(slot_mapping[i * size:(i + 1) * size]) for i in range(len(keys))]
        if len(runs) != len(keys):
            raise ValueError(f'{len(keys)} keys and runs for {len(runs)} blocks')
        runs = [block if block and not isinstance(block[0], tuple) else [block] for block in runs]
        for block in runs:
            if len(block) != layout.groups:
                raise ValueError(f'runs of {len(block)} layer groups, the layout has {layout.groups}')
        return runs

    # --- asyncio, on the client's threads

    async def alookup(self, tokens, *, timeout=None):
        return await self._client._run(self.lookup, tokens, timeout=timeout)

    async def aload(self, keys, buffers, *, timeout=None):
        return await self._client._run(self.load, keys, buffers, timeout=timeout)

    async def asave(self, keys, values, *, timeout=None):
        return await self._client._run(self.save, keys, values, timeout=timeout)

    async def aload_paged(self, layout, keys, **where):
        return await self._client._run(functools.partial(self.load_paged, layout, keys, **where))

    async def asave_paged(self, layout, keys, **where):
        return await self._client._run(functools.partial(self.save_paged, layout, keys, **where))

    def stats(self):
        """Counts since construction, as a dict."""
        return self._native.stats()


def _joined(slots):
    """Slots token by token → (start, tokens) runs."""
    runs = []
    for slot in map(int, slots):
        if runs and runs[-1][0] + runs[-1][1] == slot:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((slot, 1))
    return runs
