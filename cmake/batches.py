#!/usr/bin/env python3
"""Divides the sources of one target into batches that compile as one translation unit each.

    batches.py ROOT OUT_FOLDER SIZE SOURCE…      sources relative to ROOT

Most of the time of a small C++ source goes into its headers; a batch parses them once. Two sources that declare the same
name for themselves (in an unnamed namespace, as a macro) never share a batch, so no source has to know of this. A source
goes into the first batch that has room for it and no such clash: an edit moves few sources between batches.
Writes OUT_FOLDER/batch_N.cc, untouched where nothing changed, and prints their paths, one a line.
"""
import os
import re
import sys

SPACE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.S)
DECLARED = [re.compile(pattern, re.M) for pattern in (
    r'\b(?:class|struct|enum(?: class)?|union|concept)\s+(\w+)',
    r'\busing\s+(\w+)\s*=',
    r'(?<![\w:.>])([A-Za-z_]\w*)\s*(?:\(|=|\{|\[|;)',  # functions, variables, constants: what stands before what follows a name
)]
UNNAMED = re.compile(r'\bnamespace\s*\{')


def private_names(text):
    """Names that `text` declares for its own translation unit. May name too many, never matters: a batch more."""
    code = SPACE.sub(' ', text)
    names = set(re.findall(r'^[ \t]*#[ \t]*define\s+(\w+)', code, re.M))
    for start in UNNAMED.finditer(code):
        depth, outline = 0, []
        for char in code[start.end() - 1:]:
            if char == '{':
                depth += 1
                if depth == 2:
                    outline.append('{;')
            elif char == '}':
                depth -= 1
                if depth == 0:
                    break
                if depth == 1:
                    outline.append('\n')
            elif depth == 1:
                outline.append(char)
        body = ''.join(outline)
        for pattern in DECLARED:
            names.update(pattern.findall(body))
    # Names of the language and of gtest stand before brackets too.
    return names - {'TEST', 'TEST_F', 'TEST_P', 'INSTANTIATE_TEST_SUITE_P', 'decltype', 'sizeof', 'noexcept', 'operator',
                    'static_assert', 'constexpr', 'explicit', 'override', 'const', 'nullptr', 'if', 'for', 'while', 'return'}


def batches(sources, texts, size):
    result = []
    for source in sources:
        names = private_names(texts[source])
        for batch in result:
            if len(batch['sources']) < size and not names & batch['names']:
                break
        else:
            batch = {'sources': [], 'names': set()}
            result.append(batch)
        batch['sources'].append(source)
        batch['names'] |= names
    return [batch['sources'] for batch in result]


def write_if_changed(path, text):
    if os.path.exists(path):
        with open(path, encoding='utf-8') as file:
            if file.read() == text:
                return
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text)


def main():
    root, out, size, sources = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
    texts = {}
    for source in sources:
        with open(os.path.join(root, source), encoding='utf-8') as file:
            texts[source] = file.read()
    os.makedirs(out, exist_ok=True)
    for number, batch in enumerate(batches(sources, texts, size)):
        path = os.path.join(out, f'batch_{number}.cc')
        text = ''.join(f'#include "{source}"\n' for source in batch)
        write_if_changed(path, text)
        print(path)


if __name__ == '__main__':
    main()
