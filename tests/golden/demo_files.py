"""The files, listings and logs that the agents of the demo transcript read and write."""

TREE = """\
.
├── README.md
├── pyproject.toml
├── loadtest/
│   └── run.py
├── migrations/
│   ├── 0001_stock.sql
│   └── 0002_journal.sql
├── stockroom/
│   ├── __init__.py
│   ├── api.py
│   ├── importer.py
│   ├── sku.py
│   └── store.py
└── tests/
    ├── test_api.py
    ├── test_importer.py
    └── test_store.py
"""

README = """\
# Stockroom

Keeps count of what is on the shelves, and promises no more than is there.

- `POST /reserve` takes `{sku, quantity, order_id}` and answers 201, or 409 if there is not enough.
- `POST /release` gives a reservation back.
- `python -m stockroom.importer FILE.csv` reads a supplier's delivery note.
"""

STORE = '''\
import sqlite3


class OutOfStock(Exception):
    """There is not enough on the shelf that is not promised already."""


class Store:
    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, check_same_thread=False)

    def available(self, sku: str) -> int:
        on_hand, reserved = self._db.execute(
            "SELECT on_hand, reserved FROM stock WHERE sku = ?", (sku,)
        ).fetchone()
        return on_hand - reserved

    def reserve(self, sku: str, quantity: int, order_id: str) -> None:
        on_hand, reserved = self._db.execute(
            "SELECT on_hand, reserved FROM stock WHERE sku = ?", (sku,)
        ).fetchone()
        if on_hand - reserved < quantity:
            raise OutOfStock(sku)
        self._db.execute(
            "UPDATE stock SET reserved = ? WHERE sku = ?", (reserved + quantity, sku)
        )
        self._db.execute(
            "INSERT INTO journal (order_id, sku, quantity) VALUES (?, ?, ?)",
            (order_id, sku, quantity),
        )
        self._db.commit()

    def release(self, sku: str, quantity: int, order_id: str) -> None:
        self._db.execute(
            "UPDATE stock SET reserved = reserved - ? WHERE sku = ?", (quantity, sku)
        )
        self._db.execute("DELETE FROM journal WHERE order_id = ? AND sku = ?", (order_id, sku))
        self._db.commit()
'''

API = """\
from concurrent.futures import ThreadPoolExecutor

from stockroom.sku import clean
from stockroom.store import OutOfStock, Store

pool = ThreadPoolExecutor(max_workers=8)


def handle_reserve(store: Store, body: dict) -> tuple[int, dict]:
    try:
        store.reserve(clean(body["sku"]), int(body["quantity"]), body["order_id"])
    except OutOfStock:
        return 409, {"error": "out of stock", "sku": body["sku"]}
    return 201, {"order_id": body["order_id"]}
"""

SKU = """\
def clean(sku: str) -> str:
    return sku.strip().upper()
"""

IMPORTER = """\
import csv
import sys

from stockroom.sku import clean


def read(path: str) -> list[tuple[str, int]]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        return [(clean(row["sku"]), int(row["count"])) for row in csv.DictReader(file, delimiter=";")]


if __name__ == "__main__":
    for sku, count in read(sys.argv[1]):
        print(sku, count)
"""

MIGRATION_STOCK = """\
CREATE TABLE stock (
    sku      TEXT PRIMARY KEY,
    on_hand  INTEGER NOT NULL CHECK (on_hand >= 0),
    reserved INTEGER NOT NULL DEFAULT 0 CHECK (reserved >= 0)
);
"""

MIGRATION_JOURNAL = """\
CREATE TABLE journal (
    order_id TEXT NOT NULL,
    sku      TEXT NOT NULL REFERENCES stock (sku),
    quantity INTEGER NOT NULL CHECK (quantity > 0),
    PRIMARY KEY (order_id, sku)
);
"""

TEST_STORE = """\
import pytest

from stockroom.store import OutOfStock


def test_reserves_what_is_there(store):
    store.reserve("MUG-RED", 2, "o1")
    assert store.available("MUG-RED") == 1


def test_refuses_what_is_not_there(store):
    with pytest.raises(OutOfStock):
        store.reserve("MUG-RED", 4, "o1")


def test_release_gives_back(store):
    store.reserve("MUG-RED", 2, "o1")
    store.release("MUG-RED", 2, "o1")
    assert store.available("MUG-RED") == 3
"""

TEST_RACE = '''\
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from stockroom.store import OutOfStock


def test_the_last_one_is_sold_once(store, interleave):
    """Two orders that both read before either writes: one gets it, one is told."""
    start = Barrier(2)

    def order(number: int) -> bool:
        start.wait(timeout=5)
        try:
            store.reserve("MUG-RED", 3, f"o{number}")
        except OutOfStock:
            return False
        return True

    with interleave("between read and write"), ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(order, (1, 2))) == [False, True]
    assert store.available("MUG-RED") == 0
'''

RACE_FAILS = """\
=================================== FAILURES ===================================
________________________ test_the_last_one_is_sold_once ________________________
>       assert sorted(pool.map(order, (1, 2))) == [False, True]
E       assert [True, True] == [False, True]
E         At index 0 diff: True != False

tests/test_race.py:20: AssertionError
=========================== short test summary info ============================
FAILED tests/test_race.py::test_the_last_one_is_sold_once
1 failed, 9 passed in 0.41s
"""

