"""The fenced blocks of README and docs/, and blocks.txt, which says of those that walk_test.py does not run why."""
import dataclasses
import glob
import os
import re

from packages import SOURCE_DIR

HERE = os.path.dirname(os.path.abspath(__file__))
FENCE = re.compile(r'^( *)```(\w*)[^\n]*\n(.*?)^ *```', re.M | re.S)
LANGUAGES = ('sh', 'python', 'c', 'cpp', 'cmake', 'js', 'json', 'yaml')
# Of a block without a language, or of language text: what a reader would type.
COMMAND = re.compile(r'^(?:\$ |sudo )?(?:systemctl|emsctl|ems-\w+|mp-\w+|apt-get|curl|docker|kubectl|cmake|ninja|python3?|pip|(?:\./)?(?:deploy|tests|tools)/\S+)'
                     r' (?!.*(?::|%) )', re.M)
HOW = ('elsewhere', 'nightly', 'never')


@dataclasses.dataclass(frozen=True)
class Block:
    page: str
    language: str
    text: str


@dataclasses.dataclass(frozen=True)
class Rule:
    page: str
    language: str
    start: str  # what the block begins with; empty: each of this language
    how: str
    reason: str

    def holds_for(self, block):
        return (self.page, self.language) == (block.page, block.language) and block.text.startswith(self.start)


def blocks():
    """All of all pages, in their order."""
    found = []
    for path in [os.path.join(SOURCE_DIR, 'README.md'), *sorted(glob.glob(os.path.join(SOURCE_DIR, 'docs', '**', '*.md'), recursive=True))]:
        with open(path, encoding='utf-8') as file:
            for indent, language, text in FENCE.findall(file.read()):
                found.append(Block(os.path.relpath(path, SOURCE_DIR), language, re.sub('^' + indent, '', text, flags=re.M)))
    return found


def rules():
    found = []
    with open(os.path.join(HERE, 'blocks.txt'), encoding='utf-8') as file:
        for line in file:
            if line.strip() and not line.startswith('#'):
                page, language, start, how, reason = (part.strip() for part in line.split(' | '))
                found.append(Rule(page, language, '' if start == '*' else start, how, reason))
    return found


def rule_of(block, of):
    """The first of the rules `of` that holds for it, or None."""
    return next((rule for rule in of if rule.holds_for(block)), None)
