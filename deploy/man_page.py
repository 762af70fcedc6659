"""Man pages from what a program says of itself: --help, the --help of each of its commands, and --help-config of a daemon."""
import re
import subprocess


def said(program, *arguments):
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout.strip('\n')


def commands(text):
    """Names of the commands that a --help lists; of one with an alias ("namespace, ns") the first."""
    listed = re.search(r'^Subcommands:\n(.*?)(?:\n\n|\Z)', text, re.M | re.S)
    return re.findall(r'^  ([a-z][a-z-]*)', listed.group(1), re.M) if listed else []


def footer(text):
    """What stands behind the list of commands in a program's --help: commands without an end of their own repeat it."""
    return re.split(r'^Subcommands:\n.*?(?:\n\n|\Z)', text, maxsplit=1, flags=re.M | re.S)[-1]


def literal(text):
    """`text` as it stands: roff has its own use of backslashes, and of dots and quotes that begin a line."""
    lines = [line.replace('\\', '\\e').replace('-', '\\-') for line in text.splitlines()]
    return '.EX\n' + ''.join(('\\&' if line[:1] in ('.', "'") else '') + line + '\n' for line in lines) + '.EE\n'


def man_page(program, name, section, version, summary):
    """The page of the program at the path `program`, which is run for it."""
    page = f'.TH {name.upper()} {section} "" "EMS {version}" "EMS"\n.SH NAME\n{name} \\- {summary}\n'

    def add(heading, words, end=None):
        nonlocal page
        text = said(program, *words, '--help')
        if end:
            text = text.removesuffix(end).rstrip('\n')
        page += f'.SH {heading}\n{literal(text)}'
        for command in commands(text):
            add(f'{name.upper()} {" ".join(words + [command]).upper()}', words + [command], end or footer(text))
        return text

    if '--help-config' in add('DESCRIPTION', []):
        page += f'.SH CONFIGURATION\n{literal(said(program, "--help-config"))}'
    return page
