"""The published JSON Schemas: what the models say, in files that are checked for drift."""

import enum
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator

from sexton.schemas import generate, json_schema
from sexton.schemas.base import SCHEMA_VERSION, Message
from sexton.schemas.json_schema import DIALECT, json_schemas, messages
from sexton.schemas.outcome import RejectionCode
from sexton.schemas.span import SpanState
from tests.schemas_kit.examples import COMMANDS, OUTCOMES, RECORDS

ROOT: Final = Path(__file__).parents[2]
PUBLISHED: Final = ROOT / "schemas"
SCHEMAS: Final = json_schemas()
TIMEOUT_S: Final = 60


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every object inside a JSON value."""
    match value:
        case dict():
            yield value
            for item in value.values():
                yield from nodes(item)
        case list():
            for item in value:
                yield from nodes(item)


def run(*arguments: str, cwd: Path = ROOT, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sexton.schemas.generate", *arguments],
        cwd=cwd,
        env={"PYTHONHASHSEED": hash_seed, "PATH": "", "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


# --- drift -----------------------------------------------------------------------------------------------


def test_the_published_schemas_are_what_the_models_say() -> None:
    """If this fails: make schemas, look at the difference, and commit it if it only adds."""
    assert [] == list(generate.differences(PUBLISHED))


def test_check_says_so_and_writes_nothing(tmp_path: Path) -> None:
    """Each file that differs, is missing or is left over is named. Exits 1, and 0 when all is right."""
    assert 0 == run("--out", str(tmp_path)).returncode
    assert 0 == run("--check", "--out", str(tmp_path)).returncode
    (tmp_path / "json" / "append.schema.json").write_text("{}\n")
    (tmp_path / "json" / "prune.schema.json").unlink()
    (tmp_path / "json" / "merge.schema.json").write_text("{}\n")
    (tmp_path / "asyncapi.json").write_bytes(
        (tmp_path / "asyncapi.json").read_bytes().replace(b"\n", b"\r\n")
    )
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    checked = run("--check", "--out", str(tmp_path))
    assert 1 == checked.returncode
    assert "" == checked.stdout
    assert [
        "differs: asyncapi.json",
        "differs: json/append.schema.json",
        "missing: json/prune.schema.json",
        "left over: json/merge.schema.json",
    ] == checked.stderr.splitlines()[:-1]
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*.json")}


def test_writing_mends_all_of_it(tmp_path: Path) -> None:
    """What is left over is removed; writing again changes nothing."""
    generate.write(tmp_path)
    (tmp_path / "json" / "merge.schema.json").write_text("{}\n")
    (tmp_path / "json" / "append.schema.json").write_text("{}\n")
    assert 2 == len(generate.write(tmp_path))
    assert [] == list(generate.differences(tmp_path))
    assert [] == generate.write(tmp_path)


def test_the_same_models_give_the_same_bytes(tmp_path: Path) -> None:
    """Whatever the process's hash seed, and with a line end behind."""
    for seed in ("1", "2"):
        assert 0 == run("--out", str(tmp_path / seed), hash_seed=seed).returncode
    first, second = (
        {path.relative_to(tmp_path / seed): path.read_bytes() for path in (tmp_path / seed).rglob("*.json")}
        for seed in ("1", "2")
    )
    assert first == second
    assert all(data.endswith(b"}\n") and b"\r" not in data for data in first.values())


def test_a_folder_that_is_not_there_is_all_missing(tmp_path: Path) -> None:
    """`--check` does not make it."""
    out = tmp_path / "nowhere"
    assert len(generate.files()) == len(list(generate.differences(out)))
    assert not out.exists()


