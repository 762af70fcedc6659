#!/usr/bin/env python3
"""How fast paged KV goes between a GPU and the pool, beside plain pinned copies of the same pages.

Everything in one run, on a cluster of its own: KV of three layouts is saved and loaded through the drop-in surface and through vLLM's
worker half, and loaded layer by layer beside products of matrices. Each loaded byte is compared on the device. `plain`: copies of the
same pieces, one torch copy each, between the device and pinned memory that is there already; `bulk`: the same bytes in pieces of 64 MiB.
Exit code 2 where torch or its device is missing. --device stand-in: on the CPU, whether it works and not how fast it is.
--gate checks the targets of EMS. Needs PYTHONPATH (the package), EMS_BIN (the daemons) and torch; docs/BENCHMARKS.md says how to
read it.
"""
import contextlib
import importlib
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..', 'tests', 'integrations', 'python'))

# pylint: disable=wrong-import-position
import numpy
import script

GIB = 1 << 30
# Name → layers, tensors a layer, tokens a page, heads (0: none), head size: bfloat16.
LAYOUTS = {
    'mha': (32, 2, 16, 8, 128),    # pages of 32 KiB: vLLM's usual
    'mla': (61, 1, 64, 0, 576),    # of 72 KiB: DeepSeek
    'large': (8, 2, 512, 16, 128),  # of 2 MiB
}
ROUNDS = 3
REPEATED_MAX = 5
PATHS = ('drop_in', 'vllm')
GATES = (('wrong_blocks', '<=', 0, 'exact'), ('layers_overlap', '>=', 0.8, 'timed'),
         *((f'{path}_{layout}_{way}_vs_plain', '>=', 0.8, 'timed') for path in PATHS for layout in LAYOUTS for way in ('load', 'save')))
MISSING = 2


class Incomplete(Exception):
    """A round in which the pool did not answer in time, as on a machine that has other work: a miss, and no figure."""


class Device:
    """The accelerator that tensors are on: torch.cuda, or what stands in for it."""

    def __init__(self, name):
        try:
            import torch  # pylint: disable=import-outside-toplevel
        except ImportError as error:
            self.refuse(f'torch is not installed ({error})')
        self.torch, self.is_real = torch, name != 'stand-in'
        if self.is_real:
            if not torch.cuda.is_available():
                self.refuse(f'torch {torch.__version__} sees no CUDA device')
            self.accelerator, self.device = torch.cuda, torch.device(name if ':' in name else 'cuda:0')
        else:
            import stand_in_device  # pylint: disable=import-outside-toplevel
            stand_in_device.install()
            self._stand_in, self.accelerator, self.device = stand_in_device, stand_in_device.Accelerator, torch.device('cpu')

    @staticmethod
    def refuse(why):
        print(f'device_copies: {why}; this needs torch with CUDA and a GPU. --device stand-in runs it on the CPU, to see whether it '
              'works', file=sys.stderr)
        sys.exit(MISSING)

    def made(self, tensor):
        return tensor if self.is_real else self._stand_in.on_device(tensor)

    def pinned(self, *shape):
        return self.torch.empty(shape, dtype=self.torch.bfloat16, pin_memory=True)

    def sync(self):
        self.accelerator.synchronize()

    def seconds(self, call):
        """Of a call and all that it gives to the device."""
        self.sync()
        begin = time.perf_counter()
        call()
        self.sync()
        return time.perf_counter() - begin


