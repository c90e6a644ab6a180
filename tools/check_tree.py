"""Checks that no linter makes: Rust files stay short, what must be pure is, and links between documents lead somewhere.

    python tools/check_tree.py

Exits with 1 and one line a fault. Finding nothing to check is a fault too.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_RUST_LINES = 800  # beyond that a file answers more than one question (CONTRIBUTING.md)

PURE = ("order", "pack", "format")  # modules of the core whose results depend on their arguments alone
IMPURE = re.compile(
    r"std::(?:fs|net|io::std|thread|time|env)\b|\bInstant\b|\bSystemTime\b|\bHash(?:Map|Set)\b|\btokio\b"
)

FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
REFERENCE = re.compile(r"^\s*\[[^\]]+\]:\s+<?(\S+?)>?\s*$", re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)


def main() -> int:
    rust = tracked("*.rs")
    documents = tracked("*.md")
    faults = [fault for path in rust for fault in length_faults(path)]
    pure = [path for path in rust if is_pure(path)]
    faults += [fault for path in pure for fault in purity_faults(path)]
    links = 0
    for path in documents:
        found, broken = link_faults(path)
        links += found
        faults += broken
    for kind, count in (
        ("Rust files", len(rust)),
        ("pure modules", len(pure)),
        ("documents", len(documents)),
        ("links", links),
    ):
        if count == 0:
            faults.append(f"found no {kind}: this check looks in the wrong place")
    print("\n".join(faults) or f"{len(rust)} Rust files, {len(documents)} documents, {links} links between them")
    return 1 if faults else 0


def tracked(pattern: str) -> list[Path]:
    """Files of the checkout, new ones too, without those that git ignores."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", pattern]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted({ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()})


def length_faults(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").count("\n")
    if lines <= MAX_RUST_LINES:
        return []
    return [f"{path.relative_to(ROOT)}: {lines} lines, wanted at most {MAX_RUST_LINES}"]


def is_pure(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    return parts[:3] == ("crates", "headrace", "src") and parts[3] in PURE and "tests" not in parts


def purity_faults(path: Path) -> list[str]:
    code = path.read_text(encoding="utf-8").partition("#[cfg(test)]")[0]
    found = IMPURE.search(re.sub(r"//.*", "", code))
    return [f"{path.relative_to(ROOT)}: {found.group()} in a module that must be pure"] if found else []


def link_faults(path: Path) -> tuple[int, list[str]]:
    """The number of links to files here, and those that lead nowhere."""
    text = CODE.sub("", FENCE.sub("", path.read_text(encoding="utf-8")))
    found, faults = 0, []
    for target in LINK.findall(text) + REFERENCE.findall(text):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        found += 1
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            faults.append(f"{path.relative_to(ROOT)}: link to {target}: there is no {name}")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            faults.append(f"{path.relative_to(ROOT)}: link to {target}: {file.name} has no heading #{anchor}")
    return found, faults


def anchors(path: Path) -> set[str]:
    """The names that a page's headings get in HTML."""
    headings = HEADING.findall(FENCE.sub("", path.read_text(encoding="utf-8")))
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower())).strip("-") for heading in headings}


if __name__ == "__main__":
    sys.exit(main())
