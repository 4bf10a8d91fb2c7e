"""The value of sasl.jaas.config, as Kafka's JaasConfig reads it."""

from __future__ import annotations

import pytest

from kbroker.client.security.jaas import parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param('username="ada" password="x"', {"username": "ada", "password": "x"}, id="two"),
        pytest.param("username='ada'", {"username": "ada"}, id="single quotes"),
        pytest.param("username=ada", {"username": "ada"}, id="no quotes"),
        pytest.param('username = "ada"', {"username": "ada"}, id="spaces"),
        pytest.param('\n\tusername="ada"\r\n', {"username": "ada"}, id="line breaks"),
        pytest.param('p="a;b=c/d\'e"', {"p": "a;b=c/d'e"}, id="marks inside quotes"),
        pytest.param(r'p="a\"b\\c"', {"p": 'a"b\\c'}, id="escaped quote and backslash"),
        pytest.param(r'p="\t\101\7z\8"', {"p": "\tA\az8"}, id="control and octal escapes"),
        pytest.param("p=ab/cd\n", {"p": "ab"}, id="a comment inside a word"),
        pytest.param('/* c */ p="a" // c', {"p": "a"}, id="comments"),
        pytest.param('p="grüße€"', {"p": "grüße€"}, id="not ASCII"),
        pytest.param('p="a" p="b"', {"p": "b"}, id="the last one counts"),
        pytest.param('p=""', {"p": ""}, id="empty"),
        pytest.param("", {}, id="none"),
    ],
)
def test_options(options: str, expected: dict[str, str]) -> None:
    (module,) = parse_jaas(f"{PLAIN} required {options}\n;")
    assert (module.name, module.options) == (PLAIN, expected)


def test_several_modules_and_flags() -> None:
    modules = parse_jaas('a.B required x="1"; c.D OPTIONAL; e.F sufficient;\n g.H Requisite;')
    assert [module.name for module in modules] == ["a.B", "c.D", "e.F", "g.H"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it names no login module"),
        ("  // nothing", "it names no login module"),
        ("a.B", "login module 1 is not followed by a control flag"),
        ('a.B username="hush";', "login module 1 is not followed by a control flag"),
        ('a.B required password="hush"', "login module 1 does not end with a semicolon"),
        ("a.B required password;", "option 1 of login module 1 is not written as"),
        ("a.B required password=;", "option 1 of login module 1 is not written as"),
        ("a.B required x=1 password=hush extra;", "option 3 of login module 1 is not written as"),
        ('a.B required password="hush;', "a quote is not closed"),
        ("a.B required password=x;hush;", "login module 2 is not followed by a control flag"),
        ("=a.B required;", "login module 1 is expected before '='"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_jaas(text)
    assert "hush" not in str(caught.value)


def test_options_are_not_shown() -> None:
    assert "hush" not in repr(parse_jaas('a.B required password="hush";'))
