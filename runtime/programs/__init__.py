"""Programs: one module each, with what a session does with engines."""
