"""search: questions -> trees of agent turns; no gradient lives here."""
