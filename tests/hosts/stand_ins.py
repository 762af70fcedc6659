"""Modules of an engine from a folder of its sources, and stand-ins that do nothing for what they import beside."""
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types


class StandIn(types.ModuleType):
    """Has any name: of a class that takes anything, or of a function that returns None."""
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith('__'):
            raise AttributeError(name)
        made = type(name, (), {'__init__': lambda self, *_, **__: None}) if name[0].isupper() else lambda *_, **__: None
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, folder, real, roots):
        self._folder, self._real, self._roots = folder, real, roots

    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] not in self._roots:
            return None
        base = os.path.join(self._folder, *name.split('.'))
        for file, inside in ((f'{base}/__init__.py', [base]), (f'{base}.py', None)):
            if name in self._real and os.path.exists(file):
                return importlib.util.spec_from_file_location(name, file, submodule_search_locations=inside)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def install(folder, real, roots):
    """Once in a process. `real`: names of modules to be taken from `folder`; all others below `roots` are stand-ins."""
    sys.meta_path.insert(0, _Finder(folder, real, roots))
