"""Topic snapshots: `kbroker topics snapshot`, `restore` and `clone`."""
