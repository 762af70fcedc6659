"""What tests of vLLM's connector share: a cluster, engines on it, and prompts. Imported, it puts fake_vllm in vLLM's place."""
import unittest

import fake_vllm
from harness import Cluster

fake_vllm.install()
BLOCK = fake_vllm.BLOCK


class VllmCase(unittest.TestCase):
    """A class of tests has one cluster of two servers; engines close with their test."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(servers=2, dram='128MiB')
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.stop)

    def engine(self, **options):
        engine = fake_vllm.Engine(self.cluster.address, **options)
        self.addCleanup(engine.close)
        return engine

    @staticmethod
    def prompt(seed, tokens=5 * BLOCK + 3):
        return [(seed * 1000 + i * 31) % 1000000 for i in range(tokens)]
