"""Messages of the control plane mean to other versions what they meant: a number never stands for another field, and nothing of the versions that speak the same wire is gone.

recorded/*.txt have a line for each field, value of an enum and call of a service, of the wire version in the file's name.
`control_fields_test.py --record NAME` writes recorded/NAME.txt from the .proto files of today: at a release, and never to make this test pass.
"""
import os
import re
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, 'recorded')
PROTO = os.path.join(HERE, '..', '..', 'proto')
FILES = ('controller.proto', 'model.proto')
SAME_WIRE = ('wire3.txt',)

TOKEN = re.compile(r'"[^"]*"|[A-Za-z_][\w.]*|\d+|[{}=;<>,()\[\]]')


def lines_of(text):
    """The lines that stand in recorded/*.txt, of the text of a .proto file."""
    text = re.sub(r'//[^\n]*|/\*.*?\*/', '', text, flags=re.S)
    tokens = TOKEN.findall(text)
    scope, lines, statement = [], [], []
    for token in tokens:
        if token == '{':
            words = [word for word in statement if word not in ('=',)]
            kind = words[0] if words else ''
            if kind == 'rpc':
                lines.append(call_of(scope, words))
            scope.append((kind, words[1] if len(words) > 1 and kind != 'rpc' else ''))
            statement = []
        elif token == '}':
            scope.pop()
            statement = []
        elif token == ';':
            line = line_of(scope, statement)
            if line:
                lines.append(line)
            statement = []
        else:
            statement.append(token)
    return [line for line in lines if line]


def name_of(scope, last):
    return '.'.join([name for kind, name in scope if kind in ('message', 'enum', 'service')] + [last])


def call_of(scope, words):
    return f'rpc {name_of(scope, words[1])} ' + ' '.join(word for word in words[2:] if word not in '()')


def line_of(scope, words):
    if not scope or not words:
        return ''
    inside = scope[-1][0]
    if words[0] == 'rpc':
        return call_of(scope, words)
    if words[0] in ('option', 'reserved', 'extensions'):
        return ''
    if inside == 'enum' and len(words) >= 3 and words[1] == '=':
        return f'enum {name_of(scope, words[0])} {words[2]}'
    if inside in ('message', 'oneof') and '=' in words:
        at = words.index('=')
        kind = ''.join(words[:at - 1]).replace('optional', '')
        return f'field {name_of(scope, words[at - 1])} {words[at + 1]} {kind}'
    return ''


def today():
    lines = []
    for name in FILES:
        with open(os.path.join(PROTO, name), encoding='utf-8') as file:
            lines += lines_of(file.read())
    return sorted(set(lines))


def number_of(line):
    """What a field or value of an enum goes by on the wire; None for a call, which goes by its name."""
    kind, name, number = line.split(' ')[:3]
    return None if kind == 'rpc' else (kind, name.rpartition('.')[0], number)


class ControlFieldsTest(unittest.TestCase):
    def recorded(self):
        for name in sorted(os.listdir(FOLDER)):
            if name.endswith('.txt'):
                with open(os.path.join(FOLDER, name), encoding='utf-8') as file:
                    lines = file.read().splitlines()
                self.assertGreater(len(lines), 50, name)
                yield name, lines

    def test_nothing_of_a_version_that_speaks_the_same_wire_is_gone(self):
        now = set(today())
        for name, lines in self.recorded():
            if name in SAME_WIRE:
                self.assertEqual([line for line in lines if line not in now], [], f'in {name}, and not, or otherwise, in proto/')

    def test_no_number_of_any_version_stands_for_something_else(self):
        now = {number_of(line): line for line in today() if number_of(line)}
        self.assertEqual(len([name for name, _ in self.recorded()]), 2)
        for name, lines in self.recorded():
            for line in lines:
                if number_of(line) in now:
                    self.assertEqual(now[number_of(line)], line, name)

    def test_no_number_stands_for_two_fields(self):
        by_number = {}
        for line in today():
            kind, name, number = line.split(' ')[:3]
            if kind == 'field':
                key = (name.rpartition('.')[0], number)
                self.assertNotIn(key, by_number, f'{name} and {by_number.get(key)}')
                by_number[key] = name

    def test_lines_are_those_of_a_proto_file(self):
        text = '''// a comment = 1;
        message A { string a = 1; repeated B b = 2; map<string, uint64> c = 3; oneof d { View e = 4; }
          message B { fixed64 f = 1 [deprecated = true]; } enum E { NONE = 0; } reserved 9; }
        service S { rpc Call(A) returns (stream B); rpc Other(A) returns (B) {} }'''
        self.assertEqual(lines_of(text), [
            'field A.a 1 string', 'field A.b 2 repeatedB', 'field A.c 3 map<string,uint64>', 'field A.e 4 View', 'field A.B.f 1 fixed64',
            'enum A.E.NONE 0', 'rpc S.Call A returns stream B', 'rpc S.Other A returns B'])


if __name__ == '__main__':
    if len(sys.argv) == 3 and sys.argv[1] == '--record':
        with open(os.path.join(FOLDER, sys.argv[2] + '.txt'), 'w', encoding='utf-8') as out:
            out.write('\n'.join(today()) + '\n')
    else:
        unittest.main()
