"""Hooks of mkdocs.yml: README.md is the first page, links to what is not in docs/ become text, and anchors are those of GitHub."""
import os
import re

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..')
LINK = re.compile(r'(!?)\[([^\]]*)\]\(([^)\s]+)\)')


def anchor(heading, _separator):
    return re.sub(r'[^\w\- ]', '', heading.strip().lower()).replace(' ', '-')


def links_within(markdown, page):
    """Of a page, by its path from the root: links with paths from docs/, and the text of those that lead elsewhere."""
    def link(match):
        mark, text, target = match.groups()
        if re.match(r'[a-z]+:|#', target):
            return match.group()
        path = os.path.normpath(os.path.join(os.path.dirname(page), target))
        if not path.startswith('docs' + os.sep):
            return text
        here = os.path.dirname(page) if page.startswith('docs') else 'docs'
        return f'{mark}[{text}]({os.path.relpath(path, here)})'
    return LINK.sub(link, markdown)


def on_config(config):
    config['mdx_configs']['toc']['slugify'] = anchor
    return config


def on_files(files, config):
    from mkdocs.structure.files import File  # pylint: disable=import-outside-toplevel
    files.append(File('README.md', ROOT, config['site_dir'], config['use_directory_urls']))
    return files


def on_page_markdown(markdown, page, **_):
    path = page.file.src_path
    return links_within(markdown, path if path == 'README.md' else os.path.join('docs', path))
