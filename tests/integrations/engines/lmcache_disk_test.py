"""What LMCache stores beyond memory: the disk has its cap at every moment, over a restart too, and what it holds is found."""
import os
import unittest

from harness import Cluster, filled, until
from lmcache_loop import Loop, key

from ems.lmcache import EmsConnector

MIB = 1 << 20
CAP = 96 * MIB
SIZE = MIB


def disk_bytes(folder):
    """Allocated, as du counts."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(path, name)).st_blocks * 512
            except FileNotFoundError:
                pass  # it went meanwhile
    return total


class LmcacheDiskTest(unittest.TestCase):
    def test_disk_keeps_its_cap_at_every_moment_and_over_a_restart(self):
        flags = [f'ssd.capacity_bytes={CAP}', 'ssd.path={folder}/ssd']
        with Cluster(servers=1, dram='64MiB', server_flags=flags, controller_flags=['damping_ms=0']) as cluster:
            connector = EmsConnector(controller=cluster.address, timeout=20, durability='ssd')
            loop = Loop(connector)
            self.addCleanup(connector.close)
            self.addCleanup(loop.stop)
            folder = os.path.join(cluster.folder, 'ssd')
            stored = []
            for batch in range(20):
                keys = [key(batch * 8 + i) for i in range(8)]
                flags = loop.set(keys, [filled(k, SIZE) for k in keys])[2]
                stored += [k for k, flag in zip(keys, flags) if flag]
                self.assertLessEqual(disk_bytes(folder), CAP)
            self.assertGreater(len(stored) * SIZE, CAP, 'more than the disk may hold has gone through it')
            cluster.kill_servers()
            cluster.start_servers()
            self.assertLessEqual(disk_bytes(folder), CAP)
            until(lambda: loop.exists(stored[-1:])[0], 20, 'the pool answers again')
            buffers = [bytearray(SIZE) for _ in stored]
            found = loop.get(stored, buffers)[2]
            self.assertTrue(all(found[-8:]), 'the youngest survive')
            for k, buffer, flag in zip(stored, buffers, found):
                self.assertTrue(not flag or buffer == filled(k, SIZE))
            self.assertLessEqual(disk_bytes(folder), CAP)


if __name__ == '__main__':
    unittest.main()
