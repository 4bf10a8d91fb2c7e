"""Apache Kafka's command line tools, run in JVMs that stay (java/ToolServer.java).

tools = KafkaTools()
printed = tools.output("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", where, "--list")
tools.close()
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import threading
from pathlib import Path
from typing import IO, Final, Self

from scripts.kafka_jars import broker_class_path
from tests.clients.java_classes import classes_of, has_compiler

SOURCE: Final = Path(__file__).with_name("java") / "ToolServer.java"
TOOL_JARS: Final = ("kafka-tools-", "kafka_2.13-")
"""Begins of the names of the jars with main classes."""
OPENS: Final = ("--add-opens", "java.base/java.lang=ALL-UNNAMED")
"""For the hooks that tools leave with the Java runtime."""
TIMEOUT_S: Final = 120.0


def _java() -> list[str]:
    java = shutil.which("java")
    assert java is not None
    return [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]


class _Server:
    """A JVM that runs one tool at a time. command: starts it."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, words: list[str], stdin: str, timeout_s: float) -> tuple[int, str, str]:
        """Exit code, standard output and error. A JVM that takes longer is killed: EOFError."""
        pipe, answer = self._process.stdin, self._process.stdout
        assert pipe is not None and answer is not None
        given = stdin.encode()
        encoded = [word.encode() for word in words]
        pipe.write(struct.pack(">i", len(encoded)))
        for word in encoded:
            pipe.write(struct.pack(">H", len(word)) + word)
        pipe.write(struct.pack(">i", len(given)) + given)
        pipe.flush()
        watch = threading.Timer(timeout_s, self._process.kill)
        watch.start()
        try:
            (code,) = struct.unpack(">i", _exactly(answer, 4))
            written = []
            for _ in range(2):
                (size,) = struct.unpack(">i", _exactly(answer, 4))
                written.append(_exactly(answer, size).decode())
        except EOFError as error:
            raise EOFError(f"no answer within {timeout_s} s: {' '.join(words)}") from error
        finally:
            watch.cancel()
        return code, written[0], written[1]

    def close(self) -> None:
        """It ends with its input."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def _exactly(stream: IO[bytes], size: int) -> bytes:
    """Raises EOFError if the stream ends before."""
    found = stream.read(size)
    if len(found) < size:
        raise EOFError
    return found


class KafkaTools:
    """Runs tools; calls that overlap, from several threads, get a JVM each. Fetches the jars first
    if they are missing.

    Without a Java compiler each call starts a JVM.
    """

    def __init__(self) -> None:
        folder = Path(broker_class_path()).parent
        jars = sorted(str(jar) for jar in folder.glob("*.jar"))
        tools = [jar for jar in jars if Path(jar).name.startswith(TOOL_JARS)]
        others = os.pathsep.join(jar for jar in jars if jar not in tools)
        self._alone = [*_java(), "-cp", os.pathsep.join(jars)]
        self._server: list[str] | None = None
        if has_compiler():
            classes = os.pathsep.join((classes_of(SOURCE, others), others))
            self._server = [*_java(), *OPENS, "-cp", classes, "ToolServer", *tools]
        self._lock = threading.Lock()
        self._idle: list[_Server] = []

    def output(
        self,
        main_class: str,
        *arguments: str,
        stdin: str = "",
        code: int = 0,
        errors: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> str:
        """What the tool prints. errors: also to standard error.

        Raises AssertionError with all that it printed if it ends with another code.
        """
        ended, out, err = self.run([main_class, *arguments], stdin, timeout_s)
        assert ended == code, out + err
        return out + err if errors else out

    def close(self) -> None:
        """End the JVMs."""
        while self._idle:
            self._idle.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(
        self, words: list[str], stdin: str = "", timeout_s: float = TIMEOUT_S
    ) -> tuple[int, str, str]:
        """Exit code, standard output and error. words: the main class and its arguments."""
        if self._server is None:
            done = subprocess.run(
                [*self._alone, *words],
                input=stdin,
                capture_output=True,
                text=True,
                timeout=timeout_s,
            )
            return done.returncode, done.stdout, done.stderr
        with self._lock:
            server = self._idle.pop() if self._idle else None
        server = server or _Server(self._server)
        try:
            outcome = server.run(words, stdin, timeout_s)
        except BaseException:
            server.close()
            raise
        with self._lock:
            self._idle.append(server)
        return outcome
