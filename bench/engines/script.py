"""Shared by the scripts in this folder: options, and the document from which ems-bench engines judges their gates."""
import argparse
import json
import sys


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def run(description, measure, gates, arguments=(), about=None):
    """Measures as the command line says, prints and writes the figures and judges `gates` where that is asked for.

    `measure(quick)` returns {name: number}. A gate is (name of a figure, '<=' or '>=', bound, 'exact' or 'timed'); exact ones
    hold whatever the machine is doing, so one that fails is exit code 1 without --gate, too.
    `arguments`: (flag, options of argparse) of a script that has more of them: then it is `measure(options)`. `about(options)`:
    texts that say where it ran, printed first and written beside the figures.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument('--gate', action='store_true', help='check the targets of EMS; exit code 1 if a gate fails')
    parser.add_argument('--quick', action='store_true', help='seconds only: does it work, not how fast it is')
    parser.add_argument('--json', metavar='FILE', help='figures and gates, as ems-bench engines reads them')
    for flag, more in arguments:
        parser.add_argument(flag, **more)
    options = parser.parse_args()
    texts = about(options) if about else {}
    for name, text in texts.items():
        print(f'{name}: {text}', flush=True)
    figures = measure(options) if arguments else measure(options.quick)
    for name, value in figures.items():
        print(f'{name:40} {value:10.2f}')
    if options.json:
        with open(options.json, 'w', encoding='utf-8') as file:
            json.dump({**({'about': texts} if texts else {}), 'figures': figures,
                       'gates': [dict(zip(('name', 'op', 'bound', 'kind'), gate)) for gate in gates]}, file, indent=1)
    failed = 0
    for name, sign, bound, kind in gates:
        if name not in figures and arguments:
            continue  # the options left it out
        passes = figures[name] <= bound if sign == '<=' else figures[name] >= bound
        failed += not passes and (options.gate or kind == 'exact')
        if options.gate:
            print(f'gate {name} {figures[name]:.3g} {sign} {bound} {"pass" if passes else "fail"}')
    sys.exit(1 if failed else 0)
