"""As much of msgspec as structs of events need, where it is not installed: it takes and refuses what msgspec does."""
import sys
import types
import typing

import msgpack

_NONE = type(None)


class ValidationError(Exception):
    pass


class Struct:
    """array_like: a list of the fields in their order; else a map. tag=True: the class's name, first or under "type"."""
    _options = {'array_like': False, 'tag': None}

    def __init_subclass__(cls, **options):
        cls._options = {**cls._options, **options}

    def __init__(self, **fields):
        self.__dict__.update(fields)

    @classmethod
    def tag(cls):
        return cls.__name__ if cls._options['tag'] is True else cls._options['tag']

    @classmethod
    def fields(cls):
        """[(name, type, has a default, default)], bases first."""
        hints = typing.get_type_hints(cls)
        names = [name for base in reversed(cls.__mro__) for name in base.__dict__.get('__annotations__', {})]
        return [(name, hints[name], hasattr(cls, name), getattr(cls, name, None)) for name in dict.fromkeys(names)]


def _tag_of(tree):
    if isinstance(tree, list) and tree:
        return tree[0]
    return tree.get('type') if isinstance(tree, dict) else None


def _struct(tree, cls):
    tag = cls.tag()
    if not isinstance(tree, list if cls._options['array_like'] else dict):
        raise ValidationError(f'{cls.__name__} as {type(tree).__name__}')
    if tag and _tag_of(tree) != tag:
        raise ValidationError(f'{_tag_of(tree)!r} for {tag}')
    values = {}
    for at, (name, wanted, has_default, default) in enumerate(cls.fields(), start=1 if tag else 0):
        if cls._options['array_like']:
            there, value = at < len(tree), tree[at] if at < len(tree) else None
        else:
            there, value = name in tree, tree.get(name)
        if not there and not has_default:
            raise ValidationError(f'{cls.__name__} without {name}')
        values[name] = convert(value, wanted) if there else default
    return cls(**values)


def convert(tree, wanted):
    """`tree`, what msgpack gives, as a value of the type `wanted`. Raises ValidationError."""
    if wanted is typing.Any:
        return tree
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        structs = [one for one in inner if isinstance(one, type) and issubclass(one, Struct)]
        for one in [one for one in structs if one.tag() == _tag_of(tree)] or [one for one in inner if one not in structs]:
            try:
                return convert(tree, one)
            except ValidationError:
                if structs:
                    raise
        raise ValidationError(f'{tree!r} as {wanted}')
    if origin is list:
        if not isinstance(tree, list):
            raise ValidationError(f'{tree!r} as {wanted}')
        return [convert(one, inner[0]) for one in tree]
    if origin is not None:  # dicts and tuples, which EMS does not send
        raise ValidationError(f'{wanted} is not known here')
    if isinstance(wanted, type) and issubclass(wanted, Struct):
        return _struct(tree, wanted)
    allowed = (int, float) if wanted is float else wanted or _NONE
    if not isinstance(tree, allowed) or isinstance(tree, bool):
        raise ValidationError(f'{tree!r} as {wanted}')
    return tree


class Decoder:
    def __init__(self, type):  # pylint: disable=redefined-builtin
        self._type = type

    def decode(self, payload):
        return convert(msgpack.unpackb(payload, strict_map_key=False), self._type)


def install():
    """msgspec, its own or this."""
    try:
        import msgspec  # pylint: disable=import-outside-toplevel
    except ImportError:
        msgspec = types.ModuleType('msgspec')
        msgspec.Struct, msgspec.ValidationError = Struct, ValidationError
        msgspec.msgpack = types.SimpleNamespace(Decoder=Decoder)
        sys.modules['msgspec'] = msgspec
    return msgspec
