"""What iterators cost: 100,000 items through ten operators.

python benchmarks/plan_overhead.py
"""

from __future__ import annotations

import time

from sf.plans import LocalIterator

ITEMS, OPERATORS = 100_000, 10


def main() -> None:
    plan = LocalIterator.of(range(ITEMS))
    for _ in range(OPERATORS):
        plan = plan.for_each(lambda item: item)
    start = time.perf_counter()
    last = plan.take(ITEMS)[-1]
    seconds = time.perf_counter() - start
    assert last == ITEMS - 1
    print(
        f"{ITEMS} items through {OPERATORS} operators: {seconds:.2f} s, {1e9 * seconds / ITEMS / OPERATORS:.0f} ns each"
    )


if __name__ == "__main__":
    main()
