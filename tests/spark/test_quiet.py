"""What is printed when Java has ended, and what is printed still."""

from __future__ import annotations

import logging
import socketserver

import pytest

from spark_jobs.quiet import without_traces_of_java


def test_traces_of_py4j_are_not_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's own
    by_root = logging.LogRecord("root", logging.ERROR, "/x/py4j/java_gateway.py", 1, "a", (), None)
    with without_traces_of_java():
        logging.getLogger("py4j.clientserver").error("b")
        logging.getLogger().handle(by_root)
        logging.getLogger("spark_jobs.lag").warning("group g: committed later")
        logging.getLogger("spark_jobs.lag").info("c")
    assert capsys.readouterr().err == "group g: committed later\n"
    assert logging.getLogger().handlers == []


def test_traces_of_pysparks_servers_are_not_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    before = socketserver.BaseServer.handle_error

    class Accumulators(socketserver.BaseServer):
        pass

    others = socketserver.BaseServer(("127.0.0.1", 0), socketserver.BaseRequestHandler)
    monkeypatch.setattr(Accumulators, "__module__", "pyspark.accumulators")
    with without_traces_of_java():
        server = Accumulators(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        server.handle_error(None, ("a", 1))  # type: ignore[arg-type]
        assert capsys.readouterr().err == ""
        others.handle_error(None, ("a", 1))  # type: ignore[arg-type]
        assert "Exception occurred" in capsys.readouterr().err
    assert socketserver.BaseServer.handle_error is before


def test_a_program_that_has_set_up_logging_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[logging.Handler] = [logging.NullHandler()]
    monkeypatch.setattr(logging.getLogger(), "handlers", handlers)
    before = socketserver.BaseServer.handle_error
    with without_traces_of_java():
        assert logging.getLogger().handlers == handlers
        assert socketserver.BaseServer.handle_error is before
