#!/usr/bin/env python3
"""Rules about the sources that no compiler checks. Run from the top of the tree: lint.py CHECK [--cc gcc]."""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys

# ---- the layers -----------------------------------------------------------------------------------------------

# What the files of a folder may include, by prefix. The longest prefix that fits a file decides.
DRIVERS = ["backends/driver.h", "backends/registry.h", "backends/facts.h", "backends/probe.h", "backends/repos.h"]
BASE = ["base/"]
MODEL = BASE + ["model/"]
SELECT = MODEL + ["select/"]
SERVICE = SELECT + ["lease/", "service/"] + DRIVERS
HTTP = SERVICE + ["http/"]
LAYERS = {
    "server/base/": BASE,
    "server/model/": MODEL,
    "server/select/": SELECT,
    "server/lease/": MODEL + ["lease/"],
    "server/service/": SERVICE,
    "server/http/": HTTP,
    "server/config": HTTP + ["config", "backends/"],
    "server/cli/": HTTP + ["config.h", "cli/", "app.h", "backends/"],
    "server/app": HTTP + ["config.h", "app.h", "app_priv.h", "roots.h", "backends/"],
    "server/roots": HTTP + ["config.h", "roots.h", "backends/"],
    "server/main.c": ["cli/"],
    "backends/": MODEL + ["backends/"],
}
# The selector is pure: it sees the standard library and its own types.
PURE = {"server/select/select.c": r"<(std\w+|string|inttypes|assert|limits)\.h>|\"(select/select|model/caps)\.h\""}

# Who may include the headers of a library.
LIBRARIES = {
    "microhttpd.h": ["server/http/"],
    "curl/": ["backends/net/"],
    "sqlite3.h": ["server/lease/store"],
    "wslay/wslay.h": ["server/http/ws.c"],
    "archive.h": ["server/service/tar_", "backends/docker/reach", "backends/docker/carry"],
    "archive_entry.h": ["server/service/tar_", "backends/docker/reach", "backends/docker/carry"],
    "yaml.h": ["server/config/yaml.c"],
    "openssl/": ["server/base/"],
    "seccomp.h": ["backends/spawner/", "backends/agent/"],
}

# ---- calls ----------------------------------------------------------------------------------------------------

BANNED = {
    "strcpy strcat sprintf vsprintf gets strtok alloca": "no limit, or no error",
    "atoi atol atoll atof": "no error; see base/str.h",
    "strtol strtoul strtoll strtoull strtod strtof strtold strtoimax strtoumax": "lenient; see base/str.h",
    "localtime gmtime ctime asctime localtime_r mktime": "static buffer or time zone; see base/clock.h",
    "system popen": "a shell nobody asked for",
    "usleep sleep nanosleep clock_nanosleep": "waiting is done on events",
    "rand srand random srandom drand48": "see base/hash.h",
    "tmpnam mktemp tempnam": "races",
    "json_incref json_decref": "not for values that threads share; see base/json.h",
    "dup dup2 pipe accept creat epoll_create inotify_init": "not close-on-exec from birth",
}
ALLOWED_CALLS = {
    ("server/base/str.c", "strtod"),  # the one place
    ("backends/agent/", "dup2"),  # a new process sets up its own stdin, stdout and stderr
    ("backends/spawner/", "dup2"),
    ("backends/spawner/", "strtol"),  # numbers that the kernel wrote
    ("backends/spawner/", "strtoll"),
    ("backends/local_bwrap/sandbox.c", "strtoll"),  # of an id made there
}
# These make descriptors and must say CLOEXEC in the call itself.
BIRTHS = {
    "open": "O_CLOEXEC", "openat": "O_CLOEXEC", "openat2": None, "open_tree": None, "socket": "SOCK_CLOEXEC",
    "socketpair": "SOCK_CLOEXEC", "accept4": "SOCK_CLOEXEC", "pipe2": "O_CLOEXEC", "epoll_create1": "EPOLL_CLOEXEC",
    "eventfd": "EFD_CLOEXEC", "timerfd_create": "TFD_CLOEXEC", "signalfd": "SFD_CLOEXEC",
    "inotify_init1": "IN_CLOEXEC", "memfd_create": "MFD_CLOEXEC", "mkostemp": "O_CLOEXEC",
}
ALLOWED_BIRTHS = {
    ("backends/spawner/build.c", "open"),  # bubblewrap inherits it: that is what it is opened for
    ("server/main.c", "open"),  # in the place of standard descriptors
}

