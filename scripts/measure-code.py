#!/usr/bin/env python3
"""Measures the size and the structure of the workspace's Rust code.

    scripts/measure-code.py [--json | --check] [REPOSITORY]

The method. Results depend only on the files.

Files     All *.rs files of the packages that the workspace's Cargo.toml lists. A file is test code when it lies in
          `tests`, `benches` or `examples`, when it is named tests.rs, or when a `#[cfg(test)] mod` declares it; the package
          dipaco-tests is test code. Items under `#[cfg(test)]` are test code too.
Lines     A line is code when it has a token (a string over several lines is code), else doc when it has a doc comment
          (`///`, `//!`, `/** */`, `/*! */`), else a comment when it has another comment, else blank. Lines per package and
          lines a file count all files. The p90 is the nearest rank.
Below, test code does not count, except where it is said.
Functions Every `fn` with a name and a body, nested ones too. Its lines go from `fn` to the closing brace.
Tuples    Parameters of functions (with or without a body) whose type is a tuple, behind references, or whose pattern is one.
Types     Names of `struct`, `enum`, `union`, `trait` and `type`, without associated types. A name counts once for each
          package and each module that defines it.
Met       Of these names, those with two definitions that one file can name. A type without `pub` can be named in its own
          module and the modules below, `pub(super)` in the module above and all below it, `pub(crate)` in its package,
          and `pub` also in all packages that list its package as a dependency. A type inside of a function is private.
Prelude   Types with a name of Rust's prelude.
Comments  Lines inside function bodies with a comment that is no doc comment, also behind code, divided by all lines of code.
Circles   For each package a graph: a node is a file of src that is no crate root (lib.rs, main.rs, bin/), an arrow goes
          from a file to the file of the deepest module that a path beginning with `crate::` or `super::` names, in `use`
          or in an expression. Names that a crate root re-exports lead to the root, which is no node. Paths to a
          module's own children without such a beginning, and `mod` items, are no arrows. A circle is a strongly connected
          component of two nodes or more.
Floors    Of the same graph with all files of a top-level module taken together: each component is one floor above the highest
          component that it uses, and modules that use nothing are on floor 1. Shown for crates/train.
"""

import argparse
import collections
import itertools
import json
import math
import pathlib
import re
import sys
import tomllib

TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+)|(?P<newline>\n)
    |(?P<doc>///(?!/)[^\n]*|//![^\n]*)|(?P<comment>//[^\n]*)|(?P<block>/\*)
    |(?P<raw>(?:br|cr|r)(?P<hashes>\#*)".*?"(?P=hashes))
    |(?P<string>[bc]?"(?:\\.|[^"\\])*")
    |(?P<char>b?'(?:\\(?:u\{[^}]*\}|x..|.)|[^\\'\n])')
    |(?P<lifetime>'\w+)
    |(?P<word>(?:r\#)?\w+)
    |(?P<mark>->|=>|::|.)""",
    re.S | re.X,
)
OPEN = {"(": ")", "[": "]", "{": "}"}
CLOSE = set(OPEN.values())
TYPES = {"struct", "enum", "union", "trait", "type"}
LONG_FILE, LONG_FUNCTION = 400, 80
PRELUDE = set(
    "Option Some None Result Ok Err Box String ToString Vec ToOwned Send Sync Sized Unpin Copy Clone Drop Fn FnMut FnOnce "
    "AsRef AsMut From Into TryFrom TryInto FromIterator Default Eq Ord PartialEq PartialOrd Debug Hash Iterator IntoIterator "
    "Extend DoubleEndedIterator ExactSizeIterator AsyncFn AsyncFnMut AsyncFnOnce Future IntoFuture".split()
)

Token = collections.namedtuple("Token", "kind text line")


def block_end(text, start):
    """The end of a block comment, which may hold others."""
    depth = 0
    for found in re.compile(r"/\*|\*/").finditer(text, start):
        depth += 1 if found[0] == "/*" else -1
        if depth == 0:
            return found.end()
    return len(text)


class Source:
    """A file: its lines by kind, its tokens of code, and where comments and test code are."""

    def __init__(self, path, text, is_test):
        self.path, self.is_test = path, is_test
        self.tokens, self.comments, kinds = [], set(), {}
        at = line = 0
        while at < len(text):
            found = TOKEN.match(text, at)
            kind, piece = found.lastgroup, found[0]
            kind = "raw" if found["raw"] else kind
            if kind == "block":
                piece = text[at : block_end(text, at)]
                kind = "doc" if re.match(r"/\*(\*[^*/]|!)", piece) else "comment"
            at += len(piece)
            last = line + piece.count("\n")
            if kind in ("doc", "comment"):
                for number in range(line, last + 1):
                    kinds.setdefault(number, set()).add(kind)
                if kind == "comment":
                    self.comments.update(range(line, last + 1))
            elif kind not in ("space", "newline"):
                for number in range(line, last + 1):
                    kinds.setdefault(number, set()).add("code")
                self.tokens.append(Token(kind, piece, line))
            line = last
        self.lines = len(text.splitlines())
        self.kinds = [self.kind_of(kinds.get(number, ())) for number in range(self.lines)]
        self.ends = self.match_brackets()
        self.test_tokens = self.find_tests()

    @staticmethod
    def kind_of(kinds):
        return next((kind for kind in ("code", "doc", "comment") if kind in kinds), "blank")

    def match_brackets(self):
        """The index of the closing bracket for each opening one."""
        ends, open_at = {}, []
        for index, token in enumerate(self.tokens):
            if token.kind != "mark":
                continue
            if token.text in OPEN:
                open_at.append(index)
            elif token.text in CLOSE and open_at:
                ends[open_at.pop()] = index
        return ends

    def text(self, index):
        return self.tokens[index].text if 0 <= index < len(self.tokens) else ""

    def find_tests(self):
        """The ranges of tokens under `#[cfg(test)]`; notes the modules that such an attribute declares."""
        ranges, self.test_modules, index = [], [], 0
        while index < len(self.tokens):
            if self.text(index) == "#" and self.text(index + 1) == "[" and self.text(index + 2) == "cfg":
                end = self.ends.get(index + 1, index)
                words = [token.text for token in self.tokens[index:end]]
                if "test" in words and "not" not in words:
                    start, index = index, end + 1
                    while self.text(index) == "#":
                        index = self.ends.get(index + 1, index) + 1
                    item = index
                    # A field ends with the braces around it.
                    while index < len(self.tokens) and self.text(index) not in ("{", ";", "}"):
                        index = self.ends.get(index, index) + 1
                    words = [token.text for token in self.tokens[item:index]]
                    if "mod" in words and self.text(index) == ";":
                        self.test_modules.append(words[words.index("mod") + 1])
                    index = index - 1 if self.text(index) == "}" else self.ends.get(index, index)
                    ranges.append((start, index))
            index += 1
        return ranges

    def in_tests(self, index):
        return self.is_test or any(start <= index <= end for start, end in self.test_tokens)

    def functions(self):
        """The functions: index of `fn`, range of the parameters, and the range of the body or None."""
        for index, token in enumerate(self.tokens):
            if token.text != "fn" or token.kind != "word" or self.in_tests(index):
                continue
            at = index + 2
            if not re.fullmatch(r"(r#)?\w+", self.text(index + 1)):
                continue
            if self.text(at) == "<":
                depth = 0
                while at < len(self.tokens):
                    depth += {"<": 1, ">": -1}.get(self.text(at), 0)
                    at += 1
                    if depth == 0:
                        break
            if self.text(at) != "(" or at not in self.ends:
                continue
            parameters, end = (at + 1, self.ends[at]), self.ends[at] + 1
            while end < len(self.tokens) and self.text(end) not in ("{", ";"):
                end = self.ends.get(end, end) + 1
            yield index, parameters, (end, self.ends[end]) if end in self.ends else None

    def tuple_parameters(self, start, end):
        """The parameters of a range that are tuples, as text."""
        parameter, depth = [], 0
        for index in range(start, end + 1):
            text = self.text(index) if index < end else ","
            depth += {"<": 1, ">": -1}.get(text, 0) + (text in OPEN) - (text in CLOSE)
            if text == "," and depth == 0:
                if is_tuple_parameter(parameter):
                    yield spaced(parameter)
                parameter = []
            else:
                parameter.append(text)

    def types(self):
        """The types that the file defines: name and visibility."""
        kinds = []  # of the braces that are open
        words = []  # since the last item began
        for index, token in enumerate(self.tokens):
            if token.text == "{":
                kinds.append(next((word for word in words if word in ("impl", "trait", "fn")), ""))
                words = []
            elif token.text == "}":
                if kinds:
                    kinds.pop()
                words = []
            elif token.text == ";":
                words = []
            else:
                words.append(token.text)
            if token.kind != "word" or token.text not in TYPES or self.in_tests(index):
                continue
            name, before = self.text(index + 1), self.text(index - 1)
            associated = token.text == "type" and bool(kinds) and kinds[-1] in ("impl", "trait")
            if not associated and re.fullmatch(r"[A-Z]\w*", name) and before not in ("$", ".", "::", "&", "'"):
                yield name, self.visibility(index, any(kind == "fn" for kind in kinds))

    def visibility(self, index, inside_function):
        """The visibility of the item at an index: "", "super", "crate" or "pub"."""
        before = index - 1
        while self.text(before) in ("unsafe", "auto"):
            before -= 1
        if inside_function:
            return ""
        if self.text(before) == ")":
            opening = next(at for at, end in self.ends.items() if end == before)
            return self.text(before - 1) if self.text(opening - 1) == "pub" else ""
        return "pub" if self.text(before) == "pub" else ""

    def paths(self):
        """The paths that begin with `crate` or `super`, as lists of words."""
        for index, token in enumerate(self.tokens):
            if token.text not in ("crate", "super") or self.text(index + 1) != "::" or self.in_tests(index):
                continue
            if self.text(index - 1) != "::":
                yield from self.tree(index, [])[0]

    def tree(self, index, prefix):
        """The paths of a use tree that begins at `index`, and the index behind it."""
        path = list(prefix)
        while True:
            if self.text(index) == "{":
                end, paths = self.ends[index], []
                index += 1
                while index < end:
                    found, index = self.tree(index, path)
                    paths += found
                    while index < end and self.text(index) != ",":
                        index += 1
                    index += 1
                return paths, end + 1
            if not re.fullmatch(r"(r#)?\w+", self.text(index)):
                return [path], index
            path.append(self.text(index))
            if self.text(index + 1) != "::":
                return [path], index + 1
            index += 2


def is_tuple_parameter(words):
    words = words[:]
    while words[:2] == ["#", "["]:
        words = words[words.index("]") + 1 :]
    if not words:
        return False
    depth = 0
    for at, word in enumerate(words):
        depth += (word in OPEN) - (word in CLOSE) + {"<": 1, ">": -1}.get(word, 0)
        if word == ":" and depth == 0:
            kind = words[at + 1 :]
            while kind and (kind[0] in ("&", "mut") or kind[0].startswith("'")):
                kind = kind[1:]
            return words[0] == "(" or kind[:1] == ["("] and "," in kind
    return False


def spaced(words):
    text = " ".join(words)
    for before, after in ((r" ([,;:)\]>.?])", r"\1"), (r"([(\[<&.#]) ", r"\1"), (r" ?:: ?", "::"), (r" ([(<\[])", r"\1")):
        text = re.sub(before, after, text)
    return re.sub(r":(\()", r": \1", re.sub(r",(\S)", r", \1", text))


def components(nodes, arrows):
    """Strongly connected components (Tarjan), each after those that it leads to."""
    order, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(node):
        order[node] = low[node] = len(order)
        stack.append(node)
        on_stack.add(node)
        for other in sorted(arrows[node]):
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on_stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            component = []
            while not component or component[-1] != node:
                component.append(stack.pop())
                on_stack.discard(component[-1])
            found.append(sorted(component))

    for node in sorted(nodes):
        if node not in order:
            visit(node)
    return found


class Package:
    """A package of the workspace: its sources, and its modules by their paths."""

    def __init__(self, root, folder):
        self.folder = folder.relative_to(root).as_posix()
        cargo = tomllib.loads((folder / "Cargo.toml").read_text())
        self.name = cargo["package"]["name"]
        self.uses = set(cargo.get("dependencies", {})) | set(cargo.get("dev-dependencies", {}))
        self.sources = {}
        all_tests = self.name == "dipaco-tests"
        for path in sorted(folder.rglob("*.rs")):
            parts = path.relative_to(folder).parts
            if "target" in parts:
                continue
            is_test = all_tests or parts[0] in ("tests", "benches", "examples") or "tests" in parts[1:-1]
            is_test = is_test or parts[-1] == "tests.rs"
            self.sources[parts] = Source(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"), is_test)
        self.mark_test_modules()
        # The path of each module that has a file: ("worker", "shard") for src/worker/shard.rs.
        self.modules = {self.module(parts): source for parts, source in self.sources.items() if self.is_node(parts)}

    def mark_test_modules(self):
        for parts, source in self.sources.items():
            inside = parts[:-1] if parts[-1] in ("lib.rs", "main.rs", "mod.rs") else (*parts[:-1], parts[-1][:-3])
            for name in source.test_modules:
                for other, tested in self.sources.items():
                    if other == (*inside, f"{name}.rs") or other[: len(inside) + 1] == (*inside, name):
                        tested.is_test = True

    def definitions(self):
        """The types of the package: name, file, and the module in which the type can be named; None for dependents too."""
        for parts, source in self.sources.items():
            root = parts[-1] in ("lib.rs", "main.rs") or parts[0] != "src"
            module = () if root else self.module(parts)
            for name, visibility in source.types():
                scopes = {"": module, "super": module[:-1], "crate": (), "pub": None}
                yield name, source.path, scopes.get(visibility, ())

    def is_node(self, parts):
        root = parts[1:] in (("lib.rs",), ("main.rs",)) or parts[1:2] == ("bin",)
        return parts[0] == "src" and not root and not self.sources[parts].is_test

    @staticmethod
    def module(parts):
        inner = parts[1:-1] if parts[-1] == "mod.rs" else (*parts[1:-1], parts[-1][:-3])
        return inner

    def arrows(self):
        arrows = {module: set() for module in self.modules}
        for module, source in self.modules.items():
            for path in source.paths():
                target = self.resolve(module, path)
                if target and target != module:
                    arrows[module].add(target)
        return arrows

    def resolve(self, module, path):
        """The module with a file that a path names; None for the crate root."""
        at, path = (), list(path)
        if path[0] == "super":
            at = module
            while path and path[0] == "super":
                at, path = at[:-1], path[1:]
        else:
            path = path[1:]
        while path and (*at, path[0]) in self.modules:
            at, path = (*at, path[0]), path[1:]
        return at if at in self.modules else None

    def circles(self):
        arrows = self.arrows()
        return [["::".join(module) for module in found] for found in components(arrows, arrows) if len(found) > 1]

    def floors(self):
        """Top-level modules by floor, from the lowest, and the number of arrows between them."""
        rooms = {module[0]: set() for module in self.modules}
        for module, targets in self.arrows().items():
            rooms[module[0]] |= {target[0] for target in targets} - {module[0]}
        floor = {}
        for component in components(rooms, rooms):
            below = {target for room in component for target in rooms[room]} - set(component)
            number = 1 + max((floor[target] for target in below), default=0)
            floor.update({room: number for room in component})
        levels = [sorted(room for room in floor if floor[room] == number) for number in sorted(set(floor.values()))]
        return levels, sum(len(targets) for targets in rooms.values())


def quantile(values, share):
    values = sorted(values)
    return values[max(0, math.ceil(share * len(values)) - 1)]


def can_meet(one, other, packages):
    """Says if a file can name two types, each given as package and scope."""
    (package, scope), (other_package, other_scope) = one, other
    if package == other_package:
        shorter, longer = sorted((scope or (), other_scope or ()), key=len)
        return longer[: len(shorter)] == shorter
    users = [{name} | {user.name for user in packages.values() if scope is None and name in user.uses}
             for name, scope in (one, other)]
    return bool(users[0] & users[1])


def measure(root):
    members = tomllib.loads((root / "Cargo.toml").read_text())["workspace"]["members"]
    folders = sorted({found.parent for member in members for found in root.glob(f"{member}/Cargo.toml")})
    packages = [Package(root, folder) for folder in folders]
    sources = [source for package in packages for source in package.sources.values()]

    per_package = {}
    for package in packages:
        count = collections.Counter(kind for source in package.sources.values() for kind in source.kinds)
        files = len(package.sources)
        lines = {kind: count[kind] for kind in ("code", "doc", "comment", "blank")}
        per_package[package.folder] = {"files": files, "lines": sum(count.values()), **lines}

    functions, tuples, body_comments, count = [], [], 0, 0
    for source in sources:
        inside = set()
        for index, parameters, body in source.functions():
            place = f"{source.path}:{source.tokens[index].line + 1} {source.text(index + 1)}"
            tuples += [f"{place}: {text}" for text in source.tuple_parameters(*parameters)]
            if body:
                count += 1
                first, last = source.tokens[index].line, source.tokens[body[1]].line
                inside.update(range(source.tokens[body[0]].line, last + 1))
                if last - first + 1 > LONG_FUNCTION:
                    functions.append({"lines": last - first + 1, "function": place})
        body_comments += len(inside & source.comments)

    code = 0
    for source in sources:
        if not source.is_test:
            tested = set()
            for start, end in source.test_tokens:
                last = min(end, len(source.tokens) - 1)
                tested.update(range(source.tokens[start].line, source.tokens[last].line + 1))
            code += sum(1 for number, kind in enumerate(source.kinds) if kind == "code" and number not in tested)

    places = collections.defaultdict(dict)
    for package in packages:
        for name, path, scope in package.definitions():
            places[name][path] = (package.name, scope)
    repeated = {name: sorted(paths) for name, paths in sorted(places.items()) if len(paths) > 1}
    by_name = {package.name: package for package in packages}
    met = []
    for name in repeated:
        for (path, one), (other_path, other) in itertools.combinations(sorted(places[name].items()), 2):
            if can_meet(one, other, by_name):
                met.append(f"{name}: {path}, {other_path}")
    prelude = [f"{name}: {path}" for name in sorted(PRELUDE & set(places)) for path in sorted(places[name])]

    circles = {package.folder: found for package in packages if (found := package.circles())}
    lengths = [source.lines for source in sources]
    train = next((package for package in packages if package.folder == "crates/train"), None)
    levels, arrows = train.floors() if train else ([], 0)
    return {
        "packages": len(packages),
        "files": len(sources),
        "lines": sum(lengths),
        "lines_per_package": per_package,
        "code_without_tests": code,
        "lines_a_file": {"median": quantile(lengths, 0.5), "p90": quantile(lengths, 0.9), "max": max(lengths)},
        "files_over_400_lines": sorted((source.path for source in sources if source.lines > LONG_FILE)),
        "functions": count,
        "functions_over_80_lines": sorted(functions, key=lambda entry: (-entry["lines"], entry["function"])),
        "tuple_parameters": sorted(tuples),
        "types_defined_more_than_once": repeated,
        "types_of_one_name_in_reach_of_a_file": met,
        "types_named_like_the_prelude": prelude,
        "comment_lines_in_bodies": body_comments,
        "body_comments_per_line_of_code": round(body_comments / code, 4),
        "circles": circles,
        "train_floors": levels,
        "train_arrows": arrows,
        "cli_lines": per_package.get("crates/cli", {}).get("lines", 0),
    }


def show(found):
    total = collections.Counter()
    print(f"{found['packages']} packages, {found['files']} files, {found['lines']} lines\n")
    columns = ("files", "lines", "code", "doc", "comment", "blank")
    print(f"{'package':20}" + "".join(f"{column:>9}" for column in columns))
    for name, row in found["lines_per_package"].items():
        total.update(row)
        print(f"{name:20}" + "".join(f"{row[column]:9}" for column in columns))
    print(f"{'all':20}" + "".join(f"{total[column]:9}" for column in columns))
    lines = found["lines_a_file"]
    print(f"\nlines a file: median {lines['median']}, p90 {lines['p90']}, max {lines['max']}")
    listed("files over 400 lines", found["files_over_400_lines"])
    long = [f"{entry['lines']:4} {entry['function']}" for entry in found["functions_over_80_lines"]]
    listed(f"functions over 80 lines, of {found['functions']}", long)
    listed("tuple parameters", found["tuple_parameters"])
    repeated = found["types_defined_more_than_once"]
    listed("type names defined more than once", [f"{name} × {len(at)}: {', '.join(at)}" for name, at in repeated.items()])
    listed("of these, pairs that one file can name", found["types_of_one_name_in_reach_of_a_file"])
    listed("types with a name of the prelude", found["types_named_like_the_prelude"])
    print(f"\ncomments in function bodies: {found['comment_lines_in_bodies']} lines to {found['code_without_tests']} lines of"
          f" code, {found['body_comments_per_line_of_code']:.4f}")
    listed("circles of modules", circle_lines(found))
    levels = found["train_floors"]
    print(f"\ncrates/train: {sum(map(len, levels))} top-level modules on {len(levels)} floors, {found['train_arrows']} arrows")
    for number, rooms in reversed(list(enumerate(levels, 1))):
        print(f"  floor {number:2}: {len(rooms):2}  {', '.join(rooms)}")
    print(f"\ncrates/cli: {found['cli_lines']} lines")


def circle_lines(found):
    return [f"{name}: {', '.join(circle)}" for name, of in found["circles"].items() for circle in of]


def missed(found):
    """The targets that the code misses: each is 0."""
    targets = {
        "functions over 80 lines": [entry["function"] for entry in found["functions_over_80_lines"]],
        "circles of modules": circle_lines(found),
        "pairs of types with one name that one file can name": found["types_of_one_name_in_reach_of_a_file"],
        "types with a name of the prelude": found["types_named_like_the_prelude"],
    }
    return [f"{title}: {entry}" for title, entries in targets.items() for entry in entries]


def listed(title, entries):
    print(f"\n{title}: {len(entries)}")
    for entry in entries:
        print(f"  {entry}")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", action="store_true", help="print JSON")
    options.add_argument("--check", action="store_true", help="print what misses a target, and exit with 1 if anything does")
    options.add_argument("repository", nargs="?", default=pathlib.Path(__file__).resolve().parent.parent, type=pathlib.Path)
    options = options.parse_args()
    if not (options.repository / "Cargo.toml").exists():
        sys.exit(f"{options.repository} holds no Cargo.toml")
    found = measure(options.repository.resolve())
    if options.check:
        misses = missed(found)
        print("\n".join(misses) or "the code meets the targets of docs/results/house.md")
        sys.exit(1 if misses else 0)
    if options.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        show(found)


if __name__ == "__main__":
    main()
