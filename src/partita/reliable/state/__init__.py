"""Records, the state that they build, and key locks; pure."""
