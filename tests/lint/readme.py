#!/usr/bin/env python3
"""Writes the table of settings into README.md. Run from the top of the tree: readme.py build/sandgate."""

import re
import subprocess
import sys

table = subprocess.run([sys.argv[1], "check-config", "--table"], check=True, capture_output=True, text=True).stdout
with open("README.md", encoding="utf-8") as f:
    text = f.read()
text = re.sub(r"(<!-- configuration table[^\n]*\n).*?(<!-- /configuration table)", lambda m: m.group(1) + table + m.group(2), text, flags=re.S)
with open("README.md", "w", encoding="utf-8") as f:
    f.write(text)
