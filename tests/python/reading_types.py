"""Compares the module dipaco with the types in its stub, and prints the differences as a list in JSON.

PYTHONPATH has the module.
"""

import ast
import inspect
import json
import pathlib

import dipaco

stub = ast.parse((pathlib.Path(dipaco.__file__).parent / "__init__.pyi").read_text())
wrong = []


def parameters(function):
    """Names of a stub's parameters: by place, by name only."""
    given = function.args
    return [arg.arg for arg in given.posonlyargs + given.args], [arg.arg for arg in given.kwonlyargs]


def own(signature):
    kinds = {name: one.kind for name, one in signature.parameters.items()}
    by_name = [name for name, kind in kinds.items() if kind is inspect.Parameter.KEYWORD_ONLY]
    return [name for name in kinds if name not in by_name], by_name


names = {node.name for node in stub.body if isinstance(node, ast.ClassDef)}
if names != set(dipaco.__all__) - {"__version__"}:
    wrong.append(f"classes: {sorted(names)}")
for node in stub.body:
    if not isinstance(node, ast.ClassDef) or node.name == "RunError":
        continue
    kind, described = getattr(dipaco, node.name), set()
    for item in node.body:
        if not isinstance(item, ast.FunctionDef):
            continue
        described.add(item.name)
        member = kind.__dict__.get(item.name)
        if any(isinstance(one, ast.Name) and one.id == "property" for one in item.decorator_list):
            if not inspect.isgetsetdescriptor(member):
                wrong.append(f"{node.name}.{item.name} is no property")
            continue
        if member is None:
            wrong.append(f"{node.name}.{item.name} is missing")
            continue
        if item.name == "__new__":
            signature, skip = inspect.signature(kind), 1
        elif item.name.startswith("__"):
            continue
        else:
            signature, skip = inspect.signature(getattr(kind, item.name)), 0
        positional, by_name = parameters(item)
        if (positional[skip:], by_name) != own(signature):
            wrong.append(f"{node.name}.{item.name}{signature} differs from its stub")
    public = {name for name in kind.__dict__ if not name.startswith("_")}
    if public - described:
        wrong.append(f"{node.name} has {sorted(public - described)} without types")
print(json.dumps(wrong))
