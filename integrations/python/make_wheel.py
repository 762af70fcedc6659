#!/usr/bin/env python3
"""Packs a built package into a wheel for this Python and machine, with nothing but the standard library.

    integrations/python/make_wheel.py build/release/python [OUT_DIR [PLATFORM]]

PLATFORM: the platform tag of a wheel that runs elsewhere, too (deploy/make_portable.py).
"""
import base64
import hashlib
import os
import sys
import sysconfig
import zipfile


def main():
    if len(sys.argv) not in (2, 3, 4) or sys.argv[1] in ('-h', '--help'):
        print(__doc__.strip())
        return 0 if sys.argv[1:2] in (['-h'], ['--help']) else 2
    folder = sys.argv[1]
    out = sys.argv[2] if len(sys.argv) >= 3 else folder
    sys.path.insert(0, folder)
    import ems  # pylint: disable=import-outside-toplevel
    tag = f'cp{sys.version_info.major}{sys.version_info.minor}'
    platform = sys.argv[3] if len(sys.argv) == 4 else sysconfig.get_platform().replace('-', '_').replace('.', '_')
    module = '_ems' + sysconfig.get_config_var('EXT_SUFFIX')  # modules of other Pythons may lie beside it
    info = f'ems-{ems.__version__}.dist-info'
    files = {}
    for root, _, names in os.walk(os.path.join(folder, 'ems')):
        for name in sorted(names):
            if name.endswith(('.py', '.pyi', 'py.typed')) or name == module:
                path = os.path.join(root, name)
                with open(path, 'rb') as file:
                    files[os.path.relpath(path, folder)] = file.read()
    files[f'{info}/METADATA'] = (f'Metadata-Version: 2.1\nName: ems\nVersion: {ems.__version__}\nLicense: Apache-2.0\n'
                                 'Summary: elastic memory service: KV blocks of prompt prefixes, shared by a cluster\n').encode()
    files[f'{info}/WHEEL'] = (f'Wheel-Version: 1.0\nGenerator: make_wheel\nRoot-Is-Purelib: false\n'
                              f'Tag: {tag}-{tag}-{platform}\n').encode()
    record = ''
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()
        record += f'{path},sha256={digest},{len(data)}\n'
    files[f'{info}/RECORD'] = (record + f'{info}/RECORD,,\n').encode()
    wheel = os.path.join(out, f'ems-{ems.__version__}-{tag}-{tag}-{platform}.whl')
    with zipfile.ZipFile(wheel, 'w', zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    print(wheel)
    return 0


if __name__ == '__main__':
    sys.exit(main())
