"""What happens in the demo transcript: a team of agents mends a small inventory service.

Two faults: two orders can both get the last piece, and one article is on the shelf under two spellings. On
the way comes everything that makes a transcript hard to read in: several calls in one message and their
results in another order, a call that is never answered, a result without its call, a compaction, rows of
unknown types, a lost parent, another file as parent, CR LF, a line of 200 KB, and more than ASCII.
"""

from tests.golden import demo_files as files
from tests.golden.demo_session import Session


def tell(session: Session) -> None:
    """Writes the whole story into `session`."""
    _morning(session)
    _look_around(session)
    _compact(session, kept=_reproduce(session))
    _mend_the_race(session)
    _two_spellings(session)
    _a_wrong_turn(session)
    _merge(session)
    _review(session)
    _evening(session)


def _morning(s: Session) -> None:
    s.header("/home/priya/stockroom", parent="/home/priya/.pi/agent/sessions/2025-10-31_lunch-queue.jsonl")
    s.entry("session_info", name="Sold twice")
    s.use_model("anthropic", "claude-sonnet-4-5")
    s.entry("thinking_level_change", thinkingLevel="medium")
    # Its call is in the session that this one was forked from.
    s.result(s.call("bash", command="git status --short"), " M notes.md\n")
    s.user(
        "Good morning. Two customers were promised our last crème brûlée set on Saturday, and both paid 😬. "
        "Amélie from the shop says it is not the first time. Please find out how, and mend it. "
        "Scout has the Windows machine in the warehouse, tester the load generator, and scribe keeps notes."
    )
    s.say(
        "On it. I will first look at how a reservation is made, then try to make it happen here before I "
        "change anything.",
        thinking="Oversold: the check and the write are apart, or stock is counted wrongly. Look at both.",
    )
    s.entry("handoff", **{"from": "priya", "to": "lead", "note": "owns the oversell bug until it is closed"})
    s.team("tester", "Load generator is warm. Tell me when you want 8 workers on the reserve endpoint.")
    s.team("scribe", "Notes opened: “2025-11-03 sold twice”. I will keep decisions, not chatter.")


def _look_around(s: Session) -> None:
    tree, readme, log = (
        s.call("bash", command="tree -a -I .git"),
        s.call("read", path="README.md"),
        s.call("bash", command="git log --oneline"),
    )
    s.say("Three looks at once.", tree, readme, log)
    s.result(log, files.GIT_LOG)
    s.result(tree, files.TREE)
    s.result(readme, files.README)
    s.say("“Eight workers instead of one” stands out. A race would have been asleep before that commit.")
    store, api, sku, importer = (
        s.call("read", path=f"stockroom/{name}.py") for name in ("store", "api", "sku", "importer")
    )
    s.say("Now the code of it.", store, api, sku, importer)
    s.result(importer, files.IMPORTER)
    s.result(sku, files.SKU)
    s.result(store, files.STORE)
    s.result(api, files.API)
    s.say(
        "`Store.reserve` reads, thinks, and writes what it thought. With eight threads two orders can read "
        "the same count, and both are let through. The journal then has two rows where the stock has one "
        "reservation, which is a trace we can look for.",
        thinking="The UPDATE writes an absolute value computed from a stale read. A classic lost update.",
    )
    s.user("Can you prove that it is this, and not the importer? Amélie is sure it is the importer.")
    s.ask(
        "Fair. First what the tables promise.",
        "bash",
        files.MIGRATION_STOCK + "\n" + files.MIGRATION_JOURNAL,
        command="cat migrations/*.sql",
    )
    s.shell(
        "sqlite3 prod-copy.db 'SELECT sku, reserved, sum(quantity) AS promised "
        "FROM stock JOIN journal USING (sku) GROUP BY sku HAVING reserved <> promised'",
        "BRÛLÉE-SET|1|2\nMUG-RED|14|16\n",
    )
    s.say(
        "There is the trace, on a copy of production: for two articles the journal promises more than the "
        "stock has set aside. `BRÛLÉE-SET` is Saturday's."
    )
    s.team("scribe", "Noted: journal and stock disagree for BRÛLÉE-SET (1 lost) and MUG-RED (2 lost).")


