"""scipy, absent: the theory's claims need it, growing and training do not."""
