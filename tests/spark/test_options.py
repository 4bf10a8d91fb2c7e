"""Options by Spark's names from the command line and files, and secrets from elsewhere."""

from __future__ import annotations

import argparse
import random
import sys
import types
from pathlib import Path

import pytest

from spark_jobs.archive.options import ARCHIVE_OPTIONS, ArchiveOptions, archive_options
from spark_jobs.errors import JobError
from spark_jobs.options import (
    add_options,
    collect,
    expand,
    parse_names,
    parse_properties,
    parse_size,
    parse_yaml,
)

ENVIRONMENT = {"PASSWORD": "s3cret"}


def values(*arguments: str) -> dict[str, str]:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_options(parser, ARCHIVE_OPTIONS)
    known, rest = parser.parse_known_args(arguments)
    return collect(ARCHIVE_OPTIONS, known, rest, ENVIRONMENT)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--maxOffsetsPerTrigger", "7"),
        ("--max-offsets-per-trigger", "7"),
        ("--max-offsets-per-trigger=7",),
    ],
)
def test_an_option_has_sparks_name(arguments: tuple[str, ...]) -> None:
    assert values(*arguments) == {"maxOffsetsPerTrigger": "7"}


def test_options_of_kafka_and_spark_pass() -> None:
    found = values(
        *("--kafka.security.protocol", "SASL_SSL", "--kafka.client.id=x=y"),
        *("--bootstrap-servers", "b:1", "--conf", "spark.executor.memory=2g", "--topics", "t"),
        "--spark.driver.memory=1g",
        *("--conf", "spark.remote=sc://host:15002/;use_ssl=true"),
        *("--conf", "spark.io.encryption.keySizeBits=256"),
        *("--kafka.sasl.oauthbearer.token.endpoint.url", "https://id/token"),
    )
    assert found == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.client.id": "x=y",
        "kafka.bootstrap.servers": "b:1",
        "spark.executor.memory": "2g",
        "spark.driver.memory": "1g",
        "spark.remote": "sc://host:15002/;use_ssl=true",
        "spark.io.encryption.keySizeBits": "256",
        "kafka.sasl.oauthbearer.token.endpoint.url": "https://id/token",
        "subscribe": "t",
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--max-offset-per-trigger", "7"), "there is --max-offsets-per-trigger"),
        (("--nonsense",), "unknown option --nonsense"),
        (("file",), "unknown option file"),
        (("--kafka.x",), "--kafka.x needs a value"),
        (("--conf", "executor=1"), "write it as spark.name=value"),
        (("--max-offsets-per-trigger", "-7"), "write a positive number"),
        (("--failOnDataLoss", "no"), "write true or false"),
        (("--targetFileSize", "big"), "write a size such as 256m or 1g"),
        (("--format", "csv"), "it is one of parquet"),
        (("--resume-from", "here"), "it is one of output, checkpoint, group, earliest"),
        (("--config", "/no/such.properties"), "No such file"),
        (("--kafka.sasl.password", "x"), "can be seen in `ps`"),
        (("--kafka.sasl.jaas.config=x",), "can be seen in `ps`"),
        (("--conf", "spark.hadoop.fs.azure.account.key.a.blob.core.windows.net=x"), "in `ps`"),
        (("--conf", "spark.hadoop.fs.azure.sas.c.a.blob.core.windows.net=x"), "in `ps`"),
        (("--conf", "spark.hadoop.fs.s3a.encryption.key=x"), "in `ps`"),
        (("--conf", "spark.remote=sc://host:15002/;use_ssl=true;token=x"), "in `ps`"),
        (("--conf", "spark.executorEnv.AWS_SESSION_TOKEN=x"), "in `ps`"),
        (("--conf", "spark.executorEnv.AWS_ACCESSKEY=x"), "in `ps`"),
        (("--spark.kubernetes.authenticate.oauthToken=x",), "in `ps`"),
        (("--kafka.ssl.keystore.password", "${env:NONE}"), "no environment variable NONE"),
        (("--kafka.sasl.jaas.config", "${file:/no/such}"), "/no/such: No such file"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(JobError) as raised:
        values(*arguments)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_a_file_of_options(tmp_path: Path) -> None:
    path = tmp_path / "job.properties"
    path.write_text(
        "# what and where\ntopics = orders, prices\nstartingOffsets: earliest\n"
        'kafka.sasl.jaas.config=org.apache.Plain required \\\n    password="${env:PASSWORD}";\n'
        "spark.executor.memory 2g\n"
    )
    found = values("--config", str(path), "--starting-offsets", "latest")
    assert found == {
        "subscribe": "orders, prices",
        "startingOffsets": "latest",
        "kafka.sasl.jaas.config": 'org.apache.Plain required password="s3cret";',
        "spark.executor.memory": "2g",
    }
    path.write_text("topic=x\n")
    with pytest.raises(JobError, match=r"unknown option topic \(there is --topics\)"):
        values("--config", str(path))


def test_references(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("line\n")
    keys = tmp_path / "keys.properties"
    keys.write_text("a=1\nb=2\n")
    text = f"${{env:PASSWORD}}/${{file:{secret}}}/${{file:{keys}:b}}/$x"
    assert expand("n", text, ENVIRONMENT) == "s3cret/line/2/$x"
    with pytest.raises(JobError, match="has no key c"):
        expand("n", f"${{file:{keys}:c}}", {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b=c\n", {"a": "b=c"}),
        ("a : b \n! no\n\n#no", {"a": "b"}),
        ("a\\=x=1", {"a=x": "1"}),
        ("a", {"a": ""}),
        ("path=C:\\\\x", {"path": "C:\\x"}),
        ("a=1\\\n  2\\\n  3", {"a": "123"}),
    ],
)
def test_properties(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "key=-----BEGIN PRIVATE KEY-----\\nAb+/\\n-----END PRIVATE KEY-----\\n",
            {"key": "-----BEGIN PRIVATE KEY-----\nAb+/\n-----END PRIVATE KEY-----\n"},
            id="a PEM key",
        ),
        ("p=\\u00e4\\t\\r\\f\\q", {"p": "\u00e4\t\r\fq"}),
        ("p=\\ud83d\\ude00 \\uD83D", {"p": "\U0001f600 \ud83d"}),
        ("a\\u003d\\tb=1", {"a=\tb": "1"}),
        ("# path C:\\tmp\\\nfailOnDataLoss=false", {"failOnDataLoss": "false"}),
        ("  ! no\\\r\n a=1\rb=2\n", {"a": "1", "b": "2"}),
        ("a=1\\\n# 2\\\n\nb=3", {"a": "1# 2", "b": "3"}),
        ("a=1\\\\\nb=2\\", {"a": "1\\", "b": "2"}),
        ("\\\n  a=1", {"a": "1"}),
        ("a := b\nc = = d\ne\tf g", {"a": "= b", "c": "= d", "e": "f g"}),
        ("a=b\x85c\u2028d\x0be", {"a": "b\x85c\u2028d\x0be"}),
        ("a=b\\ \n=c", {"a": "b ", "": "c"}),
        ("\\", {}),
    ],
)
def test_properties_are_javas(text: str, expected: dict[str, str]) -> None:
    javaproperties = pytest.importorskip("javaproperties")
    assert parse_properties(text) == expected == javaproperties.loads(text)


