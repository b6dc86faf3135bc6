#!/usr/bin/env python3
"""Converts the rules of Betterleaks (MIT) to betterleaks.tsv, the table of key forms that annals reads.

Usage: cargo info kingfisher-rules@3.0.1   # puts the crate into ~/.cargo/registry/cache
       tar xzf ~/.cargo/registry/cache/*/kingfisher-rules-3.0.1.crate
       python3 convert.py kingfisher-rules-3.0.1/generated/rules/betterleaks.yml > betterleaks.tsv
Needs PyYAML. A line: prefix, characters after it, least and greatest number of them, names of its rules.

A rule is taken if its secret begins with three or more fixed characters. The parts after them become one set of
characters with a length. A prefix of five or more characters that ends in a separator identifies the provider, so
that its length may differ by a third: providers change lengths. Rules that need a word before the secret are left
out: annals knows secrets by their names (detect/named.rs).
"""
import itertools
import re._constants as c
import re._parser as parser
import sys

import yaml

PREFIX_MIN, LENGTH_MIN, LENGTH_MAX, WAYS_MAX = 3, 14, 512, 64
ALNUM = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
# Prefixes that other values have, too.
COMMON = {"test_", "live_", "key_", "KEY", "cio", "cs_", "ext_", "sc_", "EXO", "CAIS", "Sk-", "SK-", "sK-"}
# Characters of which annals builds the runs that it searches.
RUN = ALNUM | set("_-+/=~.:@")


class Unsupported(Exception):
    pass


def both(letters, flags):
    return letters | {x.swapcase() for x in letters} if flags & c.SRE_FLAG_IGNORECASE else letters


def members(items):
    letters = set()
    for op, value in items:
        if op is c.LITERAL:
            letters.add(chr(value))
        elif op is c.RANGE:
            letters |= {chr(x) for x in range(value[0], min(value[1], 126) + 1)}
        elif op is c.CATEGORY and value is c.CATEGORY_DIGIT:
            letters |= set("0123456789")
        elif op is c.CATEGORY and value is c.CATEGORY_WORD:
            letters |= ALNUM | {"_"}
        else:
            raise Unsupported(op)
    return letters


def sequences(tree, flags):
    """Each alternative of a tree: a list of (characters, least, greatest)."""
    ways = [[]]
    for op, value in tree:
        if op is c.LITERAL:
            options = [[(both({chr(value)}, flags), 1, 1, chr(value))]]
        elif op is c.IN:
            options = [[(both(members(value), flags), 1, 1, None)]]
        elif op is c.AT or op in (c.ASSERT, c.ASSERT_NOT):
            continue
        elif op is c.SUBPATTERN:
            _, add, remove, inner = value
            options = sequences(inner, (flags | add) & ~remove)
        elif op is c.BRANCH:
            options = [way for branch in value[1] for way in sequences(branch, flags)]
        elif op in (c.MAX_REPEAT, c.MIN_REPEAT):
            least, most, inner = value
            most = LENGTH_MAX if most is c.MAXREPEAT else min(most, LENGTH_MAX)
            options = []
            for way in sequences(inner, flags):
                if len(way) == 1:
                    letters, low, high, _ = way[0]
                    options.append([(letters, low * least, min(high * most, LENGTH_MAX), None)])
                else:
                    letters = set().union(*(part[0] for part in way)) if way else set()
                    low, high = (sum(part[at] for part in way) for at in (1, 2))
                    options.append([(letters, low * least, min(high * most, LENGTH_MAX), None)])
        else:
            raise Unsupported(op)
        ways = [a + b for a, b in itertools.product(ways, options)]
        if len(ways) > WAYS_MAX:
            raise Unsupported("alternatives")
    return ways


