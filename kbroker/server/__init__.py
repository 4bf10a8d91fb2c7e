"""One Kafka server: sockets, dispatch and handlers. `kbroker/node` builds it."""