def test_many_texts_are_read_as_by_another_reader() -> None:
    """But for white space at the end of values."""
    javaproperties = pytest.importorskip("javaproperties")
    chosen = random.Random(7)
    parts = ["a", "b", *"=: #!\t\f\n", "\\", "\\\\", "\r\n", "\\u00e4", "\\n"]
    for _ in range(20_000):
        text = "".join(chosen.choices(parts, k=chosen.randrange(12)))
        found, expected = parse_properties(text), javaproperties.loads(text)
        assert found.keys() == expected.keys(), text
        for name, value in expected.items():
            rest = value[len(found[name]) :]
            assert value == found[name] + rest and not rest.strip(" \t\f"), text


@pytest.mark.parametrize("value", ["C:\\users\\hunter2", "\\u12", "x\\u00g0"])
def test_escapes_that_are_none(value: str, tmp_path: Path) -> None:
    path = tmp_path / "job.properties"
    path.write_text(f"# line\ntopics=t\nkafka.sasl.password={value}\n")
    with pytest.raises(JobError) as raised:
        values("--config", str(path))
    why = r"line 3: \u needs four hex digits, and a backslash itself is written \\"
    assert str(raised.value) == f"--config {path}: {why}"
    with pytest.raises(JobError) as raised:
        expand("n", f"${{file:{path}:topics}}", {})
    assert str(raised.value) == f"n: {path}: {why}"


