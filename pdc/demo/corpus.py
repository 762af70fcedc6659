"""The text that the demo model learns from: prose of the manual pages that some Debian packages ship.

Markup, tables, synopses and code are left out; what remains are paragraphs of English sentences. All of it is under free licences
(README.md). The same packages in the same versions give the same text.
"""
import glob
import gzip
import hashlib
import html
import os
import random
import re
import subprocess

PACKAGES = ('manpages', 'manpages-dev', 'git-man', 'systemd', 'coreutils', 'util-linux', 'iproute2', 'dpkg', 'dpkg-dev', 'apt',
            'e2fsprogs', 'passwd', 'procps', 'openssl', 'perl', 'gettext', 'grep', 'sed', 'tar', 'gzip', 'findutils', 'diffutils')
VALIDATION_PAGES = 40  # one page of so many is never learned from
BEGIN, END, USER, ASSISTANT, TURN_END = 256, 257, 259, 260, 261  # pdc/engine/tokenizer.h

SKIPPED_SECTIONS = re.compile(r'SYNOPSIS|SEE ALSO|AUTHORS?|COLOPHON|BUGS|REPORTING|COPYRIGHT|LIBRARY|NOTES$|ATTRIBUTES|VERSIONS|STANDARDS')
FONTS = {'B', 'I', 'R', 'SM', 'SB', 'BR', 'RB', 'BI', 'IB', 'IR', 'RI'}
BREAKS = {'PP', 'P', 'LP', 'TP', 'IP', 'HP', 'sp', 'RS', 'RE', 'TQ', 'br', 'SH', 'SS'}
LITERAL_BEGINS, LITERAL_ENDS = {'nf', 'EX', 'TS', 'de', 'ig'}, {'fi', 'EE', 'TE', '.'}
CHARACTERS = {'aq': "'", 'dq': '"', 'lq': '"', 'rq': '"', 'em': '--', 'en': '-', 'bu': '*', 'cq': "'", 'oq': "'", 'mi': '-', 'ha': '^',
              'ti': '~', 'rs': '/', 'ga': '`'}
QUESTIONS = ('What is {}?', 'What does {} do?', 'Tell me about {}.', 'Explain {}.')
COMMON = re.compile(r'\b(?:the|a|is|of|to|in|and|for|are|be|by|this|that|with|on|or)\b')


def plain(line):
    """A line of roff without its escapes."""
    line = re.sub(r'\\f(?:\[\w*\]|\(..|.)|\\s[-+]?\d|\\[&|^/,:%c]', '', line)
    line = re.sub(r'\\\*?\((..)|\\\[(\w+)\]', lambda m: CHARACTERS.get((m.group(1) or m.group(2)).lower(), '\\'), line)
    return line.replace('\\-', '-').replace("\\'", "'").replace('\\`', '`').replace('\\ ', ' ').replace('\\~', ' ')


def joined(macro, rest):
    """The arguments of a font macro as text: those of two letters alternate fonts and are one word."""
    words = [one[0] or one[1] for one in re.findall(r'"([^"]*)"?|(\S+)', rest)]
    return ('' if len(macro) == 2 and macro not in ('SM', 'SB') else ' ').join(words)


def is_prose(text):
    letters = sum(one.isalpha() or one == ' ' for one in text)
    return (70 <= len(text) <= 3000 and text.isascii() and '\\' not in text and text[0].isupper() and text[-1] == '.'
            and letters >= 0.9 * len(text) and len(COMMON.findall(text)) * 50 >= len(text))


