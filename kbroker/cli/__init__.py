"""The `kbroker` command: one module per sub-command."""