class Kv:
    """Paged KV of one layout: pages [0, blocks) are the source, those behind them where loads put them."""

    def __init__(self, device, layout, at_least):
        layers, self.each, self.page_tokens, heads, head = LAYOUTS[layout]
        page = (self.page_tokens, heads, head) if heads else (self.page_tokens, head)
        self.device, self.torch = device, device.torch
        self.page_bytes = int(numpy.prod(page)) * 2
        self.block_bytes = self.page_bytes * self.each * layers
        self.blocks = max(3, -(-at_least // self.block_bytes))
        self.bytes = self.blocks * self.block_bytes
        shape = (2 * self.blocks, *page)
        self.layers = [[self._made(shape) for _ in range(self.each)] for _ in range(layers)]
        # Whole blocks in an order of their own: an engine's pages are not neighbours.
        order = numpy.random.default_rng(7).permutation(self.blocks).tolist()
        self.sources, self.targets = order, [self.blocks + page for page in reversed(order)]

    def _made(self, shape):
        bits = self.torch.randint(-2**15, 2**15, shape, dtype=self.torch.int16, device=self.device.device)
        return self.device.made(bits.view(self.torch.bfloat16))

    @property
    def tensors(self):
        return [tensor for layer in self.layers for tensor in layer]

    def slots(self, pages):
        return [page * self.page_tokens + i for page in pages for i in range(self.page_tokens)]

    def clear(self):
        for tensor in self.tensors:
            tensor[self.blocks:].zero_()

    def wrong(self):
        """Blocks that are not what was saved; compared on the device."""
        torch = self.torch
        out_of, into = (torch.tensor(pages, device=self.device.device) for pages in (self.sources, self.targets))
        wrong = torch.zeros(self.blocks, dtype=torch.bool, device=self.device.device)
        for tensor in self.tensors:
            bits = tensor.view(torch.int16)
            wrong |= (bits[out_of] != bits[into]).flatten(1).any(1)
        return int(wrong.sum())

    def plain(self):
        """Seconds of (host to device, device to host), a copy for each page of each tensor."""
        count = min(self.blocks, max(1, GIB // 2 // self.block_bytes))
        host = [self.device.pinned(count, *tensor.shape[1:]) for tensor in self.tensors]

        def copy(is_load):
            for at in range(self.blocks):
                page, place = (self.targets if is_load else self.sources)[at], at % count
                for tensor, mine in zip(self.tensors, host):
                    to, source = (tensor[page], mine[place]) if is_load else (mine[place], tensor[page])
                    to.copy_(source, non_blocking=True)
        copy(True), copy(False)
        return tuple(statistics.median(self.device.seconds(lambda way=way: copy(way)) for _ in range(ROUNDS)) for way in (True, False))


def bulk(device, size):
    """GB/s of (host to device, device to host)."""
    host, far = device.pinned(size // 2), device.made(device.torch.empty(size // 2, dtype=device.torch.bfloat16, device=device.device))

    def copy(to, source):
        for _ in range(8):
            to.copy_(source, non_blocking=True)
    copy(far, host), copy(host, far)
    return tuple(8 * size / statistics.median(device.seconds(lambda pair=pair: copy(*pair)) for _ in range(ROUNDS)) / 1e9
                 for pair in ((far, host), (host, far)))


def memcpy(threads, size):
    """GB/s of host memory to host memory, of so many threads together."""
    pairs = [(numpy.zeros(size, numpy.uint8), numpy.ones(size, numpy.uint8)) for _ in range(threads)]

    def copy(to, source):
        for _ in range(4):
            numpy.copyto(to, source)

    def together():
        workers = [threading.Thread(target=copy, args=pair) for pair in pairs]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    together()
    taken = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        together()
        taken.append(time.perf_counter() - begin)
    return 4 * threads * size / statistics.median(taken) / 1e9


class DropIn:
    """The drop-in surface, second generation: a save is over when the pool has it."""

    def __init__(self, cluster, kv, layout):
        import ems  # pylint: disable=import-outside-toplevel
        os.environ['EMS_CONTROLLER'] = cluster.address
        self._ems, self._kv, self._option = ems, kv, ems.CcKvOption(timeout=30000)
        ems.Ems.init(ems.EmsConfig(cc_config_v1=ems.CcConfig_v1(rank_id=0, device_id=0, model_id=f'device-{layout}')))
        self._cc = ems.Ems.get_cc()
        self._cc.register_kvcache(kv.layers, order='NHD')

    def _move(self, call, pages, number):
        hashes = [number * self._kv.blocks + i for i in range(self._kv.blocks)]
        slots = self._kv.slots(pages)
        begin = time.perf_counter()
        result = call(slots, hashes, [self._kv.page_tokens] * self._kv.blocks, self._option)
        if result.success != self._kv.blocks:
            raise Incomplete(f'{result.success} of {result.total} blocks were moved')
        return time.perf_counter() - begin

    def save(self, number):
        """(seconds until the engine goes on, until the pool has all)"""
        taken = self._move(self._cc.save, self._kv.sources, number)
        return taken, taken

    def load(self, number):
        return self._move(self._cc.load, self._kv.targets, number)

    def close(self):
        self._ems.Ems.shutdown()


class Vllm:
    """The worker half of vLLM's connector: a step goes on when its blocks are in host memory."""

    def __init__(self, cluster, kv, layout):
        from ems.vllm_settings import Settings  # pylint: disable=import-outside-toplevel
        from ems.vllm_worker import WorkerHalf  # pylint: disable=import-outside-toplevel
        self._kv, self._step, self._void = kv, 0, 0
        self._half = WorkerHalf(Settings.of(SimpleNamespace(
            kv_transfer_config=SimpleNamespace(kv_connector_extra_config={
                'controller': cluster.address, 'timeout': 30, 'staging_bytes': 2 * kv.bytes}),
            parallel_config=SimpleNamespace(tensor_parallel_size=1, rank=0, pipeline_parallel_size=1),
            model_config=SimpleNamespace(model=f'device-{layout}', dtype='bfloat16'),
            cache_config=SimpleNamespace(block_size=kv.page_tokens, cache_dtype='auto'))))
        self._half.register_kv_caches({f'{i:03}.{part}': tensor for i, layer in enumerate(kv.layers) for part, tensor in
                                       enumerate(layer)}, 2 * kv.blocks)

    def _run(self, number, loads=(), saves=()):
        from ems.vllm_step import Step, Transfer  # pylint: disable=import-outside-toplevel
        self._step += 1
        names = [b'%d/%d' % (number, i) for i in range(self._kv.blocks)]
        self._half.start(Step(number=self._step, heard=self._step - 1, void=self._void, loads=Transfer(names if loads else [], list(loads)),
                              saves=Transfer(names if saves else [], list(saves))))

    def save(self, number):
        self._run(number, saves=self._kv.sources)
        begin = time.perf_counter()
        self._half.finish_saves()
        engine = time.perf_counter() - begin
        while self._half._under_way:
            self._half._queue.wait(1)
            self._half._drain()
        if self._half.skipped_blocks:
            skipped, self._half.skipped_blocks = self._half.skipped_blocks, 0
            raise Incomplete(f'{skipped} blocks were not saved')
        return engine, time.perf_counter() - begin

    def load(self, number):
        taken = self._kv.device.seconds(lambda: self._run(number, loads=self._kv.targets))
        if errors := self._half.load_errors():
            self._void = self._step
            raise Incomplete(f'{len(errors)} of {self._kv.blocks} blocks did not arrive')
        return taken

    def close(self):
        counts = self._half._queue.client.stats()
        print(f'vllm: {counts["one_sided"]} of {counts["gets"]} reads and look-ups without a server', flush=True)
        self._half.close()


def forget(cluster):
    """Removes all blocks. Servers then allocate their memory again, beside what is measured: so not between rounds."""
    import ems  # pylint: disable=import-outside-toplevel
    for left in reversed(range(REPEATED_MAX)):
        try:
            with ems.Client(cluster.address, timeout=30) as client:
                client.multi_remove([one.key for one in client.scan()])
            return
        except ems.errors.Error:
            if not left:
                raise


def cpu_ticks(pid):
    with open(f'/proc/{pid}/stat', encoding='utf-8') as file:
        return sum(int(field) for field in file.read().rsplit(')', 1)[1].split()[11:13])


def wait_for_memory(cluster):
    """Until the servers have allocated their memory again: for a fifth of a second they do nothing; for 15 s at most."""
    for _ in range(75):
        before = [cpu_ticks(server.pid) for server in cluster.servers]
        time.sleep(0.2)  # in which they work, or not
        if all(cpu_ticks(server.pid) - ticks <= 2 for server, ticks in zip(cluster.servers, before)):
            return


def moved(make, name, cluster, kv, layout, plain, buses, is_fresh=False):
    """Figures of one path: medians, the first round left out. is_fresh: blocks are removed after each round, so that servers give memory
    back and allocate it again while the next one is measured."""
    path = make(cluster, kv, layout)
    saves, loads, wrong, number = [], [], 0, 0
    try:
        while len(loads) < ROUNDS + 1:
            try:
                kv.device.sync()
                saved = path.save(number)
                kv.clear()
                kv.device.sync()
                loads.append(path.load(number))
                saves.append(saved)
                wrong += kv.wrong()
            except Incomplete as error:
                if number >= ROUNDS + REPEATED_MAX:
                    raise SystemExit(str(error)) from error
                print(f'{name} {layout}: a round is repeated: {error}', flush=True)
            number += 1
            if is_fresh:
                forget(cluster)
    finally:
        path.close()
        forget(cluster)
        wait_for_memory(cluster)
    engine, stored, load = (statistics.median(column) for column in (*zip(*saves[1:]), loads[1:]))
    what = f'{name}_{layout}'
    figures = {f'{what}_load_gb_per_s': kv.bytes / load / 1e9, f'{what}_save_gb_per_s': kv.bytes / engine / 1e9,
               f'{what}_load_vs_plain': plain[0] / load, f'{what}_save_vs_plain': plain[1] / engine,
               f'{what}_load_vs_bulk': kv.bytes / load / 1e9 / buses[0], f'{what}_save_vs_bulk': kv.bytes / engine / 1e9 / buses[1]}
    if stored > engine:
        figures[f'{what}_stored_gb_per_s'] = kv.bytes / stored / 1e9
    return figures, wrong


def layer_by_layer(cluster, kv):
    """A load layer by layer beside products of matrices, which take about as long; and how much of the shorter one is hidden."""
    import ems  # pylint: disable=import-outside-toplevel
    torch, device = kv.torch, kv.device
    layout = ems.DeviceKvLayout(kv.layers, staging_bytes=kv.bytes + kv.block_bytes)
    with ems.Client(cluster.address, timeout=30) as client:
        cache = ems.ContextCache(client, model='device-layers', kv_layout=layout.fingerprint, block_tokens=kv.page_tokens)
        keys = [cache.own_key(b'%d' % i) for i in range(kv.blocks)]
        saved = cache.save_paged(layout, keys, slot_mapping=kv.slots(kv.sources))
        if saved.stored != kv.blocks:
            raise SystemExit(f'{saved.stored} of {kv.blocks} blocks were stored')
        size = 4096 if device.is_real else 64
        one, other = (torch.randn(size, size, device=device.device).to(torch.bfloat16 if device.is_real else torch.float32)
                      for _ in range(2))
        products = 1

        def compute():
            for _ in range(products):
                torch.mm(one, other)

        def load(does_load, does_compute):
            under_way = cache.load_layers(layout, keys, slot_mapping=kv.slots(kv.targets)) if does_load else None
            for layer in range(layout.layers):
                if does_load and under_way.wait_layer(layer).missing:
                    raise SystemExit('blocks are missing')
                if does_compute:
                    compute()
            if does_load:
                under_way.result()

        def median(*what):
            return statistics.median(device.seconds(lambda: load(*what)) for _ in range(ROUNDS))
        load(True, True)
        alone = median(True, False)
        products = 20
        products = max(1, round(20 * alone / median(False, True)))
        kv.clear()
        compute_alone, both = median(False, True), median(True, True)
        wrong = kv.wrong()
    forget(cluster)
    return {'layers_load_ms': alone * 1e3, 'layers_compute_ms': compute_alone * 1e3, 'layers_both_ms': both * 1e3,
            'layers_load_gb_per_s': kv.bytes / alone / 1e9,
            'layers_overlap': (alone + compute_alone - both) / min(alone, compute_alone)}, wrong


def measure(options):
    device = Device(options.device)
    from cluster import Cluster  # pylint: disable=import-outside-toplevel
    size = options.bytes or (GIB if device.is_real and not options.quick else 24 << 20)
    figures, wrong = {}, 0
    threads = max(1, min(8, (os.cpu_count() or 2) // 2))
    figures['memcpy_gb_per_s'] = memcpy(1, min(size, 256 << 20))
    figures[f'memcpy_{threads}_threads_gb_per_s'] = memcpy(threads, min(size, 256 << 20))
    buses = bulk(device, min(size, 64 << 20))
    figures['bulk_host_to_device_gb_per_s'], figures['bulk_device_to_host_gb_per_s'] = buses
    for name, value in figures.items():
        print(f'{name}={value:.2f}', flush=True)
    with Cluster(servers=options.servers, dram=str(max(256 << 20, 8 * size // options.servers))) as cluster:
        for layout in options.layouts.split(','):
            kv = Kv(device, layout, size)
            plain = kv.plain()
            figures[f'plain_{layout}_host_to_device_gb_per_s'], figures[f'plain_{layout}_device_to_host_gb_per_s'] = (
                kv.bytes / seconds / 1e9 for seconds in plain)
            parts = [lambda name=name, make=make, kv=kv, plain=plain, layout=layout: moved(make, name, cluster, kv, layout, plain, buses)
                     for name, make in zip(PATHS, (DropIn, Vllm))]
            if layout == 'mha':
                parts.append(lambda kv=kv: layer_by_layer(cluster, kv))
            for part in parts:
                found, more = part()
                figures.update(found)
                wrong += more
                print(' '.join(f'{name}={value:.2f}' for name, value in found.items()), flush=True)
            if options.compare:
                for name, changed in VARIANTS.items():
                    for path, make in zip(PATHS, (DropIn, Vllm)):
                        with contextlib.ExitStack() as stack:
                            for change in changed:
                                stack.enter_context(mock.patch.object(*change()))
                            found, more = moved(make, path, cluster, kv, layout, plain, buses, is_fresh=name == 'fresh')
                        wrong += more
                        found = {f'{name}_{figure}': value for figure, value in found.items()}
                        figures.update(found)
                        print(' '.join(f'{figure}={value:.2f}' for figure, value in found.items()), flush=True)
            del kv, parts
    figures['wrong_blocks'] = wrong
    return figures


def _changed(module, cls, name, value):
    """What mock.patch.object takes, of a module that is imported only now."""
    owner = importlib.import_module(module)
    return getattr(owner, cls) if cls else owner, name, value


# What is compared with --compare: the name in front of its figures → what is other in the code.
VARIANTS = {
    'fresh': (),  # memory of the servers that is made while it is measured
    'rows': (lambda: _changed('ems.device_copies', '', 'DIRECT_BYTES', 1 << 40),),  # large pieces through memory of the device, too
    'two_copies': (lambda: _changed('ems.device_copies', 'StreamCopies', 'pin', lambda self, tensor: False),),  # saves from ordinary memory
}


def first_line(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=20).stdout.strip().split('\n')[0]
    except (OSError, subprocess.TimeoutExpired):
        return ''


def about(options):
    """Where this runs."""
    model = first_line('sh', '-c', "sed -n 's/^model name.*: //p' /proc/cpuinfo")
    gpu = first_line('nvidia-smi', '--query-gpu=name,driver_version', '--format=csv,noheader')
    torch = sys.modules.get('torch')
    if torch is None:
        Device(options.device)  # ends here where it is missing
        torch = sys.modules['torch']
    return {'machine': f'{platform.machine()}, {os.cpu_count()} cores, {model}', 'device': f'{options.device}, {gpu or "no GPU"}',
            'torch': torch.__version__, 'commit': os.environ.get('EMS_COMMIT') or first_line('git', '-C', HERE, 'rev-parse', 'HEAD'),
            'load average': ' '.join(f'{load:.2f}' for load in os.getloadavg())}


if __name__ == '__main__':
    script.run(__doc__, measure, GATES, (
        ('--device', {'default': 'cuda', 'help': 'cuda, cuda:1, …, or stand-in'}),
        ('--bytes', {'type': int, 'help': 'of KV in each layout, at least (1 GiB)'}),
        ('--servers', {'type': int, 'default': 2}),
        ('--compare', {'action': 'store_true', 'help': 'figures of other designs, too, without gates'}),
        ('--layouts', {'default': ','.join(LAYOUTS), 'help': 'some of them'})), about)
