#!/usr/bin/env python3
"""Makes the corpus that prompt cleaning is tested with: broken, odd and ordinary texts with what the reference makes of
them. Needs ftfy 6.3.1 and regex, as in tools/oracle. Run from the repository root; the result is committed.

  python3 tools/text/make_cleaning_corpus.py [--seed N] [--out tests/data/text/cleaning.json]
"""
import argparse
import collections
import html
import html.entities
import json
import random
import unicodedata

import ftfy
import ftfy.badness
import ftfy.bad_codecs  # noqa: F401 (registers the lenient charsets)
import regex

CHARSETS = ["latin-1", "sloppy-windows-1252", "sloppy-windows-1251", "sloppy-windows-1250", "sloppy-windows-1253",
            "sloppy-windows-1254", "sloppy-windows-1257", "iso-8859-2", "macroman", "cp437"]
SENTENCES = [
    "a cat walks along the beach", "“quoted” — it’s ‘old’…", "le Café à la mode, où ça? Noël", "Straße über Öl",
    "¿qué año? ¡sí!", "zażółć gęślą jaźń", "žluťoučký kůň", "Ελληνικό κείμενο", "Привет, мир", "שלום", "السلام عليكم",
    "नमस्ते", "夜晚的城市街道,下着雨", "夕暮れの海辺", "고양이", "🐈 and 🦊🔥", "½ × ³ ±5°C €5 £3 ¥7", "Åland, Ørsted, þing",
    "ūžčėįš āēīū", "© 2024 Foo® Bar™", "às vezes, àquela hora, à quel point, voilà", "• „y“ ‚z‘ ‹a› «b»", "ığşç İ",
    "√ ≈ ∞ ∑ π", "│┌─┐ ░▒▓"]
# Each shows one rule.
CHOSEN = [
    "plain", "", " ", "&amp;amp;lt;b&amp;gt;", "a < b &amp; c", "x &amp; y\na < b\nx &amp; y", "this&not that", "&notit;",
    "&NTILDE;&ntilde;&nTILDE;&SZLIG;", "&#65;&#x42;&#67", "&#0;&#13;&#128;&#159;&#xD800;&#x110000;&#99999999999999999999;",
    "&#1;&#x7f;&#xFDD0;&#xFFFE;", "&#59;&#x3b;", "&#12ab;", "&#;&#x;&;&", "&CounterClockwiseContourIntegral;",
    "&acE;&NotEqualTilde;", "&eacute&copy2024", "&" + "a" * 40 + ";", "\u0080\u0085\u009f", "caf\u00e9\u0092s",
    "ﬁ ﬂ ﬀ ﬃ ﬄ ﬅ ﬆ Ǆ ǅ Ǉ ŉ Ĳ ĳ æ œ", "Ｆｕｌｌ　ｗｉｄｔｈ！ ｶﾞｷﾞ ﾡ ￦￡", "‘a’ “b” ‛c‟ ʼd", "a\r\nb\rc\u2028d\u2029e\u0085f",
    "\x1b[31mred\x1b[0m \x1b[1;2H \x1b[x\x1b[", "a\x00b\x07c\x0bd\x0ee\x1ff\x7fg\u206ah\ufeffi\ufff9j\ufffck", "\x1cab\x1d \x1e",
    "e\u0301 A\u030a \u1112\u1161\u11ab", "\u200b\u00ad\u200d\u202e\u2060", "a \u00a0\u1680\u2003\u3000 b", "Ã la mode", "fÃ cil",
    "Ã quele Ã s Ã  x", "â€œ like this â€\ufffd", "cafÃ? ou", "ï¿½ Ã©", "Ã", "Â", "Âme", "HÔTEL Ñ°", "voilÃ  le", "Â© 2024", "l'Ã®le",
    "Ð¿Ñ€Ð¸Ð²ÐµÑ‚", "РїСЂРёРІРµС‚", "в\u0402\u045a", "Ã¢â‚¬â„¢", "ÃƒÂ©", "√©t√©", "‚Äúa‚Äù", "Î•Î»Î»", "β€™", "ā€“", "ØŸØ¬", "à¤¨à¤®", "×²×³", "œ!", "°Ü°",
    "├⌐", "ΓÇÖ", "č", "(°ÒÓ°)", "¯\\_(ã\u0083\u0084)_/¯", "\u00ed\u00a0\u00bd\u00ed\u00b8\u0080", "\u00c0\u0080\u00c3\u00a9",
    "ð\u009f\u0098\u0080 ok", "ðŸ˜€ and ™ – ź", "日本 Ã© 語", "Ã©Ã© жук â€”", "Ё§ №5 µm", "\ud7ff\ue000\ufffd\U0010ffff"]


