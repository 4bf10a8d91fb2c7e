"""What each API needs before its handler runs, as tables."""