def _reproduce(s: Session) -> str:
    s.ask("What do the tests say today?", "bash", "9 passed in 0.22s\n", command="pytest -q")
    s.ask("And what do they look at?", "read", files.TEST_STORE, path="tests/test_store.py")
    s.say("All of them run one order after the other, so none of them can see this.")
    write = s.call("write", path="tests/test_race.py", content=files.TEST_RACE)
    run = s.call("bash", command="pytest -q tests")
    s.say("A test that holds both orders between their read and their write.", write, run)
    s.result(run, files.RACE_FAILS, error=True)
    s.result(write, f"wrote {len(files.TEST_RACE.splitlines())} lines\n")
    s.say("It fails, each time and not now and then: `[True, True]`. Both orders got the last one 🎯.")
    s.user("Good. How often does it happen under real load?")
    s.team("tester", "Starting: 8 workers, 1180 orders over 7 articles. Four minutes.")
    log, lost = files.load_test_log()
    load = s.call("bash", command="python loadtest/run.py --workers 8 --orders 1180 --verbose")
    s.say("Let us see.", load)
    s.team("tester", "Running. The log will be long, sorry 🙈")
    s.result(load, log)
    s.say(
        f"{files.LOAD_ORDERS} orders, and {lost} of them lost: the journal has {files.LOAD_ORDERS} rows, "
        f"the stock says {files.LOAD_ORDERS - lost}. Look at L100056 and L100057: both read the same count, "
        "then both write. So about one order in a hundred, whenever two are in flight for one article."
    )
    kept = s.entry("custom", customType="bookmark", data={"line": "load test"})
    s.entry("label", targetId=kept, label="proof")
    s.team(
        "scribe",
        f"Noted: lost update proven by test and by load, {lost} of {files.LOAD_ORDERS}. Not the importer.",
    )
    return kept


def _compact(s: Session, kept: str) -> None:
    s.entry(
        "compaction",
        summary=(
            "## Goal\nTwo orders can both be promised the last piece. Find out how, and mend it.\n\n"
            "## Found\n- `Store.reserve` reads `reserved` and later writes an absolute value: lost update.\n"
            "- Asleep until 51b0aa2 (eight workers).\n- `tests/test_race.py` shows it each time.\n"
            "- Load test: 10 of 1180 reservations lost.\n\n## Next\nMake check and write one statement."
        ),
        firstKeptEntryId=kept,
        tokensBefore=71_204,
        details={
            "readFiles": ["stockroom/store.py", "stockroom/api.py"],
            "modifiedFiles": ["tests/test_race.py"],
        },
    )
    s.user("Go ahead and mend the race first. Small steps, please.")


