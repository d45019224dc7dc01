"""The density of the code: one statement for one idea, and descriptive names."""

import ast
import functools

import pytest

from tests.import_graph import MODULES, parsed

MOST_TUPLES = 0.01  # largest share of assignments of a literal tuple to several names
MOST_OF_NAMES = 30  # largest number of uses of names that begin with "of_"
MOST_STARRED = 5  # largest number of starred arguments whose tuple is made in the same function

KINDS = ast.Assign | ast.AnnAssign | ast.Name | ast.FunctionDef | ast.Call


@functools.cache
def nodes_by_file() -> list[list]:
    """Returns, for each file, its nodes of these kinds. All tests share them."""
    return [
        [node for node in ast.walk(parsed(file)) if isinstance(node, KINDS)]
        for file in MODULES.values()
    ]


def nodes_of_type(nodes, kind) -> list:
    return [node for node in nodes if isinstance(node, kind)]


@pytest.mark.slow
def test_unrelated_values_are_assigned_on_separate_lines():
    assignments = [
        node
        for nodes in nodes_by_file()
        for node in nodes_of_type(nodes, ast.Assign | ast.AnnAssign)
    ]
    joined = [
        node
        for node in assignments
        if isinstance(node.value, ast.Tuple)
        and isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
    ]
    assert len(assignments) > 5000 and len(joined) / len(assignments) <= MOST_TUPLES


@pytest.mark.slow
def test_few_names_begin_with_of():
    names = [node.id for nodes in nodes_by_file() for node in nodes_of_type(nodes, ast.Name)]
    assert sum(name.startswith("of_") for name in names) <= MOST_OF_NAMES


def starred_local_tuples(nodes) -> int:
    """Returns how many starred arguments of a file are tuples that their function assigns."""
    tuples = [
        (node.lineno, target.id)
        for node in nodes_of_type(nodes, ast.Assign)
        if isinstance(node.value, ast.Tuple)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    starred = [
        (arg.lineno, arg.value.id)
        for call in nodes_of_type(nodes, ast.Call)
        for arg in call.args
        if isinstance(arg, ast.Starred) and isinstance(arg.value, ast.Name)
    ]
    found = 0
    for function in nodes_of_type(nodes, ast.FunctionDef):
        lines = range(function.lineno, function.end_lineno + 1)
        local = {name for line, name in tuples if line in lines}
        found += sum(line in lines and name in local for line, name in starred)
    return found


def test_calls_unpack_no_local_tuples():
    assert sum(map(starred_local_tuples, nodes_by_file())) <= MOST_STARRED