# ---- words and sizes --------------------------------------------------------------------------------------------

WORDS = re.compile(r"DESIGN\.md|bugcases|\.\./shared|/work/(main|shared)|BRIEF\.md")
FUNCTION_MAX = 70  # lines from the opening to the closing brace; most are far below
FILE_MAX = 750
# Tables are long and flat.
ALLOWED_SIZES = {"server/config/keys.c"}


def files(folders, suffixes):
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "--"] + folders, check=True, capture_output=True, text=True)
    return sorted(f for f in set(out.stdout.split("\n")) if f.endswith(suffixes) and os.path.exists(f))


def sources(*folders, suffixes=(".c", ".h")):
    return files(list(folders) or ["server", "backends"], suffixes)


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def strip(text):
    """The text with the contents of comments, strings and characters blanked; lines stay where they are."""
    def blank(m):
        s = m.group(0)
        if s.startswith("/"):
            return re.sub(r"[^\n]", " ", s)
        return s[0] + re.sub(r"[^\n]", " ", s[1:-1]) + s[-1]
    return re.sub(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", blank, text, flags=re.S)


def line_of(text, pos):
    return text.count("\n", 0, pos) + 1


# ---- checks: each yields "file:line: message" ---------------------------------------------------------------------

def layer_of(path):
    fits = [p for p in LAYERS if path.startswith(p)]
    return LAYERS[max(fits, key=len)] if fits else None


def check_include(path, number, line):
    m = re.match(r"\s*#\s*include\s*([<\"])([^>\"]+)", line)
    if m is None:
        return
    quoted, name = m.group(1) == "\"", m.group(2)
    for library, users in LIBRARIES.items():
        if name.startswith(library) and not path.startswith(tuple(users)):
            yield f"{path}:{number}: only {', '.join(users)} may include {name}"
    if path in PURE and re.fullmatch(PURE[path], m.group(0).split(None, 1)[1] + ("\"" if quoted else ">")) is None:
        yield f"{path}:{number}: the selector is pure and may not include {name}"
    allowed = layer_of(path)
    if allowed is None:
        yield f"{path}:{number}: the folder has no place in the layers"
    elif quoted and not name.startswith(tuple(allowed)):
        yield f"{path}:{number}: may not include {name}"


def check_includes():
    for path in sources():
        for number, line in enumerate(read(path).split("\n"), 1):
            yield from check_include(path, number, line)


def check_headers(cc):
    """Every header compiles alone, with every warning."""
    command = [cc, "-std=c17", "-fsyntax-only", "-D_GNU_SOURCE", "-DSG_VERSION=\"0\"", "-Iserver", "-I.", "-Wall", "-Wextra", "-Wpedantic",
               "-Werror", "-x", "c"]

    def compile_one(path):
        r = subprocess.run(command + [path], capture_output=True, text=True)
        return f"{path}:1: does not compile alone\n{r.stderr}" if r.returncode else None
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        yield from filter(None, pool.map(compile_one, sources(suffixes=(".h",))))


def arguments(text, pos):
    """What is between the parentheses that open at pos."""
    depth = 0
    for i in range(pos, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return text[pos + 1:i]
    return text[pos + 1:]


def check_calls_in(path, text):
    code = strip(text)
    why = {name: reason for names, reason in BANNED.items() for name in names.split()}
    for m in re.finditer(r"(?<![\w.>])(\w+)\s*\(", code):
        name, where = m.group(1), f"{path}:{line_of(code, m.start())}"
        if name in why and not any(path.startswith(p) and name == n for p, n in ALLOWED_CALLS):
            yield f"{where}: {name}: {why[name]}"
        flag = BIRTHS.get(name)
        given = arguments(code, m.end() - 1)
        if flag and flag not in given and (path, name) not in ALLOWED_BIRTHS:
            yield f"{where}: {name} without {flag}"
        if name == "curl_easy_setopt" and re.search(r",\s*CURL(?!OPT_)\w+$", given):
            yield f"{where}: a bare {given.split()[-1]}: it is a long for some releases of curl and an enum for others, which refuse it"


def check_calls():
    for path in sources():
        yield from check_calls_in(path, read(path))


def check_words():
    for path in files(["."], ""):
        if path == "tests/lint/lint.py" or os.path.islink(path):
            continue
        with open(path, "rb") as f:
            text = f.read().decode("utf-8", "replace")
        for m in WORDS.finditer(text):
            yield f"{path}:{line_of(text, m.start())}: mentions {m.group(0)}, which readers of the product do not have"


def check_sizes():
    for path in sources():
        lines = strip(read(path)).split("\n")
        if path in ALLOWED_SIZES:
            continue
        if len(lines) > FILE_MAX:
            yield f"{path}:1: {len(lines)} lines; split by subject above {FILE_MAX}"
        begin = None
        for number, line in enumerate(lines, 1):
            if line.startswith("{"):
                begin = number
            elif line.startswith("}") and begin is not None:
                if number - begin > FUNCTION_MAX:
                    yield f"{path}:{begin}: a function of {number - begin} lines; at most {FUNCTION_MAX}"
                begin = None


def check_symbols(build):
    """No function or variable is in two libraries: the linker takes the one that it meets first, without a word."""
    where = {}
    for folder, _, names in os.walk(build):
        for name in names:
            if not name.endswith(".a") or os.path.relpath(folder, build).split(os.sep)[0] not in ("server", "backends"):
                continue
            out = subprocess.run(["nm", "-g", "--defined-only", os.path.join(folder, name)], check=True, capture_output=True, text=True).stdout
            for line in out.splitlines():
                words = line.split()
                if len(words) == 3 and words[1] in "TDBR":
                    where.setdefault(words[2], set()).add(name)
    if not where:
        yield f"{build}: there are no libraries in it"
    for symbol, libraries in sorted(where.items()):
        if len(libraries) > 1:
            yield f"{symbol} is defined in {', '.join(sorted(libraries))}"


def check_self():
    """The checks find what they are there for."""
    def expect(found, number, what):
        found = list(found)
        if len(found) != number:
            yield f"tests/lint/lint.py:1: {what}: expected {number}, found {found}"
    yield from expect(check_include("server/base/x.c", 1, '#include "model/caps.h"'), 1, "base includes model")
    yield from expect(check_include("server/model/x.c", 1, '#include "base/str.h"'), 0, "model includes base")
    yield from expect(check_include("backends/fake/x.c", 1, '#include "http/request.h"'), 1, "a backend includes http")
    yield from expect(check_include("backends/fake/x.c", 1, '#include "lease/store.h"'), 1, "a backend includes lease")
    yield from expect(check_include("server/lease/x.c", 1, '#include "backends/driver.h"'), 1, "lease includes the drivers")
    yield from expect(check_include("server/service/x.c", 1, '#include "backends/fake/fake.h"'), 1, "service includes one backend")
    yield from expect(check_include("server/service/x.c", 1, "#include <microhttpd.h>"), 1, "service includes microhttpd")
    yield from expect(check_include("server/lease/registry.c", 1, "#include <sqlite3.h>"), 1, "the registry includes sqlite")
    yield from expect(check_include("server/lease/store_db.c", 1, "#include <sqlite3.h>"), 0, "the store includes sqlite")
    yield from expect(check_include("server/select/select.c", 1, "#include <jansson.h>"), 1, "the selector includes jansson")
    yield from expect(check_include("server/select/select.c", 1, "#include <string.h>"), 0, "the selector includes string.h")
    yield from expect(check_include("other/x.c", 1, '#include "base/str.h"'), 1, "a folder without a place")
    yield from expect(check_calls_in("server/x.c", "f(); /* sleep(1) */ s = \"atoi(x)\"; a->system(1);"), 0, "comments, strings, members")
    yield from expect(check_calls_in("server/x.c", "sleep(1);\nx = strtol (s, 0, 0);"), 2, "banned calls")
    yield from expect(check_calls_in("server/x.c", "open(f(x),\n O_RDONLY);"), 1, "open without O_CLOEXEC")
    yield from expect(check_calls_in("server/x.c", "open(f(x),\n O_RDONLY | O_CLOEXEC);"), 0, "open with O_CLOEXEC")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    checks = {"includes": check_includes, "calls": check_calls, "words": check_words, "sizes": check_sizes, "self": check_self}
    parser.add_argument("check", choices=sorted(checks) + ["headers", "symbols"])
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--build", default="build", help="where the libraries are, for symbols")
    args = parser.parse_args()
    checks.update(headers=lambda: check_headers(args.cc), symbols=lambda: check_symbols(args.build))
    found = list(checks[args.check]())
    for line in found:
        print(line)
    print(f"{args.check}: {len(found) or 'nothing'} found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
