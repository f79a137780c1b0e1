"""`python -m benchmarks [module ...]`: run the benchmarks and print one table; status 1 when a limit is exceeded."""

import importlib
import os
import pkgutil
import sys

from rich.console import Console
from rich.table import Table

import benchmarks
from benchmarks.row import Row


def main(names: list[str]) -> int:
    known = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
    if unknown := sorted(set(names) - set(known)):
        print(f"no benchmark named {', '.join(unknown)}", file=sys.stderr)
        return 2
    modules = [importlib.import_module(f"benchmarks.{name}") for name in names or known if name != "__main__"]
    rows: list[Row] = []
    for module in modules:
        if hasattr(module, "rows"):
            print(f"{module.__name__} ...", file=sys.stderr, flush=True)
            rows += module.rows()

    table = Table(title=f"Benchmarks on {os.cpu_count()} cores")
    for heading, justify in (("", "left"), ("measured", "right"), ("limit", "right"), ("", "left"), ("how", "left")):
        table.add_column(heading, justify=justify, overflow="fold")
    for row in rows:
        value, limit = ("" if x is None else f"{x:.3g} {row.unit}" for x in (row.value, row.limit))
        verdict = "" if row.limit is None else "[green]kept" if row.kept else "[red]MISSED"
        table.add_row(row.name, value, limit, verdict, row.note)
    Console().print(table)
    return 0 if all(row.kept for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
