# docker build --tag kbroker .
# docker run --rm --publish 127.0.0.1:9092:9092 --volume kbroker:/var/lib/kbroker kbroker
#
# The second line's address is the one that clients are told: see config/container/server.properties.

FROM python:3.13-slim AS build
WORKDIR /source
COPY requirements/broker.txt requirements/broker.txt
RUN python -m venv /opt/kbroker && /opt/kbroker/bin/pip install --no-cache-dir -r requirements/broker.txt
COPY pyproject.toml setup.py README.md LICENSE ./
COPY config config
COPY docs docs
COPY spark_jobs spark_jobs
COPY kbroker kbroker
RUN /opt/kbroker/bin/pip install --no-cache-dir --no-deps .

FROM python:3.13-slim
RUN groupadd --system --gid 901 kbroker \
    && useradd --system --uid 901 --gid kbroker --home-dir /var/lib/kbroker --create-home kbroker
COPY --from=build /opt/kbroker /opt/kbroker
COPY config/container/server.properties /etc/kbroker/server.properties
ENV PATH=/opt/kbroker/bin:$PATH PYTHONUNBUFFERED=1
USER kbroker
WORKDIR /var/lib/kbroker
VOLUME /var/lib/kbroker
EXPOSE 9092 9404
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9404/healthz', timeout=4)"]
ENTRYPOINT ["kbroker"]
CMD ["serve", "/etc/kbroker/server.properties"]