def _mend_the_race(s: Session) -> None:
    s.say(
        "The smallest change: let the database check and take in one statement, and look at how many rows it "
        "touched. No lock of our own, no retry loop.",
        thinking="BEGIN IMMEDIATE would do too, but serialises all articles. A guarded UPDATE is narrower.",
    )
    edit, run = (
        s.call("edit", path="stockroom/store.py", patch=files.STORE_PATCH),
        s.call("bash", command="pytest -q"),
    )
    s.say("", edit, run)
    s.result(edit, "1 hunk applied\n")
    s.result(run, "10 passed in 0.44s\n")
    s.say("The race test passes, and so do the nine others ✅.")
    s.ask(
        "Does the test still fail without the change? A test that cannot fail proves nothing.",
        "bash",
        files.RACE_FAILS + "Restored stockroom/store.py\n",
        command="git stash push stockroom/store.py && pytest -q; git stash pop",
    )
    s.team("tester", "Same load again on the mended code?")
    s.ask(
        "Yes please, without the long log this time.",
        "bash",
        "loadtest: journal has 1180 rows, stock says 1180 reserved\nloadtest: p50 3.1 ms, p99 11.8 ms\n",
        command="python loadtest/run.py --workers 8 --orders 1180",
    )
    s.say("1180 of 1180, and no slower.")
    first, second = (
        s.call("bash", command=f"git {words}")
        for words in ("add -A", "commit -m 'store: check and take in one statement'")
    )
    s.say("Committing this by itself.", first, second)
    s.result(second, "[main 77b1c0d] store: check and take in one statement\n 2 files changed\n")
    s.result(first, "")
    s.team("scribe", "Decision 1: reservations are one guarded UPDATE. No application lock. Commit 77b1c0d.")
    s.user("Lovely. And release()? It looked fine to me, but I am not the one who finds these things.")
    s.say(
        "`release` subtracts in the database, so it does not lose updates. But it can be sent twice: the "
        "second one subtracts again, although the journal row is gone already. I would delete the journal "
        "row first, and subtract only if there was one."
    )
    s.ask(
        "A test for that.",
        "edit",
        "1 hunk applied\n",
        path="tests/test_store.py",
        patch="+def test_release_counts_once(store): …\n",
    )
    s.ask(
        "",
        "bash",
        "FAILED tests/test_store.py::test_release_counts_once - assert 5 == 3\n1 failed, 10 passed\n",
        error=True,
        command="pytest -q",
    )
    s.ask(
        "As feared. Now the change.",
        "edit",
        "1 hunk applied\n",
        path="stockroom/store.py",
        patch="-UPDATE …\n+DELETE … then UPDATE if rowcount\n",
    )
    s.ask(
        "",
        "bash",
        "11 passed in 0.45s\n",
        command="pytest -q && git commit -qam 'store: a release counts once'",
    )
    s.team("scribe", "Decision 2: a release counts once, by its journal row.")


def _two_spellings(s: Session) -> None:
    s.user(
        "Amélie insists about the importer: after the delivery of the 28th the café mugs were “there twice”."
    )
    s.say(
        "She may be right about something else, then. Scout, can you send the delivery note as it is on disk?"
    )
    with s.windows():
        s.team(
            "scout",
            "On it. The warehouse machine writes it with Excel. 📎 delivery-2025-10-28.csv, 146 bytes.",
        )
        note = s.call("bash", command="type C:\\import\\delivery-2025-10-28.csv")
        s.say("", note)
        s.result(note, files.DELIVERY_NOTE)
        s.team(
            "scout",
            "And this is on the shelf screen: CAFE\u0301-MUG 24, CAF\u00c9-MUG 31. Same name, two rows 👀",
        )
    s.say(
        "The two names look the same and are not. In the note the é is an e and a combining accent (U+0065 "
        "U+0301), in our table it is one character (U+00E9). `clean` makes them upper case and leaves them "
        "apart: “CAFE\u0301-MUG” is nine code points, “CAF\u00c9-MUG” is eight."
    )
    s.ask(
        "Counting, to be sure.",
        "python",
        "'CAFE\u0301-MUG' 9 code points 10 bytes\n'CAF\u00c9-MUG' 8 code points 9 bytes\n"
        "equal: False\nequal after NFC: True\n",
        code="for s in rows: print(repr(s), len(s), len(s.encode()))",
    )
    s.ask(
        "How many articles have that?",
        "bash",
        "CAFE\u0301-MUG\nBRU\u0302LE\u0301E-SET\nPIN\u0303ATA-\U0001f1f2\U0001f1fd\n",
        command="sqlite3 prod-copy.db 'SELECT sku FROM stock' | python -m stockroom.odd_spellings",
    )
    s.user("So the brûlée set was hit by both at once? No wonder nobody could explain the numbers.")
    s.say("Yes: one set was counted under another spelling, and of the one that was left two were sold.")
    edit, test, run = (
        s.call("edit", path="stockroom/sku.py", patch=files.SKU_PATCH),
        s.call("write", path="tests/test_sku.py", content="def test_one_spelling(): …\n"),
        s.call("bash", command="pytest -q"),
    )
    s.say("One spelling for each article: NFC, at the one place where names come in.", edit, test, run)
    s.result(test, "wrote 18 lines\n")
    s.result(run, "14 passed in 0.47s\n")
    s.result(edit, "1 hunk applied\n")
    with s.windows():
        s.team("scout", "Imported the note again with your branch: 4 articles, 0 new rows. 👍🏽")
    s.team(
        "scribe", "Decision 3: SKUs are NFC from the door on. Not NFKC: ½ and 1/2 stay different articles."
    )
    s.user("Why not NFKC?")
    s.say(
        "It would also make ① into 1 and ﬁ into fi. Suppliers do use such signs to tell articles apart. "
        "NFC only joins what is the same character anyway."
    )


