"""Pages that MkDocs generates from the sources: the front page, tables, and the API reference.

A line `<!-- table: NAME -->` in a page becomes the table that `TABLES[NAME]` returns. Sources are
read as text: nothing that they import is needed to build the site.
"""

import ast
import re
import shutil
import tempfile
from pathlib import Path

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    *("objectives", "models", "data", "corpora", "training", "inference"),
    *("tasks", "visualization", "comparison", "preprocessing", "settings"),
)
GROUND = "constraints"  # a module that all packages import
RESULTS = sorted((ROOT / "docs" / "comparisons").glob("*.md"))  # pages that docs/guide.py writes
BUILDER = re.compile(r"\[`objectives\.(\w+)`\]\(\.\./\.\./(objectives/(\w+))\.py\)")
FROM_THE_ROOT = {
    "index.md": "README.md",
    "security.md": "SECURITY.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}


# --- what MkDocs calls --------------------------------------------------------------------------


@event_priority(100)  # before mkdocstrings reads its configuration
def on_config(config):
    """Gives mkdocstrings the folders as a package `pretrax`, and adds pages to the navigation.

    The added pages are the results of comparisons and the API reference.
    """
    global _copy  # lives as long as the build
    _copy = tempfile.TemporaryDirectory(prefix="pretrax-docs-")
    package = Path(_copy.name) / "pretrax"
    package.mkdir()
    (package / "__init__.py").touch()  # keeps an installed `pretrax` from being searched too
    for name in PACKAGES:
        shutil.copytree(ROOT / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / f"{GROUND}.py", package)
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [str(package.parent)]
    reference = [
        {
            name: [
                index_page(name),
                *({m.removeprefix(f"{name}."): page_of(m)} for m in modules(name)),
            ]
        }
        for name in PACKAGES
    ]
    reference.append({GROUND: page_of(GROUND)})
    if results := [f"comparisons/{path.name}" for path in RESULTS]:
        config.nav.insert(len(config.nav) - 2, {"Results": results})
    config.nav.insert(len(config.nav) - 1, {"API reference": reference})
    return config


def on_files(files, config):
    """Adds the pages of the API reference."""
    for name in PACKAGES:
        files.append(File.generated(config, index_page(name), content=index_text(name)))
    for module in (*(m for name in PACKAGES for m in modules(name)), GROUND):
        text = f"# {module}\n\n::: pretrax.{module}\n"
        files.append(File.generated(config, page_of(module), content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Returns the text of a page with its tables filled in.

    Pages that are files of the root get links relative to docs/. Builders that are linked to their
    file are linked to the API reference instead.
    """
    source = FROM_THE_ROOT.get(page.file.src_uri)
    if source:
        markdown = (ROOT / source).read_text().replace("](docs/", "](")
        for page_here, file in FROM_THE_ROOT.items():
            markdown = markdown.replace(f"]({file})", f"]({page_here})")
    markdown = BUILDER.sub(r"[`objectives.\1`](../api/\2.md#pretrax.objectives.\3.\1)", markdown)
    return re.sub(r"<!-- table: (\w+) -->", lambda m: TABLES[m[1]](), markdown)


# --- API reference ------------------------------------------------------------------------------


def modules(package: str) -> list[str]:
    """Returns the public modules of a package, such as `objectives.contract`."""
    paths = sorted((ROOT / package).rglob("*.py"))
    names = [".".join(p.relative_to(ROOT).with_suffix("").parts) for p in paths]
    return [name.removesuffix(".__init__") for name in names if name != f"{package}.__init__"]


def page_of(module: str) -> str:
    return f"api/{module.replace('.', '/')}.md"


def index_page(package: str) -> str:
    return f"api/{package}/index.md"


def index_text(package: str) -> str:
    """Returns the docstring of a package, and a table of its modules and their first sentences."""
    rows = [
        [f"[`{name}`]({page_of(name).removeprefix(f'api/{package}/')})", summary(name)]
        for name in modules(package)
    ]
    about = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text())) or ""
    return f"# {package}\n\n{about}\n\n" + table(["module", "about"], rows)


def summary(module: str) -> str:
    path = ROOT / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.split("\n\n")[0].replace("\n", " ")


# --- tables -------------------------------------------------------------------------------------


def configs(folder: str) -> str:
    """Returns a table of the gin files of a folder, with the first sentence of their comments."""
    paths = sorted((ROOT / "gin_configs" / folder).glob("*.gin"))
    return table(["file", "about"], [[f"`{folder}/{p.name}`", head(p)] for p in paths])


def head(path: Path) -> str:
    """Returns the first sentence of the comment at the start of a gin file, without commands."""
    lines = []
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    paragraphs = [p.replace("\n", " ") for p in "\n".join(lines).split("\n\n")]
    prose = [p for p in paragraphs if not p.startswith(("python ", "pretrax "))]
    return re.split(r"(?<=\.)(?<!al\.)\s", prose[0])[0] if prose else ""


def run_fields() -> str:
    """Returns a table of the fields of training.Run, in the groups of its source."""
    text = (ROOT / "training" / "run.py").read_text()
    body = text[text.index("class Run:") :].split("\n\n\n")[0]
    fields = re.findall(r"^      (\w+) \((.*?)\): (.*(?:\n {8}.*)*)", body, re.MULTILINE)
    kinds = {name: kind.partition("; default ") for name, kind, _ in fields}
    about = {name: " ".join(words.split()) for name, _, words in fields}
    rows = []
    for group, name in re.findall(r"^    (?:# (.*)|(\w+): .*)", body, re.MULTILINE):
        if group:
            rows.append([f"**{group}**", "", "", ""])
        else:
            kind, _, default = kinds[name]
            rows.append([f"`{name}`", kind, f"`{default}`" if default else "", about[name]])
    return table(["field of `training.Run`", "type", "default", "meaning"], rows)


def t5x() -> str:
    """Returns a table of T5X's names of settings, from settings/t5x_names.py."""
    names = literal("settings/t5x_names.py", "NAMES")
    return table(
        ["in T5X", "in pretrax"],
        [[f"`{name}`", here.replace("{", "&#123;")] for name, here in names.items()],
    )


def heads() -> str:
    """Returns a table of the heads that models can have, from models/heads.py."""
    transformers = literal("models/heads.py", "TRANSFORMERS")
    ahead = "hidden states for the token after the next; `ahead_3`, … for those after it"
    rows = [["`ahead_2`", ahead, "`decoder`"]]
    for head in calls("models/heads.py", "Head"):
        if not {"name", "about", "builders"} <= head.keys():
            continue  # a head of the user, from `add_head`
        builders = head["builders"]
        parts = builders.elts if isinstance(builders, ast.Tuple) else [builders]
        having = [
            name
            for part in parts
            for name in ([part.value] if isinstance(part, ast.Constant) else transformers)
        ]
        models = ", ".join(f"`{name}`" for name in having)
        rows.append([f"`{head['name'].value}`", head["about"].value, models])
    return table(["head", "what it gives", "models"], rows)


def calls(file: str, function: str) -> list[dict[str, ast.expr]]:
    """Returns the keyword arguments of each call of a function in a file."""
    nodes = ast.walk(ast.parse((ROOT / file).read_text()))
    all_calls = [node for node in nodes if isinstance(node, ast.Call)]
    return [
        {keyword.arg: keyword.value for keyword in call.keywords}
        for call in all_calls
        if ast.unparse(call.func) == function
    ]


def literal(file: str, name: str):
    """Returns the value of a name in a module, which must be a literal."""
    for node in ast.parse((ROOT / file).read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if getattr(targets[0], "id", None) == name:
            return ast.literal_eval(node.value)
    raise ValueError(f"{file} does not set {name}.")


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


TABLES = {
    "objective_files": lambda: configs("objectives"),
    "run_fields": run_fields,
    "t5x": t5x,
    "corpus_files": lambda: configs("corpora"),
    "comparison_files": lambda: configs("comparisons"),
    "run_files": lambda: configs("runs"),
    "model_files": lambda: configs("models"),
    "heads": lambda: heads(),
}
