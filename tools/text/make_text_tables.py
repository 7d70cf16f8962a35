#!/usr/bin/env python3
"""Writes the character tables of stages/text from Python's standard library: HTML5's named character references and
the single-byte charsets. The build runs it.

  python3 tools/text/make_text_tables.py FOLDER
"""
import html.entities
import os
import sys

HEAD = "// Made by tools/text/make_text_tables.py.\n"
# The order of enum class Charset. With True, bytes that the charset leaves unassigned stand for the code point of the
# same number, and byte 0x1A for U+FFFD.
CHARSETS = [("latin-1", False), ("cp1252", True), ("cp1251", True), ("cp1250", True), ("cp1253", True), ("cp1254", True),
            ("cp1257", True), ("iso8859-2", False), ("mac-roman", False), ("cp437", False)]


def write(folder, name, text):
    with open(os.path.join(folder, name), "w", encoding="ascii") as out:
        out.write(text)


def html_table():
    rows = []
    for name, value in sorted(html.entities.html5.items()):
        points = [ord(c) for c in value] + [0]
        assert len(points) in (2, 3), name
        rows.append(f'    {{"{name}", {{0x{points[0]:X}, 0x{points[1]:X}}}}},\n')
    return (HEAD + '#include "stages/text/html_entity_table.h"\n\nnamespace latentd::stages {\nnamespace {\n\n'
            "constexpr HtmlEntity kEntities[] = {\n" + "".join(rows) +
            "};\n\n}  // namespace\n\nstd::span<const HtmlEntity> htmlEntities() { return kEntities; }\n\n"
            "}  // namespace latentd::stages\n")


def charset_table():
    bytes_of = {}
    for index, (charset, filled) in enumerate(CHARSETS):
        for byte in range(0x80, 0x100):
            character = bytes([byte]).decode(charset, "replace")
            if character == "\ufffd":
                assert filled, (charset, byte)
                character = chr(byte)
            row = bytes_of.setdefault(ord(character), [0] * len(CHARSETS))
            assert row[index] == 0, (charset, byte)
            row[index] = byte
        if filled:
            bytes_of.setdefault(0xFFFD, [0] * len(CHARSETS))[index] = 0x1A
    rows = []
    for point, row in sorted(bytes_of.items()):
        values = ", ".join(f"0x{b:02X}" if b else "0" for b in row)
        rows.append(f"    {{0x{point:04X}, {{{values}}}}},\n")
    return (HEAD + '#include "stages/text/single_byte_charsets.h"\n\nnamespace latentd::stages {\nnamespace {\n\n'
            "constexpr SingleByteRow kRows[] = {\n" + "".join(rows) +
            "};\n\n}  // namespace\n\nstd::span<const SingleByteRow> singleByteRows() { return kRows; }\n\n"
            "}  // namespace latentd::stages\n")


def main():
    folder = sys.argv[1]
    write(folder, "html_entity_table.cc", html_table())
    write(folder, "single_byte_table.cc", charset_table())


main()
