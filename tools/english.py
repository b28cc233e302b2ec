"""Check the English of docstrings, comments, error messages, test names and Markdown pages against a list of habits.

    python tools/english.py                  # the paths listed in tools/english.txt
    python tools/english.py src/howsure/nn   # other files or folders
    python tools/english.py --count          # findings per file

A finding is ``file:line: rule: text``. The exit code is 1 if there is a finding. Code, links and formulas are not
checked. A line of Markdown that ends with ``<!-- english: off -->`` and a comment ``# english: off`` are skipped.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CLEAN = ROOT / "tools/english.txt"
OFF = "english: off"

COMPARED = "longer|more|less|fewer|smaller|larger|wider|narrower|greater|better|worse|later|earlier"
SUBJECTS = "it|they|this|these|that|there|then|here|so|but|such|you|we|both|each|the|a|an|its|his|where|if"
VERBS = "is|are|has|have|was|were|does|do|can|cannot|must|may|will"
SPOKEN = "says?|said|tells?|told|asks|asked|knows|answers?|answered|doubts?|doubted|speaks?"
RULES = {  # the remedy: a regular expression of the habit
    "name the thing instead of 'what' or 'who'": r"\bwhat\b(?![^.;:]*\?)|\A\W*who\b(?![^.;:]*\?)",
    "name the argument": r"\bso many\b|\bas many\b(?!(\s\S+){0,3}\sas\b)|\bso much\b(?!\s\S+\sthat)",
    "functions return, raise, store and compute": rf"\b({SPOKEN})\b",
    "write 'is not a', or repeat the noun": rf"(?<!\bthere )\b(is|are|was|were|be) no\b(?! ({COMPARED})\b)"
    r"|\b(those|that) of\b|\bof which\b|\bwhich no\b|\bit is not so\b",
    "write 'instead of', 'next to', 'custom' or 'also'": r"\bin the place of\b|\bbesides?\b|\blikewise\b|\bat hand\b"
    r"|\bof (one's|its|their|your) own\b|\b(one's|its|their|your|his) own\b(?! (\w|`))",
    "write 'raises' or 'rejects'": r"\brefus(e|es|ed|al|ing)\b",
    "use the standard term": r"\b(fad(e|es|ed|ing)|strays?|(un)?forgiving|settle[sd]?|whoever|hitherto)\b"
    r"|\b(for ever|to and fro|as ever|mend(s|ed)?|verbs?|discount(s|ed)?)\b|\bstands? (more|once|twice|there)\b",
    'write "quotes" and 90%': r"[«»]|\d\s%",
    "write two sentences": rf";\s+({SUBJECTS})\b[^.;:]{{0,80}}\b({VERBS})\b",
}
SUPERLATIVES = "FEWEST|FEW|LEAST|MOST|MANY|LARGEST|SMALLEST|FARTHEST|NEAREST|LONGEST|SHORTEST|CLOSE|ENOUGH"
TEST_RULES = {
    "state the case and the result, without articles": r"test_(a|an|the|what|whoever|no_one|nothing)_",
    "name the error or the result": rf"_({SPOKEN}|refused|refuses|what|so_many|beside|is_none)(_|$)",
    "at most 70 characters": r".{71,}",
}


class Passage(NamedTuple):
    """Prose from a file, with the number of its first line."""

    line: int
    text: str


class Finding(NamedTuple):
    """A place that a rule matches."""

    file: Path
    line: int
    rule: str
    text: str


def without_code(text: str) -> str:
    """Return the text with code, formulas, roles, links and doctests replaced by placeholders of the same lines."""

    def blank(found: re.Match[str]) -> str:
        return "`…`" + "\n" * found[0].count("\n")

    text = re.sub(r"^[ ]*(>>>|\.\.\. ).*(\n(?!\s*\n).*)*", blank, text, flags=re.MULTILINE)  # doctests and their output
    text = re.sub(r"^([ ]*)\.\. math::.*(\n(\1[ ]+.*|\s*))*", blank, text, flags=re.MULTILINE)
    text = re.sub(r"(:\w+)?:\w+:`[^`]*`|``[^`]+``|`[^`]+`|\$[^$\n]+\$", blank, text)
    text = re.sub(r"^[ ]*[*]{0,2}\w+(, [*]{0,2}\w+)*: ", blank, text, flags=re.MULTILINE)  # names of arguments
    return re.sub(r"https?://\S+|\]\([^)]*\)", "`…`", text)


def literal(node: ast.AST) -> str:
    """Return the literal text of a string or f-string, with … for its expressions."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def docstrings(tree: ast.AST) -> Iterator[Passage]:
    """Yield every docstring of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and (text := literal(first.value)):
                yield Passage(first.lineno, text)


def messages(tree: ast.AST) -> Iterator[Passage]:
    """Yield the texts in calls that create errors and warnings."""
    parts = {id(part) for text in ast.walk(tree) if isinstance(text, ast.JoinedStr) for part in text.values}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and re.search(r"(Error|warn|Warning|Interrupted)$", ast.unparse(call.func)):
            for argument in [*call.args, *(each.value for each in call.keywords)]:
                for part in ast.walk(argument):
                    if isinstance(part, ast.expr) and id(part) not in parts and (text := literal(part)):
                        yield Passage(part.lineno, text)


def comments(source: str) -> Iterator[Passage]:
    """Yield every comment of a module that is not an instruction to a tool."""
    instruction = re.compile(rf"#\s*(noqa|type:|ruff:|fmt:|pragma|!)|.*{OFF}")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not instruction.match(token.string):
            yield Passage(token.start[0], token.string.lstrip("# "))


def names(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield (line, rule, name) for constants named by a superlative and for tests named by a sentence."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Store)
            and re.fullmatch(rf"_?({SUPERLATIVES})(_.*)?", node.id)
        ):
            yield node.lineno, "name the constant by a noun: MIN_ROWS", node.id
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            for rule, pattern in TEST_RULES.items():
                if re.search(pattern, node.name):
                    yield node.lineno, rule, node.name


def pages(text: str) -> Iterator[Passage]:
    """Yield the paragraphs of a Markdown page, without its code blocks."""
    text = re.sub(r"^([ ]*)```.*?^\1```", lambda found: "\n" * found[0].count("\n"), text, flags=re.M | re.S)
    text = re.sub(r"^[ ]{4,}(?![-*\d]).*$", "", text, flags=re.MULTILINE)
    text = re.sub(
        r"<!-- generated:.*?<!-- end -->|<!--(?! english: off).*?-->",
        lambda found: "\n" * found[0].count("\n"),
        text,
        flags=re.DOTALL,
    )
    line = 1
    for paragraph in re.split(r"(\n\s*\n)", text):
        if paragraph.strip() and OFF not in paragraph:
            yield Passage(line, paragraph)
        line += paragraph.count("\n")


def check(file: Path) -> list[Finding]:
    """Return the findings in a Python module or a Markdown page."""
    source = file.read_text(encoding="utf-8")
    found: list[Finding] = []
    if file.suffix == ".py":
        tree = ast.parse(source)
        found = [Finding(file, *each) for each in names(tree)]
        passages = [*docstrings(tree), *messages(tree), *comments(source)]
    else:
        passages = list(pages(source))
    for passage in passages:
        prose = without_code(passage.text)
        for rule, pattern in RULES.items():
            for match in re.finditer(pattern, prose, re.IGNORECASE):
                line = passage.line + prose[: match.start()].count("\n")
                around = prose[max(0, match.start() - 40) : match.end() + 40]
                found.append(Finding(file, line, rule, " ".join(around.split())))
    return sorted(found, key=lambda each: each.line)


def files(paths: list[str]) -> list[Path]:
    """Return the Python modules and Markdown pages at the paths."""
    found: set[Path] = set()
    for each in paths:
        path = ROOT / each
        if not path.exists():
            raise SystemExit(f"{each} does not exist")
        inside = [path] if path.is_file() else [*path.rglob("*.py"), *path.rglob("*.md")]
        found.update(file for file in inside if file.suffix in (".py", ".md"))
    return sorted(found)


def main() -> int:
    """Print the findings and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="files or folders; without any, the paths in tools/english.txt")
    parser.add_argument("--count", action="store_true", help="print only the number of findings per file")
    options = parser.parse_args()
    lines = CLEAN.read_text(encoding="utf-8").splitlines()
    paths = options.paths or [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    found = [finding for file in files(paths) for finding in check(file)]
    if options.count:
        for file, count in Counter(each.file for each in found).most_common():
            print(f"{count:5d}  {file.relative_to(ROOT)}")
    else:
        for each in found:
            print(f"{each.file.relative_to(ROOT)}:{each.line}: {each.rule}: {each.text}")
    print(f"{len(found)} findings in {len(files(paths))} files", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
