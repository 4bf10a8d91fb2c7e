"""TLS and SASL of a client: properties in, a TLS context and SASL messages out."""
