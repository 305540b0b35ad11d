#!/usr/bin/env python3
"""Checks of the repository itself.

    check_repository.py ROOT includes|paths|sizes|format
    check_repository.py self-test

Prints one line per finding ("file:line: what") and ends with 1 if there was any. `format` ends with 77
(skipped) where clang-format is absent.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

# Lowest first: a module may use itself and what stands before it.
MODULES = ["net", "supervision", "runtime", "actors", "algorithms"]
OTHER_FOLDERS = ["bench", "cmake", "deploy", "docs", "examples", "scripts", "tests", ".ci"]
SOURCES = {".cpp", ".hpp", ".h", ".proto"}
SCRIPTS = {".py", ".sh", ".cmake", ".txt", ".json", ".toml", ".yml", ".yaml", ".md", ".in", ".html",
           ".js", ".css", ".supp", ""}
MAX_LINES = 600

INCLUDE = re.compile(r'^\s*(?:#\s*include\s*[<"]([^>"]+)[>"]|import\s+"([^"]+)")')
# Folders of one developer's or one build machine; <absolute system paths> like /usr are no business of
# this check.
MACHINE_PATH = re.compile(r"(?<![\w.~$}/-])/(?:work|home|root|Users)/[\w.]")
TEMPORARY_PATH = re.compile(r"(?<![\w.~$}/-])/tmp\b")


def files_of(root, folders, suffixes):
    """All text files below the folders (and in the root itself), in a fixed order."""
    found = [path for path in root.iterdir() if path.is_file()]
    for folder in folders:
        found += (root / folder).rglob("*")
    for path in sorted(found):
        inside = path.relative_to(root)
        if path.is_file() and path.suffix in suffixes and "corpus" not in inside.parts \
                and "__pycache__" not in inside.parts and not inside.name.startswith("._"):
            yield path


def lines_of(path):
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return []  # not text


def check_includes(root):
    """Dependencies between the modules point downwards only."""
    for level, module in enumerate(MODULES):
        for path in files_of(root, [module], SOURCES):
            if path.parent == root:
                continue
            for number, line in enumerate(lines_of(path), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                target = match.group(1) or match.group(2)
                name = target.removeprefix("troupe/").split("/")[0]
                if "/" not in target:
                    continue
                # System headers such as <net/if.h> share a name with a module but not a file.
                ours = (root / target.removeprefix("troupe/")).exists() or ".pb." in target
                if name in MODULES[level + 1:] and ours:
                    yield f"{path.relative_to(root)}:{number}: {module} must not use {name}: {target}"
                elif name in ("tests", "bench", "examples") and ours:
                    yield f"{path.relative_to(root)}:{number}: {module} must not use {name}: {target}"
                elif target.startswith(("troupe/", "../", "./")):
                    yield (f"{path.relative_to(root)}:{number}: write \"<module>/<file>\" instead of "
                           f"{target}")


def check_paths(root):
    """No file names a folder of the machine it was written on."""
    for path in files_of(root, MODULES + OTHER_FOLDERS, SOURCES | SCRIPTS):
        if path.name == pathlib.Path(__file__).name:
            continue
        in_tests = path.relative_to(root).parts[0] == "tests"
        for number, line in enumerate(lines_of(path), 1):
            if MACHINE_PATH.search(line) or (not in_tests and TEMPORARY_PATH.search(line)):
                yield f"{path.relative_to(root)}:{number}: machine path: {line.strip()[:100]}"


def check_sizes(root):
    """Files stay readable in one sitting."""
    for path in files_of(root, MODULES + OTHER_FOLDERS, SOURCES | (SCRIPTS - {".json", ".html"})):
        count = len(lines_of(path))
        if count > MAX_LINES:
            yield f"{path.relative_to(root)}:{count}: {count} lines, at most {MAX_LINES}; split it"


def check_format(root):
    """clang-format has nothing to change."""
    sources = [path for path in files_of(root, MODULES + ["bench", "cmake", "examples", "tests"],
                                         {".cpp", ".hpp", ".h"})]
    if not sources:
        return
    done = subprocess.run(["clang-format", "--dry-run", "-Werror", "--ferror-limit=1",
                           *map(str, sources)], capture_output=True, text=True, check=False)
    for line in done.stderr.splitlines():
        if ": error:" in line:
            yield line.replace(str(root) + "/", "") + " (scripts/format mends it)"
    if done.returncode != 0 and ": error:" not in done.stderr:
        yield "clang-format failed: " + done.stderr.strip()[:500]


CHECKS = {"includes": check_includes, "paths": check_paths, "sizes": check_sizes,
          "format": check_format}


def self_test():
    """Each check finds what it is for."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for module in MODULES + OTHER_FOLDERS:
            (root / module).mkdir()
        (root / "runtime/high.hpp").write_text("#pragma once\n")
        (root / "net/low.hpp").write_text("#pragma once\n")
        (root / "runtime/good.cpp").write_text('#include "net/low.hpp"\n#include <net/if.h>\n')
        for check in (check_includes, check_paths, check_sizes):
            assert not list(check(root)), list(check(root))
        (root / "net/upwards.cpp").write_text(
            '#include "net/low.hpp"\n  # include "runtime/high.hpp"\n#include <net/if.h>\n')
        (root / "net/user.cpp").write_text("#include <troupe/net/low.hpp>\n")
        (root / "net/x.proto").write_text('import "runtime/high.hpp";\n')
        found = list(check_includes(root))
        assert len(found) == 3 and found[0].startswith("net/upwards.cpp:2:"), found
        (root / "net/paths.cpp").write_text('auto a = "/home/me/x";\nauto b = "/tmp/x";\n'
                                            'auto c = "build/work/x";\nauto d = "http://h/home/x";\n')
        (root / "tests/paths.cpp").write_text('auto a = "/tmp/x";\n')
        found = list(check_paths(root))
        assert [line.split(" ")[0] for line in found] == ["net/paths.cpp:1:", "net/paths.cpp:2:"], found
        (root / "net/long.cpp").write_text("\n" * (MAX_LINES + 1))
        assert len(list(check_sizes(root))) == 1
    print("every check finds what it is for")


def main(arguments):
    if arguments == ["self-test"]:
        self_test()
        return 0
    if len(arguments) != 2 or arguments[1] not in CHECKS:
        print(__doc__, file=sys.stderr)
        return 2
    if arguments[1] == "format" and shutil.which("clang-format") is None:
        print("skipped: clang-format is not installed")
        return 77
    findings = list(CHECKS[arguments[1]](pathlib.Path(arguments[0]).resolve()))
    for finding in findings:
        print(finding)
    print(f"{arguments[1]}: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