def test_yaml_is_flattened(monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"topics": ["a", "b"], "failOnDataLoss": "false", "kafka": {"client": {"id": "7"}}}
    yaml = types.ModuleType("yaml")
    yaml.load = lambda text, Loader: document if text else None  # type: ignore[attr-defined]
    yaml.YAMLError, yaml.BaseLoader = ValueError, object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "yaml", yaml)
    assert parse_yaml("x", "f.yaml") == {
        "topics": "a,b",
        "failOnDataLoss": "false",
        "kafka.client.id": "7",
    }
    assert parse_yaml("", "f.yaml") == {}
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(JobError, match="pip install pyyaml"):
        parse_yaml("x", "f.yaml")


def test_values_of_yaml_are_as_they_are_written() -> None:
    text = "a: 0123\nb: yes\nc:\nd: [1, 0x10]\ne: {f: True, g: 1.10}\nh: 2026-01-01\n"
    assert parse_yaml(text, "f.yaml") == {
        "a": "0123",
        "b": "yes",
        "c": "",
        "d": "1,0x10",
        "e.f": "True",
        "e.g": "1.10",
        "h": "2026-01-01",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("password: @hunter2", "line 1, column 11: found character '@' that cannot start"),
        ('a: b\njaas: x "hun: ter2";', "line 2, column 13: mapping values are not allowed here"),
        ("password: *hunter2", "line 1, column 11: found undefined alias '...'"),
        ("password: !hunter2!x", "found undefined tag handle '...'"),
        ("a: &a\n  b: *a", "found unconstructable recursive node"),
        ("password: hunter2\x00", "it is no YAML"),
        ("hunter2", "it must be a mapping of names to values"),
    ],
)
def test_what_is_no_yaml_is_not_shown(text: str, said: str) -> None:
    with pytest.raises(JobError) as raised:
        parse_yaml(text, "f.yaml")
    assert str(raised.value).startswith("--config f.yaml: ")
    assert said in str(raised.value)
    assert "ter2" not in str(raised.value) and "\n" not in str(raised.value)


def test_a_setting_that_is_refused_is_named_without_its_value() -> None:
    with pytest.raises(JobError) as raised:
        values("--conf", "kafka.sasl.password=hunter2")
    assert str(raised.value) == "--conf kafka.sasl.password: write it as spark.name=value"


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("2k", 2048), ("256m", 1 << 28), ("1GB", 1 << 30), ("3 MiB", 3 << 20)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "m", "0", "1x", "-1m", "1.5g"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="256m"):
        parse_size(text)


def test_the_options_of_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = archive_options(
        values("--topics", "a,b", "--output", "out/", "--every", "1 minute", "--layout", "hour")
    )
    assert options == ArchiveOptions(
        output="out/", subscribe="a,b", trigger="1 minute", layout=("date", "hour")
    )
    assert options.subscription.topics == ("a", "b")
    assert options.checkpoint_uri == f"{tmp_path.as_uri()}/out.checkpoint"
    assert options.output_uri == f"{tmp_path.as_uri()}/out"
    remote = ArchiveOptions(output="s3://b/out?region=x", subscribe="a")
    assert remote.checkpoint_uri == "s3://b/out.checkpoint?region=x"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--topics", "t"), "give --output"),
        (("--output", "o"), "give one of --subscribe"),
        (("--output", "o", "--topics", "t", "--topics-pattern", "p"), "give one of --subscribe"),
        (("--output", "o", "--topics", " , "), "--subscribe names no topic"),
        (("--output", "o", "--topics", "t", "--resume-from", "group"), "go together"),
        (("--output", "o", "--topics", "t", "--group", "g"), "go together"),
        (
            ("--output", "o", "--topics", "t", "--decode", "json", "--layout", "date"),
            "--layout must have the level topic",
        ),
        (
            ("--output", "o", "--topics", "t", "--decode", "json", "--format", "delta"),
            "^--decode is of files of Parquet, and a table of Delta Lake keeps values as bytes: "
            "leave out --format or --decode$",
        ),
    ],
)
def test_mistakes_of_archive(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(JobError, match=said):
        archive_options(values(*arguments))


def test_names() -> None:
    assert parse_names(" a, b,,a ") == ("a", "b")
    assert parse_names("") == ()
