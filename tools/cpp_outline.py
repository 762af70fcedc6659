"""An outline of C++ sources, as far as tools/check_layers.py needs one: includes, functions, classes. Matches braces; no compiler."""
import os
import re


def folder_of(path):
    """The folder a source belongs to: internal/ is part of the folder that it is in."""
    return re.sub(r'/internal$', '', os.path.dirname(path))


def stem_of(path):
    """A header and its source are one file."""
    return re.sub(r'\.(h|cc)$', '', path)


def includes_of(text):
    """(line, header) of each #include."""
    for number, line in enumerate(text.split('\n'), 1):
        match = re.match(r'\s*#\s*include\s*[<"]([^">]+)[">]', line)
        if match:
            yield number, match.group(1)


_BLANKED = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-zA-Z_])\'(?:\\.|[^\'\\\n])+\'',
    re.S)


def blank_comments_and_texts(text):
    """The code alone: comments and literals become spaces, lines stay where they are."""
    return _BLANKED.sub(lambda m: re.sub(r'[^\n]', ' ', m.group()), text)


def functions_of(code):
    """(name, first line, last line) of each function body that is not inside another, by matching braces."""
    code = re.sub(r'^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', lambda m: re.sub(r'[^\n]', ' ', m.group()), code, flags=re.M)
    scopes, head, head_line, line = [], '', 1, 1  # a scope: None, or (name, first line) of a function
    for position, char in enumerate(code):
        if char == '\n':
            line += 1
        if char == '{':
            inside = any(scope is not None for scope in scopes)
            name = None if inside else function_name(head)
            scopes.append((name, head_line) if name else None)
            head = ''
        elif char == '}':
            scope = scopes.pop() if scopes else None
            rest = code[position + 1:position + 200].lstrip()
            if scope and rest[:1] in (',', '{') and ':' in scope[0][1]:
                head, head_line = scope[0][1], scope[1]  # a brace of a constructor's initialiser list
            else:
                if scope:
                    yield scope[0][0], scope[1], line
                head = ''
        elif char == ';':
            head = ''
        else:
            if not head.strip():
                head, head_line = '', line
            head += char


_CLASS = re.compile(r'^(?:template\s*<.*>\s*)?(class|struct)\s+(?:(?:alignas\([^)]*\)|\[\[.*?\]\]|[A-Z][A-Z0-9_]+)\s+)*'
                    r'([\w:]+)(?:\s+final)?\s*(?::[^:].*)?$')
_NOT_A_FUNCTION = re.compile(r'^(using|friend|static_assert|typedef|enum|class|struct|union)\b|=\s*(default|delete)\s*$')


def classes_of(code):
    """(name, line, public functions, private ones) of each class, by its declarations. Constructors, destructors, assignments and
    accessors (`uint64_t size_bytes() const { … }`, by their name: deeds begin with a capital) do not count."""
    code = re.sub(r'^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', lambda m: re.sub(r'[^\n]', ' ', m.group()), code, flags=re.M)
    scopes, head, line, found = [], '', 1, []  # a scope: None, or [name, line, access, public, private] of a class

    def declare(text, has_body):
        scope = scopes[-1] if scopes else None
        flat = ' '.join(text.split())
        if not scope or '(' not in flat or _NOT_A_FUNCTION.search(flat):
            return
        before = flat.split('(')[0]
        name = re.search(r'([~\w]+)\s*$', before)
        if 'operator' in before or not name or name[1].lstrip('~') == scope[0].split('::')[-1] or re.search(r'=(?!=)', before):
            return
        if re.search(r'<[^<>]*$', before):
            return  # a member such as std::function<void(int)>
        if has_body and name[1][0].islower() and re.search(r'\(\s*\)\s*(const)?\s*(noexcept)?\s*(override|final)?$', flat) and 'const' in flat:
            return  # an accessor
        scope[3 if scope[2] == 'public' else 4] += 1

    for char in code:
        if char == '\n':
            line += 1
        if char == '{':
            match = _CLASS.match(' '.join(head.split()))
            if match:
                scopes.append([match[2], line, 'public' if match[1] == 'struct' else 'private', 0, 0])
            else:
                declare(head, True)
                scopes.append(None)
            head = ''
        elif char == '}':
            scope = scopes.pop() if scopes else None
            if scope:
                found.append((scope[0], scope[1], scope[3], scope[4]))
            head = ''
        elif char == ';':
            declare(head, False)
            head = ''
        elif char == ':' and re.search(r'(^|\s)(public|private|protected)\s*$', head) and scopes and scopes[-1]:
            scopes[-1][2] = 'public' if head.split()[-1] == 'public' else 'private'
            head = ''
        else:
            head += char
    return found


def function_name(head):
    """(name, head) when `head`, the text before a brace, declares a function; else None."""
    flat = ' '.join(head.split())
    if re.match(r'(template\s*<.*>\s*)?(inline )?(namespace|class|struct|union|enum|extern)\b', flat) or '(' not in flat:
        return None
    before = flat.split('(')[0]
    if re.search(r'(?<![=!<>])=(?!=)', before.replace('operator=', '')):
        return None
    match = re.search(r'((?:[\w~]+::)*(?:operator\S+|[\w~]+))\s*$', before)
    name = match.group(1) if match else '?'
    if name in ('TEST', 'TEST_F', 'TEST_P'):
        name = flat[:flat.find(')') + 1]
    return name, head
