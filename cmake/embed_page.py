#!/usr/bin/env python3
"""Makes a C++ source of a page: its text, and the Content-Security-Policy that allows its own script and style alone.

    embed_page.py PAGE.html HEADER NAMESPACE OUT.cc      HEADER declares kPageHtml and kPagePolicy in NAMESPACE
"""
import base64
import hashlib
import re
import sys

DELIMITER = 'page'


def source_of(text, element):
    """What the policy says of the page's one <script> or <style>: nothing runs that is not this very text."""
    (inner,) = re.findall(r'<%s>(.*?)</%s>' % (element, element), text, re.S)
    return "'sha256-%s'" % base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()


def main(page, header, namespace, out):
    with open(page, encoding='utf-8', newline='') as file:
        text = file.read()
    assert ')%s"' % DELIMITER not in text, 'the page holds the end of a raw string'
    policy = ("default-src 'none'; script-src %s; style-src %s; connect-src 'self'; img-src data:; base-uri 'none'; "
              "form-action 'none'; frame-ancestors 'none'" % (source_of(text, 'script'), source_of(text, 'style')))
    with open(out, 'w', encoding='utf-8', newline='') as file:
        file.write('// Made of page.html by cmake/embed_page.py.\n'
                   '#include "%s"\n\nnamespace %s {\n\n'
                   'const std::string_view kPageHtml = R"%s(%s)%s";\n\n'
                   'const std::string_view kPagePolicy = "%s";\n\n'
                   '}  // namespace %s\n' % (header, namespace, DELIMITER, text, DELIMITER, policy, namespace))


if __name__ == '__main__':
    main(*sys.argv[1:])
