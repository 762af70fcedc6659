"""The web site of the documents: each page is in its menu, links that lead out of docs/ become text, anchors are those that are checked."""
import os
import re
import sys
import unittest

SOURCE_DIR = os.environ.get('EMS_SOURCE_DIR', os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))
sys.path.insert(0, os.path.join(SOURCE_DIR, 'tools'))
import check_layers  # noqa: E402
import site_hooks  # noqa: E402


class SiteTest(unittest.TestCase):
    def test_the_menu_has_each_page_once(self):
        with open(os.path.join(SOURCE_DIR, 'mkdocs.yml'), encoding='utf-8') as file:
            menu = re.findall(r'- (\S+\.md)$', file.read(), re.M)
        docs = os.path.join(SOURCE_DIR, 'docs')
        pages = [os.path.relpath(os.path.join(folder, name), docs) for folder, _, names in os.walk(docs) for name in names if name.endswith('.md')]
        self.assertEqual(sorted(menu), sorted(['README.md', *pages]))

    def test_links_of_readme_and_of_pages(self):
        for page, text, shown in (
                ('README.md', '![a](docs/figures/a.svg) [b](docs/B.md#c) [d](LICENSE)', '![a](figures/a.svg) [b](B.md#c) d'),
                ('docs/engines/A.md', '[b](../B.md) [c](C.md) [d](../../tests/hosts) [e](#f)', '[b](../B.md) [c](C.md) d [e](#f)'),
                ('docs/A.md', '[x](https://x.org/y) [z](../proto/z.h)', '[x](https://x.org/y) z')):
            self.assertEqual(site_hooks.links_within(text, page), shown)

    def test_anchors_are_those_that_links_are_checked_against(self):
        for heading in ('With --peers', "The original SDK's interface", 'bench/engines/llama_cpp.py'):
            self.assertEqual({site_hooks.anchor(heading, '-')}, check_layers.anchors_of(f'## {heading}'))


if __name__ == '__main__':
    unittest.main()