STORE_PATCH = """\
--- a/stockroom/store.py
+++ b/stockroom/store.py
@@ -19,14 +19,14 @@ class Store:
     def reserve(self, sku: str, quantity: int, order_id: str) -> None:
-        on_hand, reserved = self._db.execute(
-            "SELECT on_hand, reserved FROM stock WHERE sku = ?", (sku,)
-        ).fetchone()
-        if on_hand - reserved < quantity:
-            raise OutOfStock(sku)
-        self._db.execute(
-            "UPDATE stock SET reserved = ? WHERE sku = ?", (reserved + quantity, sku)
-        )
+        # One statement checks and takes. Read first and write later, and two orders both get the last one.
+        taken = self._db.execute(
+            "UPDATE stock SET reserved = reserved + ? WHERE sku = ? AND on_hand - reserved >= ?",
+            (quantity, sku, quantity),
+        )
+        if taken.rowcount == 0:
+            self._db.rollback()
+            raise OutOfStock(sku)
"""

SKU_PATCH = '''\
--- a/stockroom/sku.py
+++ b/stockroom/sku.py
@@ -1,2 +1,8 @@
+import unicodedata
+
+
 def clean(sku: str) -> str:
-    return sku.strip().upper()
+    """One spelling for each article: composed, no blanks around it, upper case."""
+    return unicodedata.normalize("NFC", sku).strip().upper()
'''

MIGRATION_MERGE = """\
-- Articles that were entered under two spellings become one row. Run `python -m stockroom.merge --dry-run`
-- first: it prints what it would add up.
CREATE TEMP TABLE spelling AS SELECT sku, nfc(sku) AS one FROM stock WHERE sku <> nfc(sku);
CREATE TEMP TABLE extra AS
    SELECT one, sum(on_hand) AS on_hand, sum(reserved) AS reserved
    FROM stock JOIN spelling USING (sku) GROUP BY one;
UPDATE stock SET
    on_hand  = on_hand  + (SELECT on_hand  FROM extra WHERE one = stock.sku),
    reserved = reserved + (SELECT reserved FROM extra WHERE one = stock.sku)
WHERE sku IN (SELECT one FROM extra);
UPDATE journal SET sku = nfc(sku) WHERE sku IN (SELECT sku FROM spelling);
DELETE FROM stock WHERE sku IN (SELECT sku FROM spelling);
"""

GIT_LOG = """\
9c41d7e (HEAD -> main) importer: accept delivery notes from Cr\u00e8merie Duch\u00e2tel
51b0aa2 api: eight workers instead of one, the queue was too long at lunch
e07f1c9 store: journal of reservations
3d2ac10 first version
"""

DELIVERY_NOTE = (
    "\ufeffsku;count;note\r\n"
    "cafe\u0301-mug;24;fragile \U0001f4e6\r\n"
    "bru\u0302le\u0301e-set;6;torch included \U0001f525\r\n"
    "th\u00e9-tin;40;\r\n"
    "pin\u0303ata-\U0001f1f2\U0001f1fd;3;\U0001f469\U0001f3fd\u200d\U0001f527 assembled\r\n"
)

_SKUS = ("MUG-RED", "MUG-BLUE", "CAF\u00c9-MUG", "TH\u00c9-TIN", "SPOON-6", "TRAY-L", "BR\u00dbL\u00c9E-SET")
LOAD_ORDERS = 1_180
"""Orders of the load test. Makes its log a little over 200 KB."""
_RACE_EVERY, _FIRST_RACE = 118, 57


def load_test_log() -> tuple[str, int]:
    """The log of a load test, and how many reservations it lost.

    Now and then an order reads its article's count before the order in front of it has written it.
    """
    reserved = dict.fromkeys(_SKUS, 0)
    lines = [f"loadtest: 8 workers, {LOAD_ORDERS} orders, quantity 1, on_hand 500 each"]
    lost = 0
    for number in range(LOAD_ORDERS):
        sku = _SKUS[number // 2 * 5 % len(_SKUS)]
        races = number % _RACE_EVERY == _FIRST_RACE
        seen = reserved[sku] - races
        lost += races
        reserved[sku] = seen + 1
        tick = number - races
        clock = f"09:{41 + tick // 300:02d}:{tick // 5 % 60:02d}.{tick % 5 * 200 + tick % 7:03d}"
        order = f"worker-{number * 3 % 8} order=L{100_000 + number} sku={sku}"
        read = f"{clock} INFO  {order} read  on_hand=500 reserved={seen} available={500 - seen}"
        lines.insert(len(lines) - races, read)
        lines.append(f"{clock} INFO  {order} wrote reserved={seen + 1} status=201")
    lines += [f"loadtest: {sku}: reserved={count}" for sku, count in reserved.items()]
    lines.append(f"loadtest: journal has {LOAD_ORDERS} rows, stock says {sum(reserved.values())} reserved")
    return "\n".join(lines) + "\n", lost