def clean(text, mend):
    if mend:
        text = ftfy.fix_text(text)
    text = html.unescape(html.unescape(text)).strip()
    return regex.sub(r"\s+", " ", text).strip()


def misread(rng, text):
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        text = text.encode().decode(rng.choice(CHARSETS))
        damage = rng.random()
        if damage < .15:
            text = text.replace("\xa0", " ")
        elif damage < .3:
            lost = "\ufffd" if damage < .25 else "?"
            text = "".join(lost if "\x80" <= c < "\xa0" else c for c in text)
    return text


def some(rng, text):
    a, b = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
    return text[a:b]


def reference(rng, names):
    name = rng.choice(names)
    return rng.choice(["&" + name, "&" + name.upper(), "&" + name.rstrip(";") + rng.choice(["", "x", "1;"]),
                       "&#%d;" % rng.randrange(0x3000), "&#x%x" % rng.randrange(0x11ffff)])


def draw(rng, units, names, assigned):
    kind = rng.randrange(6)
    if kind == 0:
        return kind, "".join(rng.choice(assigned) for _ in range(rng.randrange(1, 12)))
    if kind == 1:
        return kind, misread(rng, some(rng, rng.choice(SENTENCES)))
    if kind == 2:
        return kind, (some(rng, misread(rng, rng.choice(SENTENCES))) + rng.choice(["", " ", "\n"]) +
                      some(rng, rng.choice(SENTENCES)))
    if kind == 3:
        return kind, "".join(rng.choice(units) if rng.random() < .7 else rng.choice("abc XYZ.1\n")
                             for _ in range(rng.randrange(2, 9)))
    if kind == 4:
        return kind, "".join(reference(rng, names) for _ in range(rng.randrange(1, 4)))
    letters = "".join(chr(rng.choice([rng.randrange(0x80, 0x800), rng.randrange(0x800, 0xD7FF), rng.randrange(0x1F300, 0x1F700)]))
                      for _ in range(rng.randrange(1, 3)))
    return kind, rng.choice(["", "a", " "]) + misread(rng, letters) + rng.choice(["", "b", " c"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--out", default="tests/data/text/cleaning.json")
    parser.add_argument("--bytes", type=int, default=58000, help="size of the result at most")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    units = sorted({c for charset in CHARSETS for c in bytes(range(128, 256)).decode(charset)} | {"\ufffd"})
    names = sorted(html.entities.html5)
    assigned = [chr(c) for c in range(0x20000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    rows = []
    for text in CHOSEN:
        rows.append({"text": text, "ftfy": clean(text, True), "basic": clean(text, False)})
    size = sum(len(json.dumps(row)) + 2 for row in rows)
    # Few of each outcome of each kind, in turn, so that the rare ones get in.
    taken = collections.Counter()
    for _ in range(200000):
        kind, text = draw(rng, units, names, assigned)
        row = {"text": text, "ftfy": clean(text, True), "basic": clean(text, False)}
        match = ftfy.badness.BADNESS_RE.search(text)
        outcome = (kind, row["ftfy"] == row["basic"], match is not None, text == row["basic"])
        cost = len(json.dumps(row)) + 2
        if cost > 300 or taken[outcome] > min(taken.values(), default=0) + 12 or size + cost > arguments.bytes:
            continue
        taken[outcome] += 1
        size += cost
        rows.append(row)
    with open(arguments.out, "w", encoding="ascii") as out:
        out.write("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    print(len(rows), "texts,", size, "bytes,", dict(taken))


main()
