"""The density of the code: one statement for one idea, and descriptive names."""

import ast
from collections.abc import Iterator

from tests.import_graph import MODULES, parsed

MOST_TUPLES = 0.01  # largest share of assignments of a literal tuple to several names
MOST_OF_NAMES = 30  # largest number of uses of names that begin with "of_"
MOST_STARRED = 5  # largest number of starred arguments whose tuple is made in the same function


def nodes(kind) -> Iterator:
    for file in MODULES.values():
        yield from (node for node in ast.walk(parsed(file)) if isinstance(node, kind))


def test_unrelated_values_are_assigned_in_a_line_each():
    every = list(nodes(ast.Assign | ast.AnnAssign))
    joined = [
        node
        for node in every
        if isinstance(node.value, ast.Tuple)
        and isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
    ]
    assert len(every) > 5000 and len(joined) / len(every) <= MOST_TUPLES


def test_names_say_what_a_value_is():
    assert sum(node.id.startswith("of_") for node in nodes(ast.Name)) <= MOST_OF_NAMES


def starred_local_tuples(function: ast.FunctionDef) -> int:
    assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
    local = {
        target.id
        for node in assigned
        if isinstance(node.value, ast.Tuple)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    starred = [arg for call in calls for arg in call.args if isinstance(arg, ast.Starred)]
    return sum(isinstance(arg.value, ast.Name) and arg.value.id in local for arg in starred)


def test_arguments_are_written_out():
    assert sum(map(starred_local_tuples, nodes(ast.FunctionDef))) <= MOST_STARRED