def _a_wrong_turn(s: Session) -> None:
    fork = s.say("Next: the rows that are there twice already. I would try to do it in place.")
    s.use_model("openai", "gpt-5-codex")
    s.entry("thinking_level_change", thinkingLevel="high")
    s.ask(
        "A look at what would be merged.",
        "bash",
        "CAF\u00c9-MUG      31 + 24 = 55   reserved 3 + 0\n"
        "BR\u00dbL\u00c9E-SET     1 + 6 = 7   reserved 1 + 0\n"
        "PI\u00d1ATA-\U0001f1f2\U0001f1fd      2 + 3 = 5   reserved 0 + 0\n",
        command="python -m stockroom.merge --dry-run",
    )
    soak = s.call(
        "bash",
        command="python -m stockroom.merge --in-place prod-copy.db && python loadtest/run.py --soak 3600",
    )
    s.say("Merging in place while the load runs, for an hour.", soak, stop="aborted")
    # Never answered: Priya stopped it.
    s.user("Stop, please. Not while orders come in, not even on the copy: its foreign keys are off.")
    s.say(
        "Stopped. You are right: without the foreign key the copy would not even tell us that it went wrong."
    )
    s.entry(
        "branch_summary",
        parent=fork,
        fromId=fork,
        summary="Tried to merge doubled articles in place under load. Given up: foreign keys are off.",
    )
    s.user("Let us do it as a migration, in the night, with a dry run first.")


def _merge(s: Session) -> None:
    s.say("As a migration, then. It needs `nfc` as an SQL function, which the store registers when it opens.")
    write, read = (
        s.call("write", path="migrations/0003_spelling.sql", content=files.MIGRATION_MERGE),
        s.call("bash", command="ls -l migrations"),
    )
    s.say("", write, read)
    s.result(read, "0001_stock.sql\n0002_journal.sql\n0003_spelling.sql\n")
    s.result(write, f"wrote {len(files.MIGRATION_MERGE.splitlines())} lines\n")
    s.ask(
        "On a fresh copy, with foreign keys on.",
        "bash",
        "before: 41 articles, 612 on hand, 88 reserved\n"
        "after:  38 articles, 612 on hand, 88 reserved\nforeign keys: ok\n",
        command="./fresh-copy.sh && python -m stockroom.migrate prod-copy.db",
    )
    s.say("Three articles fewer, and not a piece more or less. The sums before and after are the check.")
    s.ask(
        "And twice, since somebody will run it twice.",
        "bash",
        "before: 38 articles, 612 on hand, 88 reserved\n"
        "after:  38 articles, 612 on hand, 88 reserved\nforeign keys: ok\n",
        command="python -m stockroom.migrate prod-copy.db",
    )
    # The entry it names as its parent was never written.
    s.user("I was away for a moment and my terminal crashed. Where are we?", parent="deadbeef")
    s.say("The migration runs on the copy, once and twice, and the sums agree. What is missing is a review.")
    s.entry("presence", who=["lead", "tester", "scribe", "scout"], since="2025-11-03T09:00:00Z")
    for step, seen in (
        ("journal rows that name no article", "0"),
        ("articles with a combining mark left", "0"),
        ("articles with more reserved than on hand", "0"),
        ("orders of Saturday with two promises", "1"),
    ):
        s.ask(f"Check: {step}.", "bash", seen + "\n", command=f"python -m stockroom.audit '{step}'")
    s.say("The last one is the order that started this. It needs a human: one of the two has to be told.")
    s.user("Amélie calls them. She offers tea in the meantime 🍵.")


