#!/usr/bin/env python3
"""Writes docs/reference/python.md from the signatures and docstrings of the Python package, which it reads without
importing anything. --check writes nothing, and fails if the page differs. It leaves out names with a leading
underscore, and methods whose docstring begins with "Internal.", which other modules of the package call.
"""
import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = ROOT / "python"
PAGE = ROOT / "docs" / "reference" / "python.md"
MODULES = {"shoal": "Shoal's own engine", "shoal.data": "Data sets in Parquet and Arrow files",
           "shoal.torch": "PyTorch's backend",
           "shoal.torch.parallel": "SMP for PyTorch models (`smdistributed.modelparallel.torch`)"}


def parsed(module):
    path = PYTHON / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text()) if path.exists() else None


def public_names(tree):
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return [node.name for node in tree.body
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name[0] != "_"]


def definition(module, name):
    """The function or class with this `name` in the module; None for modules and values."""
    tree = parsed(module)
    if tree is None:
        return None
    origin = None
    for node in tree.body:  # if a name is imported more than once, the last import wins
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            origin = node
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shoal"):
            for alias in node.names:
                if (alias.asname or alias.name) == name and node.module != module:
                    origin = (node.module, alias.name)
    return definition(*origin) if isinstance(origin, tuple) else origin


def signature(node):
    """Names and defaults of a function's arguments, without self and annotations."""
    arguments = node.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if argument is not None:
            argument.annotation = None
    text = ast.unparse(arguments)
    return f"({re.sub(r'^(?:self|cls)(?:, )?', '', text)})"


def first_paragraph(node):
    text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
    return re.sub(r"([|<>*\[\]])", r"\\\1", text)


def is_public(method):
    text = ast.get_docstring(method)
    return method.name[0] != "_" and text is not None and not text.startswith("Internal.")


def rows(module):
    for name in public_names(parsed(module)):
        node = definition(module, name)
        if isinstance(node, ast.FunctionDef):
            yield f"`{name}{signature(node)}`", first_paragraph(node)
        elif isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            made = next((signature(each) for each in methods if each.name == "__init__"), "")
            yield f"`{name}{made}`", first_paragraph(node)
            for each in methods:
                if is_public(each):
                    of_value = any(getattr(mark, "id", getattr(mark, "attr", "")) in ("property", "setter")
                                   for mark in each.decorator_list)
                    yield f"`{name}.{each.name}{'' if of_value else signature(each)}`", first_paragraph(each)


def page():
    lines = ["# Python", "<!-- Made by tools/python_reference.py from the package's docstrings; edit those. -->", "",
             "How to use them: [pytorch.md](../guides/pytorch.md). Each entry has the first paragraph of its "
             "docstring.",
             ""]
    for module, title in MODULES.items():
        table = [f"| {name} | {text} |".replace("  ", " ") for name, text in rows(module)]
        if table:
            lines += [f"## {module}", f"{title}.", "", "| name | what it does |", "|---|---|", *table, ""]
    return "\n".join(lines)


def main() -> int:
    text = page()
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    if "--check" in sys.argv[1:]:
        print("docs/reference/python.md differs from the docstrings; run tools/python_reference.py", file=sys.stderr)
        return 1
    PAGE.write_text(text)
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
