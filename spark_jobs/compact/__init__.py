"""`compact`: small files of an archive or a table into few, and the retention of archives."""
