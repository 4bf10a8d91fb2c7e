"""Brokers that register and send heartbeats, and do nothing else: what the active controller needs
to create topics, and the load of 100 brokers for a benchmark.

    python -m tests.cluster.simulated_brokers ID@HOST:PORT,... [--brokers 3] [--first-id 1000]
        [--interval 2] [--warm-up 0]

The addresses are the controllers'. Each broker has a connection of its own to the active
controller. Brokers do not send their heartbeats at the same moment, as real ones do not; for
--warm-up seconds each sends one every 50 ms. Prints `unfenced COUNT` as brokers are unfenced for
the first time, and ends when standard input does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
from collections.abc import Callable
from random import Random

from kbroker.broker.controller_channel import BrokerRegistrationData
from kbroker.metadata.image import Endpoint
from kbroker.model import random_uuid
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationResponse,
)
from tests.cluster.controller_client import ControllerClient, parse_addresses

INTERVAL_S = 2.0
"""Kafka's default of broker.heartbeat.interval.ms."""
WARM_UP_INTERVAL_S = 0.05
RETRY_S = 0.1
RETRY_MAX_S = 1.0
"""Pauses after failures in a row grow up to this, as those of real brokers: 100 brokers that look
for the active controller all the time would cost more than what a benchmark measures.
"""
CAUGHT_UP = 1 << 40
"""These brokers do not read the metadata log; the controller unfences one that claims to have read
its registration.
"""
NEW_REGISTRATION = (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED)


class SimulatedBroker:
    """One broker. on_unfenced: called once."""

    def __init__(
        self,
        broker_id: int,
        client: ControllerClient,
        *,
        interval_s: float,
        warm_up_s: float,
        on_unfenced: Callable[[], None],
    ) -> None:
        self._random = random = Random(f"{broker_id} {os.getpid()}")
        self._id = broker_id
        self._client = client
        self._interval_s = interval_s
        self._warm_up_s = warm_up_s
        self._on_unfenced = on_unfenced
        self._epoch = -1
        self._was_unfenced = False
        self._registration = BrokerRegistrationData(
            incarnation_id=random_uuid(random),
            endpoints={"PLAINTEXT": Endpoint("PLAINTEXT", "127.0.0.1", 9)},
            log_dirs=(random_uuid(random),),
        )

    async def run(self) -> None:
        """Until it is cancelled."""
        failures = 0
        while True:
            try:
                is_fenced = await self._heartbeat() if self._epoch >= 0 else await self._register()
            except KafkaError:
                pause_s = min(RETRY_S * 2.0 ** min(failures, 10), RETRY_MAX_S)
                failures += 1
                await asyncio.sleep(pause_s * self._random.uniform(0.8, 1.2))
                continue
            failures = 0
            if is_fenced:
                await asyncio.sleep(0)
            elif self._was_unfenced:
                await asyncio.sleep(self._interval_s)
            else:
                self._was_unfenced = True
                self._on_unfenced()
                await self._warm_up()
                await asyncio.sleep(self._random.uniform(0, self._interval_s))

    async def _warm_up(self) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._warm_up_s
        while loop.time() < until_s and self._epoch >= 0:
            await asyncio.sleep(WARM_UP_INTERVAL_S)
            try:
                await self._heartbeat()
            except KafkaError:
                return

    async def _register(self) -> bool:
        await self._client.active()
        request = self._registration.request(broker_id=self._id, cluster_id=self._client.cluster_id)
        response = await self._client.request(request, BrokerRegistrationResponse)
        self._check(response.error_code)
        self._epoch = response.broker_epoch
        return True

    async def _heartbeat(self) -> bool:
        request = BrokerHeartbeatRequest(
            broker_id=self._id, broker_epoch=self._epoch, current_metadata_offset=CAUGHT_UP
        )
        response = await self._client.request(request, BrokerHeartbeatResponse)
        self._check(response.error_code)
        return response.is_fenced

    def _check(self, code: int) -> None:
        """Raises KafkaError for an error."""
        if code in NEW_REGISTRATION:
            self._epoch = -1
        if code:
            self._client.forget()
            raise KafkaError(ErrorCode(code), f"broker {self._id}")


async def run_brokers(
    controllers: str,
    *,
    first_id: int,
    count: int,
    interval_s: float = INTERVAL_S,
    warm_up_s: float = 0.0,
) -> None:
    """All of them, until cancelled."""
    addresses = parse_addresses(controllers)
    unfenced = 0

    def on_unfenced() -> None:
        nonlocal unfenced
        unfenced += 1
        print("unfenced", unfenced, flush=True)

    async with asyncio.TaskGroup() as tasks:
        for broker_id in range(first_id, first_id + count):
            client = ControllerClient(addresses)
            broker = SimulatedBroker(
                broker_id,
                client,
                interval_s=interval_s,
                warm_up_s=warm_up_s,
                on_unfenced=on_unfenced,
            )
            tasks.create_task(broker.run())


def end_with_input() -> None:
    """End this process once standard input is closed."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("controllers")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--first-id", type=int, default=1000)
    parser.add_argument("--interval", type=float, default=INTERVAL_S, help="seconds")
    parser.add_argument("--warm-up", type=float, default=0.0, help="seconds")
    arguments = parser.parse_args()
    end_with_input()
    asyncio.run(
        run_brokers(
            arguments.controllers,
            first_id=arguments.first_id,
            count=arguments.brokers,
            interval_s=arguments.interval,
            warm_up_s=arguments.warm_up,
        )
    )


if __name__ == "__main__":
    main()
