"""The message definitions inside a jaxlib wheel.

libjax_common.so carries the definition of each of its messages as a serialized FileDescriptorProto. This reads them
straight out of the library's bytes, needing neither protobuf nor an installed jaxlib:

    python tests/wire/jaxlib_descriptors.py 0.12.0.1                     all files
    python tests/wire/jaxlib_descriptors.py 0.12.0.1 xla.OpSharding      some messages, enums or services
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

LIBRARY = "jaxlib/libjax_common.so"

# The fields of a FileDescriptorProto and their wire types (0 varint, 2 length-delimited).
FILE_FIELDS = {1: 2, 2: 2, 3: 2, 4: 2, 5: 2, 6: 2, 7: 2, 8: 2, 9: 2, 10: 0, 11: 0, 12: 2, 14: 0, 15: 2}
FILE_START = re.compile(rb"\x0a(.)([a-z][\w/.\-]*\.proto)", re.DOTALL)
TYPES = [
    "?",
    "double",
    "float",
    "int64",
    "uint64",
    "int32",
    "fixed64",
    "fixed32",
    "bool",
    "string",
    "group",
    "message",
    "bytes",
    "uint32",
    "enum",
    "sfixed32",
    "sfixed64",
    "sint32",
    "sint64",
]


# ---- the wire format ----


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at` and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a varint of more than ten bytes")


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values of a message without fixed-size fields other than skipped ones."""
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = read_varint(data, at)
        elif wire == 2:
            size, at = read_varint(data, at)
            if at + size > len(data):
                raise ValueError("a field longer than its message")
            value, at = data[at : at + size], at + size
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"wire type {wire}")
        yield number, value


def group_fields(data: bytes) -> dict[int, list]:
    out: dict[int, list] = {}
    for number, value in read_fields(data):
        out.setdefault(number, []).append(value)
    return out


def text(fields: dict[int, list], number: int) -> str:
    return fields[number][-1].decode() if number in fields else ""


# ---- descriptors ----


@dataclass(frozen=True)
class Field:
    name: str
    type: str  # "int64"; the full name of a message or enum
    repeated: bool
    presence: bool  # proto3 `optional`
    oneof: str  # "" when in none


@dataclass
class Message:
    fields: dict[int, Field] = field(default_factory=dict)
    is_map_entry: bool = False


@dataclass
class Schema:
    """Everything by its full name, without a leading dot."""

    messages: dict[str, Message] = field(default_factory=dict)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    services: dict[str, dict[str, tuple]] = field(default_factory=dict)  # method -> (input, output, streams in, out)
    files: dict[str, list[str]] = field(default_factory=dict)  # what each file declares

    def add_file(self, data: bytes) -> None:
        fields = group_fields(data)
        package = text(fields, 2)
        prefix = package + "." if package else ""
        before = {*self.messages, *self.enums, *self.services}
        for message in fields.get(4, []):
            self._add_message(prefix, message)
        for enum in fields.get(5, []):
            self._add_enum(prefix, enum)
        for service in fields.get(6, []):
            self._add_service(prefix, service)
        self.files[text(fields, 1)] = sorted({*self.messages, *self.enums, *self.services} - before)

    def _add_message(self, prefix: str, data: bytes) -> None:
        fields = group_fields(data)
        name = prefix + text(fields, 1)
        oneofs = [text(group_fields(oneof), 1) for oneof in fields.get(8, [])]
        message = Message()
        for options in fields.get(7, []):
            message.is_map_entry = bool(group_fields(options).get(7, [0])[-1])
        for raw in fields.get(2, []):
            number, value = self._field(group_fields(raw), oneofs)
            message.fields[number] = value
        self.messages[name] = message
        for nested in fields.get(3, []):
            self._add_message(name + ".", nested)
        for enum in fields.get(4, []):
            self._add_enum(name + ".", enum)

    @staticmethod
    def _field(fields: dict[int, list], oneofs: list[str]) -> tuple[int, Field]:
        presence = bool(fields.get(17, [0])[-1])
        in_oneof = 9 in fields and not presence
        return fields[3][-1], Field(
            name=text(fields, 1),
            type=text(fields, 6).lstrip(".") or TYPES[fields[5][-1]],
            repeated=fields[4][-1] == 3,
            presence=presence,
            oneof=oneofs[fields[9][-1]] if in_oneof else "",
        )

    def _add_enum(self, prefix: str, data: bytes) -> None:
        fields = group_fields(data)
        values = {}
        for raw in fields.get(2, []):
            value = group_fields(raw)
            values[text(value, 1)] = value.get(2, [0])[-1]
        self.enums[prefix + text(fields, 1)] = values

    def _add_service(self, prefix: str, data: bytes) -> None:
        fields = group_fields(data)
        methods = {}
        for raw in fields.get(2, []):
            method = group_fields(raw)
            streams = (bool(method.get(5, [0])[-1]), bool(method.get(6, [0])[-1]))
            methods[text(method, 1)] = (text(method, 2).lstrip("."), text(method, 3).lstrip("."), *streams)
        self.services[prefix + text(fields, 1)] = methods

    def reachable(self, roots: list[str], stop: frozenset[str], left_out: set[tuple[str, str]]) -> set[str]:
        """Messages and enums that these need, looking neither into messages of `stop` nor at fields of `left_out`."""
        seen: set[str] = set()
        waiting = list(roots)
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in self.messages and name not in stop:
                fields = self.messages[name].fields.values()
                types = (f.type for f in fields if (name, f.name) not in left_out)
                waiting += [t for t in types if t in self.messages or t in self.enums]
        return seen