def group(tree, number, flags):
    """The tree of a group, with the flags that hold there."""
    for op, value in tree:
        if op is c.SUBPATTERN:
            now = (flags | value[1]) & ~value[2]
            if value[0] == number:
                return value[3], now
            found = group(value[3], number, now)
        elif op is c.BRANCH:
            found = next((found for branch in value[1] if (found := group(branch, number, flags))), None)
        elif op in (c.MAX_REPEAT, c.MIN_REPEAT):
            found = group(value[2], number, flags)
        else:
            found = None
        if found:
            return found
    return None


def forms(pattern, secret_group):
    pattern = pattern.replace("\\z", "\\Z")
    # Python takes flags only at the beginning; `a(?i)b` means `a(?i:b)`.
    at = pattern.find("(?i)")
    if at > 0:
        pattern = pattern[:at] + "(?i:" + pattern[at + 4:] + ")"
    tree = parser.parse(pattern)
    flags = tree.state.flags
    tree, flags = group(tree, secret_group, flags) or (tree, flags)
    for way in sequences(tree, flags):
        prefix = [""]
        while way and (way[0][3] or len(way[0][0]) <= 5 and way[0][1] == way[0][2] == 1 and len(way) > 1):
            letters, _, _, as_written = way.pop(0)
            prefix = [p + x for p in prefix for x in ([as_written] if as_written else sorted(letters))]
            if len(prefix) > WAYS_MAX:
                raise Unsupported("prefixes")
        if not way:
            continue
        letters = set().union(*(part[0] for part in way)) & RUN
        least, most = (sum(part[at] for part in way) for at in (1, 2))
        for p in prefix:
            yield p, frozenset(letters), least, min(most, LENGTH_MAX)


def written(letters):
    """A set of characters, as ranges."""
    text, rest = "", set(letters)
    for first, last in ("AZ", "az", "09", "AF", "af", "27"):
        span = {chr(x) for x in range(ord(first), ord(last) + 1)}
        if span <= rest:
            text, rest = text + f"{first}-{last}", rest - span
    dash = "-" if "-" in rest else ""
    return text + "".join(sorted(rest - {"-"})) + dash


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        rules = yaml.load(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))["rules"]
    table, left = {}, 0
    for rule in rules:
        name = rule["id"].removeprefix("betterleaks.").rsplit(".", 1)[0]
        # Names of accounts and hosts, and keys that are published, are no secrets.
        words = ("id", "host", "name", "url", "email", "username", "connection", "pub", "public", "project-api-key")
        if any(f"-{word}-" in f"-{name}-" for word in words):
            left += 1
            continue
        try:
            found = list(forms(rule["pattern"], rule.get("betterleaks_secret_group") or 1))
        except (Unsupported, parser.error):
            left += 1
            continue
        taken = False
        for prefix, letters, least, most in found:
            ok = len(prefix) >= PREFIX_MIN and set(prefix) <= RUN and prefix[0] in ALNUM and prefix[-1] != "="
            if not ok or most < LENGTH_MIN or prefix.startswith(("http", "eyJ")) or len(letters) < 10:
                continue
            if prefix in COMMON:
                continue
            if len(prefix) >= 5 and prefix[-1] in "_-.":
                least, most = least * 2 // 3, min(most * 3 // 2, LENGTH_MAX)
            least = max(least, LENGTH_MIN)
            taken = True
            old = table.get(prefix)
            if old:
                letters, least, most = letters | old[0], min(least, old[1]), max(most, old[2])
            table[prefix] = letters, least, most, (old[3] if old else set()) | {name}
        left += not taken
    print(f"# Key forms of Betterleaks (MIT, LICENSE.betterleaks), by convert.py: {len(table)} prefixes.")
    print("# prefix\tcharacters\tleast\tgreatest\trules")
    for prefix, (letters, least, most, names) in sorted(table.items()):
        print(prefix, written(letters), least, most, ",".join(sorted(names)), sep="\t")
    print(f"{len(table)} prefixes; {left} of {len(rules)} rules left out", file=sys.stderr)


main()