def page_of(roff):
    """(name, summary, paragraphs) of a manual page in man's macros; None of others."""
    name, summary, section, paragraphs, words, literal, tag = '', '', '', [], [], False, False

    def flush():
        text = ' '.join(' '.join(words).split())
        words.clear()
        if text and section == 'NAME':
            return text.partition(' - ')[::2]
        if is_prose(text) and not SKIPPED_SECTIONS.match(section):
            paragraphs.append(text)
        return None

    for line in roff.replace('\\\n', '').split('\n'):
        macro, _, rest = line[1:].strip().partition(' ') if line[:1] in ('.', "'") else ('', '', line)
        if macro == 'Dd':
            return None
        if literal:
            literal = macro not in LITERAL_ENDS
            continue
        if macro in BREAKS or macro in LITERAL_BEGINS or (not macro and not line.strip()):
            found = flush()
            name, summary = found or (name, summary)
            literal, tag = macro in LITERAL_BEGINS, macro in ('TP', 'TQ')
            if macro == 'SH':
                section = plain(rest).strip('" ').upper()
        elif tag:
            tag = False  # the term that the next paragraph explains
        elif macro in FONTS:
            words.append(plain(joined(macro, rest)))
        elif not macro and line[:1] not in ('.', "'"):
            words.append(plain(line))
    flush()
    return (name.split(',')[0].strip(), summary.strip(), paragraphs) if paragraphs else None


def man_pages():
    """All pages of the packages: sorted, those that are links to others left out."""
    for package in PACKAGES:
        files = subprocess.run(['dpkg', '-L', package], check=True, stdout=subprocess.PIPE, text=True).stdout.split('\n')
        for path in sorted(one for one in files if re.fullmatch(r'/usr/share/man/man\d/.*\.gz', one)):
            if os.path.isfile(path) and not os.path.islink(path):
                with gzip.open(path, 'rt', encoding='utf-8', errors='replace') as file:
                    page = page_of(file.read())
                if page:
                    yield os.path.basename(path), page


def licences():
    for path in sorted(glob.glob('/usr/share/common-licenses/*')):
        if not os.path.islink(path):
            with open(path, encoding='utf-8', errors='replace') as file:
                texts = [' '.join(one.split()) for one in re.split(r'\n\s*\n', html.unescape(file.read()))]
            yield os.path.basename(path), ('', '', [one for one in texts if is_prose(one)])


def chat_of(name, summary, paragraphs, chance):
    """A question about the page and its answer, as the serving API's template makes a prompt of them."""
    answer = f'{summary[:1].upper()}{summary[1:].rstrip(".")}. {paragraphs[0]}'
    answer = answer[:answer.find('. ', 160) + 1] if answer.find('. ', 160) > 0 else answer
    if not re.fullmatch(r'[\w.-]{2,40}', name) or not summary.isascii() or '\\' in answer or len(answer) > 500:
        return []
    return [BEGIN, USER, *chance.choice(QUESTIONS).format(name).encode(), TURN_END, ASSISTANT, *answer.encode(), TURN_END]


class Corpus:
    """Tokens, and where a window of them may begin: `prose` and `chat` each are (tokens, starts)."""

    def __init__(self, seed, validation):
        chance, seen = random.Random(seed), set()
        self.prose, self.chat = ([], []), ([], [])
        pages = [*licences(), *man_pages()]
        chance.shuffle(pages)
        for file, (name, summary, paragraphs) in pages:
            paragraphs = [one for one in paragraphs if not (one in seen or seen.add(one))]
            held_out = int(hashlib.sha256(file.encode()).hexdigest(), 16) % VALIDATION_PAGES == 0
            if not paragraphs or held_out != validation:
                continue
            tokens, starts = self.prose
            for paragraph in paragraphs:
                starts.append(len(tokens))
                tokens += [*paragraph.encode(), ord('\n')]
            tokens[-1] = END
            chat = chat_of(name, summary, paragraphs, chance)
            if chat:
                self.chat[1].append(len(self.chat[0]))
                self.chat[0].extend(chat)

    def digest(self):
        return hashlib.sha256(repr((self.prose, self.chat)).encode()).hexdigest()


def words_in(text):
    """The words of a text as the tests of the demo model know them: lower case, without what surrounds them."""
    return [word for word in (one.strip(".,;:()\"'`*<>[]-").lower() for one in text.split()) if word]
