"""The type stub says what the package has: the same names, methods and parameters."""
import ast
import inspect
import os
import unittest

import ems

STUB = os.path.join(os.path.dirname(ems.__file__), '__init__.pyi')


def parameters_of_stub(function):
    args = function.args
    names = [(arg.arg, 'plain') for arg in args.posonlyargs + args.args] + [(arg.arg, 'keyword') for arg in args.kwonlyargs]
    if args.kwarg:
        names.append((args.kwarg.arg, 'rest'))
    is_static = any(isinstance(d, ast.Name) and d.id == 'staticmethod' for d in function.decorator_list)
    return names if is_static else names[1:]


def parameters_of(function, is_static):
    kinds = {inspect.Parameter.KEYWORD_ONLY: 'keyword', inspect.Parameter.VAR_KEYWORD: 'rest'}
    names = [(p.name, kinds.get(p.kind, 'plain')) for p in inspect.signature(function).parameters.values()]
    return names if is_static else names[1:]


class StubTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(STUB, encoding='utf-8') as file:
            cls.tree = ast.parse(file.read())
        cls.classes = {node.name: node for node in cls.tree.body if isinstance(node, ast.ClassDef)}

    def test_the_stub_names_what_the_package_exports(self):
        imported = {alias.asname for node in self.tree.body if isinstance(node, ast.ImportFrom) for alias in node.names if alias.asname}
        self.assertEqual(set(ems.__all__), imported | set(self.classes))

    def test_methods_and_their_parameters_are_the_same(self):
        for name, node in self.classes.items():
            cls = getattr(ems, name)
            functions = {n.name: n for n in node.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}
            ours = {n: v for base in cls.__mro__ if base.__module__.split('.')[0] == 'ems' for n, v in vars(base).items()}
            public = {n for n, v in ours.items() if not n.startswith('_') and (callable(getattr(cls, n)) or
                                                                             isinstance(v, property))}
            self.assertEqual({f for f in functions if not f.startswith('_')}, public, name)
            for function, stub in functions.items():
                with self.subTest(f'{name}.{function}'):
                    there = inspect.getattr_static(cls, function)
                    if isinstance(there, property):
                        continue
                    self.assertEqual(inspect.iscoroutinefunction(there), isinstance(stub, ast.AsyncFunctionDef))
                    is_static = isinstance(there, staticmethod)
                    self.assertEqual(parameters_of_stub(stub), parameters_of(getattr(cls, function), is_static))


if __name__ == '__main__':
    unittest.main()
