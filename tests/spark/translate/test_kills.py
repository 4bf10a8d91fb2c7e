"""`translate` killed at random moments, with its broker or without: another run commits the same
offsets.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

import pytest

from kbroker.testing.process import BrokerProcess
from spark_jobs.copying.targets import create_target
from spark_jobs.translate.options import TranslateOptions
from spark_jobs.wire.client import BlockingClient, ClusterAddress
from spark_jobs.wire.groups import commit_offsets, committed_offsets
from tests.spark.copying.records import content, records_of
from tests.spark.kill_rounds import ROOT, ROUNDS
from tests.spark.translate.test_job import Copy, append

pytestmark = [pytest.mark.long_spark, pytest.mark.timeout(3600)]


@ROUNDS
def test_another_run_commits_the_same(mortal: BrokerProcess, rounds: int) -> None:
    bootstrap, source = mortal.bootstrap_servers, f"source-{rounds}"
    client = BlockingClient(ClusterAddress(bootstrap))
    create_target(client, source, 1, {})
    append(client, source, range(10))
    copy = Copy(client, source)
    copy.write(range(0, 4), 4)
    append(client, copy.target, range(100, 103))  # another producer
    copy.write(range(4, 9), 9)
    moments = random.Random(3)
    ended, run_s = 0, 0.0
    for number in range(rounds):
        options = TranslateOptions(f"group-{number}", bootstrap, query_name=copy.name)
        position = moments.randrange(9)
        commit_offsets(client, options.group, {source: {0: position}})
        arguments = ["translate", "--bootstrap-servers", bootstrap, "--group", options.group]
        arguments += ["--queryName", copy.name, "--execute"]
        command = [sys.executable, "-m", "spark_jobs", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if number == 0:  # nothing is killed: how long does a run take here?
            began_at = time.perf_counter()
            subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
            run_s = time.perf_counter() - began_at
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as run:
            time.sleep(moments.uniform(0, run_s))
            if moments.random() < 0.5:
                mortal.kill()
                mortal.start()
            else:
                run.kill()
        if run.returncode:
            subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
        ended += not run.returncode
        found = committed_offsets(client, options.group)[copy.target][0]
        (expected,) = content(records_of(bootstrap, source, 1)[0][position : position + 1])
        (moved_to,) = [r for r in records_of(bootstrap, copy.target, 1)[0] if r.offset >= found][:1]
        assert content([moved_to]) == [expected]
    client.close()
    assert ended < rounds or rounds < 10  # some were killed before their end