# ---- where they come from ----


def embedded_file(data: bytes, start: int) -> bytes | None:
    """The serialized FileDescriptorProto that begins there, if one does."""
    at, end, seen_name = start, start, False
    try:
        while True:
            tag, at = read_varint(data, at)
            if FILE_FIELDS.get(tag >> 3) != tag & 7 or (tag >> 3 == 1 and seen_name):
                break
            seen_name = True
            size, at = read_varint(data, at)
            if tag & 7 == 2:
                at += size
            if at > len(data):
                break
            end = at
    except (IndexError, ValueError):
        pass
    return data[start:end] if end > start else None


def schema_of_library(data: bytes) -> Schema:
    """All definitions in the bytes of a library."""
    files: dict[str, bytes] = {}
    for match in FILE_START.finditer(data):
        if match.group(1)[0] != len(match.group(2)):
            continue
        raw = embedded_file(data, match.start())
        name = match.group(2).decode()
        if raw is not None and len(raw) > len(files.get(name, b"")):
            files[name] = raw
    schema = Schema()
    for raw in files.values():
        try:
            Schema().add_file(raw)  # a name alone may look like the beginning of a file
        except (ValueError, KeyError, IndexError, UnicodeDecodeError, TypeError, AttributeError):
            continue
        schema.add_file(raw)
    return schema


def cache_folder() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parkway" / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def wheel(version: str) -> Path:
    """jaxlib's wheel of that version, downloaded once."""
    folder = cache_folder()

    def found() -> Path | None:
        return next(iter(sorted(folder.glob(f"jaxlib-{version}-*.whl"))), None)

    if (path := found()) is None:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--python-version=3.12", f"--dest={folder}", f"jaxlib=={version}"]
        subprocess.run(command, check=True)
        path = found()
    if path is None:
        raise FileNotFoundError(f"pip downloaded no wheel of jaxlib {version} to {folder}")
    return path


@functools.cache
def jaxlib_schema(version: str) -> Schema:
    with zipfile.ZipFile(wheel(version)) as archive:
        return schema_of_library(archive.read(LIBRARY))


def schema_of_descriptor_set(data: bytes) -> Schema:
    """What `protoc --descriptor_set_out` wrote."""
    schema = Schema()
    for number, raw in read_fields(data):
        if number == 1:
            schema.add_file(raw)
    return schema


def print_names(schema: Schema, names: list[str]) -> None:
    for name in names:
        if name in schema.messages:
            print(f"message {name}")
            for number, f in sorted(schema.messages[name].fields.items()):
                label = "repeated " if f.repeated else "optional " if f.presence else ""
                print(f"  {label}{f.type} {f.name} = {number}" + (f"  [{f.oneof}]" if f.oneof else ""))
        elif name in schema.enums:
            print(f"enum {name} {schema.enums[name]}")
        elif name in schema.services:
            print(f"service {name} {schema.services[name]}")
        else:
            sys.exit(f"{name}: there is no such message, enum or service")


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    schema = jaxlib_schema(sys.argv[1])
    if len(sys.argv) == 2:
        for name, declared in sorted(schema.files.items()):
            print(name, *declared, sep="\n  ")
    print_names(schema, sys.argv[2:])


if __name__ == "__main__":
    main()