def _review(s: Session) -> None:
    s.team("tester", "Reviewing. I read the diff from the bottom up, as always.")
    diff, log = s.call("bash", command="git diff main --stat"), s.call("bash", command="git log --oneline -5")
    s.say("For the review:", diff, log)
    s.result(
        log,
        "c02e9b1 sku: one spelling\n5d7f3aa store: a release counts once\n77b1c0d store: check and take\n",
    )
    s.result(
        diff,
        " migrations/0003_spelling.sql | 12 ++++\n stockroom/sku.py | 8 +++-\n"
        " stockroom/store.py | 18 ++++---\n",
    )
    remarks = (
        (
            "`rowcount` is -1 for a statement that is no DML. Is it ever here?",
            "No: it is an UPDATE, always. I put an assertion beside it.",
        ),
        (
            "The rollback before the raise: why, if nothing was written?",
            "The UPDATE opened a transaction. Left open, it would block the next writer for five seconds.",
        ),
        (
            "What if `quantity` is zero?",
            "The journal's CHECK refuses it, after the UPDATE. It is rolled back; there is a test now.",
        ),
        (
            "What if `sku` has a NUL or a lone surrogate?",
            "The first is stored, the second cannot be encoded and is a 400. Both have a test.",
        ),
        (
            "`interleave` patches the store. Does it still find its place after your change?",
            "It waits in the database's own progress handler now, so it does not care how the code looks.",
        ),
        (
            "An order in Arabic came back with the SKU mirrored in the log: كوب-أحمر.",
            "Only shown so: the bytes are in order. The log viewer applies the bidi rules.",
        ),
        (
            "Should `available` be a method at all, if its answer is old when it returns?",
            "For the shop window yes, for a decision no. I say so in its docstring.",
        ),
        (
            "Is there a metric for refused reservations?",
            "There is now: `stockroom_refused_total`, without the SKU as a label.",
        ),
    )
    for remark, answer in remarks:
        s.team("tester", remark)
        s.say(answer)
    run, types, lint = (
        s.call("bash", command=command) for command in ("pytest -q", "mypy --strict stockroom", "ruff check")
    )
    s.say("All of it once more.", run, types, lint)
    s.result(lint, "All checks passed!\n")
    s.result(types, "Success: no issues found in 6 source files\n")
    s.result(run, "19 passed in 0.61s\n")
    s.team("tester", "Approved ✅. Ten thousand orders over night will tell the rest.")
    s.team("scribe", "Review closed: eight remarks, eight answers, four new tests.")


def _evening(s: Session) -> None:
    s.user("Then let us get it out. Tonight at 22:00, migration first.")
    s.ask("Tagging.", "bash", "v1.4.0\n", command="git tag v1.4.0 && git describe")
    s.ask(
        "The notes for the shop, in their words.",
        "write",
        "wrote 12 lines\n",
        path="RELEASE.md",
        content=(
            "# 1.4.0\n\n- The last piece is sold once. If two people want it, the second one is told.\n"
            "- A reservation that is given back twice counts once.\n- Café mugs, brûlée sets and piñatas are "
            "on the shelf under one name, however the supplier spells it.\n"
        ),
    )
    with s.windows():
        s.team("scout", "Shelf screen checked with the new build: CAFÉ-MUG 55, one row. Going home 🚲")
    s.ask(
        "Dry run against production, reading only.",
        "bash",
        "would merge: CAF\u00c9-MUG, BR\u00dbL\u00c9E-SET, PI\u00d1ATA-\U0001f1f2\U0001f1fd\n"
        "sums agree: 615 on hand, 90 reserved\n",
        command="python -m stockroom.migrate --dry-run --url $PROD",
    )
    s.say("As on the copy, with three pieces and two orders more since this morning.")
    s.user("Thank you all. I will watch it at ten. नमस्ते 🙏🏽")
    s.say(
        "What I leave behind: three commits, one migration, tests that failed before, and one customer with "
        "tea. Should the sums differ tonight, the migration stops by itself and changes nothing."
    )
    s.team("scribe", "Notes closed. Decisions: 3. Open: the overnight run.")
    # The last word is a call that still waits.
    overnight = s.call("bash", command="python loadtest/run.py --workers 8 --orders 10000 --until 06:00")
    s.say("Started the overnight run. Its answer comes in the morning.", overnight)
