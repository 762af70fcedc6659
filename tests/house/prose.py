"""Finds words that an engineer must decode, in documents, help texts, log and error messages. RULES says why, and what to write."""
import ast
import os
import re

RULES = tuple((re.compile(pattern), reason, instead) for pattern, reason, instead in (
    (r'\bseats?\b', 'house word', 'connector'),
    (r'\banew\b', 'archaic', '"again", "from the start"'),
    (r'\bfalls by\b', 'says neither of what nor to what', '"is lower by", "saved"'),
    (r'\bpromise[sd]?\b', 'EMS guarantees or acknowledges, and says which', '"guarantee", "acknowledge"'),
    (r'(?<!\bhow many )\b(?:is|are|was|were|be) there\b(?! (?:is|are|a|an|any|no)\b)', 'says neither where nor in which state',
     '"exists", "is stored", "has arrived", "is available"'),
    (r'\b(?:go|goes|went|going) on\b', 'a phrasal verb where one word does', '"continue"'),
    (r'\bat once\b', 'means two things', '"immediately" or "at the same time", "concurrently"'),
    (r'\bwhat counts\b', 'says not for what', '"what matters is", or the rule itself'),
    (r'\bto and fro\b', 'archaic', '"in alternating order"'),
    (r'\bmade-up\b', 'colloquial', '"synthetic"'),
    (r'(?:^|(?<=[.:;] ))Who\b(?![^.]*\?)', 'a relative clause as the subject', '"A client that", "A server that"'),
))
SOURCES = ('common', 'proto', 'fabric', 'cluster', 'model_files', 'mp_controller', 'mp_server', 'mp_sdk', 'ems_context', 'ems_model',
           'pdc', 'integrations', 'tools', 'bench')
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def prose_of_markdown(text):
    """The text without code: blocks and `inline`, each line in its place."""
    text = re.sub(r'^( *)```.*?^ *```', lambda m: '\n' * m.group().count('\n'), text, flags=re.M | re.S)
    return re.sub(r'`[^`\n]*`', '`', text)


def literals_of_source(text):
    """String literals of C++ and Protobuf that are sentences, each line in its place: comments, names and formats alone are left out."""
    lines = (re.sub(r'(^|\s)//.*', '', line) for line in text.split('\n'))
    return '\n'.join(' | '.join(literal for literal in LITERAL.findall(line) if ' ' in literal) for line in lines)


def literals_of_python(text):
    """The same of Python, without docstrings."""
    tree, lines = ast.parse(text), [''] * (text.count('\n') + 1)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and ' ' in node.value and id(node) not in alone:
            lines[node.lineno - 1] += ' | ' + node.value.replace('\n', ' ')
    return '\n'.join(lines)


PROSE_OF = {'.md': prose_of_markdown, '.cc': literals_of_source, '.h': literals_of_source, '.proto': literals_of_source,
            '.py': literals_of_python}


def violations(text):
    """(line, word, reason, replacement) for each banned word of a text without code. A phrase may be broken over two lines."""
    found = []
    for pattern, reason, instead in RULES:
        for match in pattern.finditer(text.replace('\n', ' ')):
            found.append((text.count('\n', 0, match.start()) + 1, match.group().strip(), reason, instead))
    return sorted(found)


def texts(root):
    """(path, prose) of all that users read."""
    paths = ['README.md']
    for top in ('docs', *SOURCES):
        for folder, folders, names in os.walk(os.path.join(root, top)):
            folders[:] = [one for one in folders if one != 'node_modules']
            paths += [os.path.relpath(os.path.join(folder, name), root) for name in names if name != 'README.md' or top == 'docs']
    for path in sorted(paths):
        prose_of = PROSE_OF.get(os.path.splitext(path)[1])
        if prose_of:
            with open(os.path.join(root, path), encoding='utf-8') as file:
                yield path, prose_of(file.read())
