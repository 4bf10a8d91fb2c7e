"""The only room that knows everything: sockets, dispatch, handlers and the composition root."""