def test_an_installed_copy_writes_nowhere_by_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Outside of a checkout, `--out` must be given; nothing is put beside the installed package."""
    monkeypatch.setattr(generate, "_PACKAGE", tmp_path / "site-packages" / "sexton" / "schemas")
    with pytest.raises(SystemExit) as caught:
        generate.main([])
    assert 2 == caught.value.code


# --- what they say ---------------------------------------------------------------------------------------


def test_every_message_is_published_under_a_name_of_its_own() -> None:
    """All commands, records and outcomes, whatever is asked and answered, and the three unions."""
    assert {*messages(), "command", "record", "outcome"} == set(SCHEMAS)
    assert set(SCHEMAS) >= {*COMMANDS, *RECORDS, *OUTCOMES, "pointer", "hard_failure_record", "dead_letter"}
    assert all(issubclass(message, Message) for message in messages().values())


def test_a_message_of_somebody_else_is_not_published() -> None:
    """A program that has messages of its own does not find them among ours."""

    class Theirs(Message):
        """Not ours."""

    assert Theirs not in messages().values()


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_one(name: str) -> None:
    """It is valid by its own dialect, and says what it is."""
    schema = SCHEMAS[name]
    Draft202012Validator.check_schema(schema)
    assert DIALECT == schema["$schema"]
    assert f"urn:sexton:schema:{name}" == schema["$id"]
    assert schema["title"]
    assert schema["description"]


def test_no_two_schemas_have_the_same_id() -> None:
    """Nor the same title."""
    for key in ("$id", "title"):
        assert len(SCHEMAS) == len({schema[key] for schema in SCHEMAS.values()})


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_stands_alone(name: str) -> None:
    """Every reference leads to a definition in the same document, and every definition is referred to."""
    schema = SCHEMAS[name]
    definitions = {f"#/$defs/{title}" for title in schema.get("$defs", {})}
    assert definitions == {node["$ref"] for node in nodes(schema) if "$ref" in node}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_additive_everywhere(name: str) -> None:
    """No part forbids a field that it does not name, and the text says that they are kept."""
    schema = SCHEMAS[name]
    assert "kept and passed on" in schema["description"]
    for node in nodes(schema):
        assert node.get("additionalProperties", True) is True
        assert "unevaluatedProperties" not in node
        if "properties" in node and node.get("type") == "object":
            assert node["additionalProperties"] is True


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_sender_says_what_it_speaks_and_which_message_it_is(name: str) -> None:
    """The schema version and what tells kinds apart are required of a sender, at every level."""
    for node in nodes(SCHEMAS[name]):
        properties = node.get("properties", {}) if node.get("type") == "object" else {}
        for field, schema in properties.items():
            if field == "schema_version":
                assert SCHEMA_VERSION == schema["maximum"]
            if field == "schema_version" or "const" in schema:
                assert field in node["required"]
                assert "default" not in schema


@pytest.mark.parametrize(
    ("union", "field", "members"),
    [("command", "kind", COMMANDS), ("record", "kind", RECORDS), ("outcome", "status", OUTCOMES)],
)
def test_a_union_is_told_apart_by_one_field(union: str, field: str, members: tuple[str, ...]) -> None:
    """Each member has a constant of its own there."""
    schema = SCHEMAS[union]
    assert field == schema["discriminator"]["propertyName"]
    titles = [ref["$ref"].removeprefix("#/$defs/") for ref in schema["oneOf"]]
    assert list(members) == [schema["$defs"][title]["properties"][field]["const"] for title in titles]


def test_bytes_say_their_alphabet() -> None:
    """It is the URL-safe one."""
    for name in ("fetch_part", "put_request"):
        data = SCHEMAS[name]["properties"]["data"]
        assert "base64url" == data["contentEncoding"]
        assert "URL-safe" in data["description"]


def test_the_words_of_an_enum_are_explained() -> None:
    """The docstrings of its members are in the schema."""
    state = SCHEMAS["snapshot"]["$defs"]["SpanState"]
    assert [member.value for member in SpanState] == state["enum"]
    assert "- `live`: In the active view." in state["description"].splitlines()


def test_an_open_enum_allows_words_of_later() -> None:
    """The known ones are examples."""
    code = SCHEMAS["rejected"]["$defs"]["RejectionCode"]
    assert "enum" not in code
    assert [member.value for member in RejectionCode] == code["examples"]
    assert Draft202012Validator(code).is_valid("budget_spent")
    assert not Draft202012Validator(code).is_valid("Two words")


def test_descriptions_are_paragraphs() -> None:
    """The line breaks of the source are not in them."""
    for schema in SCHEMAS.values():
        for node in nodes(schema):
            text = node.get("description")
            if isinstance(text, str):
                assert all("\n" not in p or p.startswith("- ") for p in text.split("\n\n"))
                assert "x-note" not in node


def test_enums_are_found_by_their_source() -> None:
    """An enum whose members have no docstrings is published without explanations."""

    class Plain(enum.StrEnum):
        A = "a"

    assert "" == json_schema._described_members(Plain)


def test_the_files_are_json_for_people() -> None:
    """Indented, and not escaped where it need not be."""
    text = (PUBLISHED / "json" / "append.schema.json").read_text(encoding="utf-8")
    assert json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n" == text
