"""The connectors have the methods that the engines call, with their parameters in their order: signatures.json says which.

The engines' base classes are restatements, from the same contracts; with EMS_UPSTREAM_SGLANG or EMS_UPSTREAM_VLLM (folders that
are put in front of sys.path) the engines' own are taken.
"""
import importlib
import inspect
import json
import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

# pylint: disable=wrong-import-position
import fake_sglang
import fake_vllm

for folder, fake in (('EMS_UPSTREAM_SGLANG', fake_sglang), ('EMS_UPSTREAM_VLLM', fake_vllm)):
    if os.environ.get(folder):
        sys.path.insert(0, os.environ[folder])
    else:
        fake.install()


def class_of(name):
    module, attribute = name.rsplit('.', 1)
    return getattr(importlib.import_module(module), attribute)


def parameters_of(function):
    parameters = list(inspect.signature(function).parameters.values())[1:]  # without self
    return parameters


class SignaturesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(os.path.join(HERE, 'signatures.json'), encoding='utf-8') as file:
            cls.manifest = json.load(file)

    def test_methods_take_what_the_engines_give(self):
        for name, connector in self.manifest.items():
            cls = class_of(name)
            for method, wanted in connector['methods'].items():
                with self.subTest(f'{name}.{method}'):
                    parameters = parameters_of(getattr(cls, method))
                    rest = [p.name for p in parameters if p.kind is inspect.Parameter.VAR_KEYWORD]
                    plain = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
                    needed = [p.name for p in parameters if p.default is inspect.Parameter.empty and p.name in plain]
                    positional = [p for p in wanted if not p.startswith('**')]
                    self.assertEqual(plain[:len(positional)], positional)
                    self.assertEqual(set(needed) - set(positional), set(), 'more than the engine gives')
                    self.assertTrue(len(positional) == len(wanted) or rest)

    def test_no_abstract_method_is_left(self):
        for name, connector in self.manifest.items():
            cls = class_of(name)
            with self.subTest(name):
                self.assertFalse(inspect.isabstract(cls))
                bases = [base for base in cls.__mro__ if getattr(base, '__abstractmethods__', None)]
                self.assertEqual({method for base in bases for method in base.__abstractmethods__}, set(connector['abstract']))

    def test_each_rank_of_sglangs_configuration_is_known(self):
        import ems.sglang  # pylint: disable=import-outside-toplevel
        config = getattr(importlib.import_module(ems.sglang.BASE), 'HiCacheStorageConfig')
        ranks = {name for name in config.__dataclass_fields__ if name.endswith(('_rank', '_size'))}
        self.assertEqual(ranks - set(ems.sglang.RANKS), set(), 'these would keep pages apart, with a WARNING')

    def test_classes_are_found_by_their_names_as_pickle_does(self):
        for name in [*self.manifest, 'ems.vllm.EmsMetadata', 'ems.vllm.EmsHandshake']:
            cls = class_of(name)
            self.assertEqual(f'{cls.__module__}.{cls.__qualname__}', name)
            self.assertIs(class_of(name), cls)

    def test_missing_engine_is_told_with_what_to_install(self):
        for module, attribute, engine in (('ems.sglang', 'EmsHiCache', 'sglang'), ('ems.vllm', 'EmsTierManager', 'vllm'),
                                          ('ems.vllm', 'EmsConnector', 'vllm')):
            with self.subTest(attribute):
                code = (f'import sys; sys.modules["{engine}"] = None\nimport importlib\nm = importlib.import_module("{module}")\n'
                        f'try:\n    m.{attribute}\nexcept ImportError as e:\n    print(e)')
                ran = subprocess.run([sys.executable, '-B', '-c', code], capture_output=True, text=True, check=True)
                self.assertIn(f'pip install {engine}', ran.stdout)

    def test_package_loads_no_engine_by_itself(self):
        code = ('import sys, ems, ems.lmcache, ems.sglang, ems.vllm\n'
                'print([m for m in ("vllm", "sglang", "torch", "lmcache") if m in sys.modules])')
        ran = subprocess.run([sys.executable, '-B', '-c', code], capture_output=True, text=True, check=True)
        self.assertEqual(ran.stdout.strip(), '[]')

    def test_other_names_are_attribute_errors(self):
        import ems.sglang  # pylint: disable=import-outside-toplevel
        import ems.vllm  # pylint: disable=import-outside-toplevel
        for module in (ems.sglang, ems.vllm):
            with self.assertRaises(AttributeError):
                module.EmsNothing  # pylint: disable=pointless-statement


if __name__ == '__main__':
    unittest.main()
