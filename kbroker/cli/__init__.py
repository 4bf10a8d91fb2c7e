"""The `kbroker` command: a module or a package per sub-command."""
