"""What tests of the prompt cache begin with: a model in a folder of their own and, if they want one, a pool."""
import os
import shutil
import tempfile
import unittest

import random_gguf
from cluster import Cluster

LAYERS = 2  # the benchmark has 8


class ModelCase(unittest.TestCase):
    """`folder`, ended with the class, and the model in it, `model`."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix='ems-llama-')
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.model = os.path.join(cls.folder, 'model.gguf')
        random_gguf.write(cls.model, layers=LAYERS)


class PoolCase(ModelCase):
    """And a cluster, for all tests of the class."""
    SERVERS = 1

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cluster = Cluster(servers=cls.SERVERS, dram='256MiB')
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.stop)

    def options(self, **more):
        """Of PromptCache.open."""
        return {'controller': self.cluster.address, 'lookupTimeoutMs': 5000, **more}
